//! The Python package, as Python finds it once it is installed: its own tests run against the
//! module of this build.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The module that cargo built for this test.
fn module() -> PathBuf {
    let deps = std::env::current_exe().expect("the test has a path");
    let deps = deps.parent().expect("it lies in a folder");
    let found = [deps.join("lib_underseal.so"), deps.join("../lib_underseal.so")];
    found.into_iter().find(|path| path.exists()).expect("cargo builds the module before its tests")
}

/// A folder for PYTHONPATH with the package and its module.
fn installed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("underseal");
    std::fs::create_dir(&package).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/underseal");
    for file in std::fs::read_dir(sources).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), package.join(file.file_name())).unwrap();
        }
    }
    std::fs::copy(module(), package.join("_underseal.abi3.so")).unwrap();
    folder
}

fn python(arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(arguments).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn the_packages_own_tests_pass() {
    let folder = installed();
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../volume/tests/vectors/luks");
    let status =
        python(&["-X", "dev", "-W", "error::ResourceWarning", "-m", "unittest", "discover", "--verbose"])
            .env("PYTHONPATH", folder.path())
            .env("UNDERSEAL_VECTORS", vectors)
            .env("UNDERSEAL_FORMATS", concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/tests/vectors"))
            .status()
            .expect("python3 starts");
    assert!(status.success(), "{status}");
}

#[test]
fn the_stubs_name_what_the_package_has() {
    let folder = installed();
    let script = "import ast, underseal\n\
        stubs = ast.parse(open(underseal.__file__ + 'i').read()).body\n\
        names = {node.name for node in stubs if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name[0] != '_'}\n\
        assert names == set(underseal.__all__), names ^ set(underseal.__all__)\n";
    let status = python(&["-c", script]).env("PYTHONPATH", folder.path()).status().expect("python3 starts");
    assert!(status.success(), "{status}");
}
