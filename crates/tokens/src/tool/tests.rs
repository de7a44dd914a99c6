//! The environment of a child, and the limits on its output.

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn shell(script: &str, limit: Duration) -> Tool {
    Tool::find("sh", "dash", limit).unwrap().args(["-c", script])
}

#[test]
fn a_tool_gets_its_input_and_nothing_of_our_environment() {
    let input: Vec<u8> = (0..200_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let done = shell("cat", LONG).run(&input).unwrap();
    assert!(done.status.success());
    assert_eq!(done.secret.as_bytes(), input);
    let done = shell("env; tty >&2; echo $(ps -o pgid= $$) = $$ >&2; exit 3", LONG)
        .env("GIVEN", Some("x"))
        .run(&[])
        .unwrap();
    let text = String::from_utf8(done.secret.as_bytes().to_vec()).unwrap();
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split('=').next()).collect();
    names.retain(|name| !["PWD", "OLDPWD", "_", "SHLVL"].contains(name));
    names.sort_unstable();
    assert_eq!(names, ["GIVEN", "LC_ALL", "PATH"]);
    assert!(done.said.contains("not a tty"), "{}", done.said);
    let error = done.failure(ErrorKind::Failed).unwrap();
    assert!(error.to_string().starts_with("sh: "), "{error}");
    // The tool leads a session.
    let (group, process) = done.said.rsplit("; ").next().unwrap().split_once(" = ").unwrap();
    assert_eq!(group.trim(), process.trim());
}

#[test]
fn files_and_results_are_pipes_that_only_the_child_has() {
    // `sh in PATH out PATH`: $2 and $4.
    let tool = shell("cat \"$2\" > \"$4\"; echo talk; echo noise >&2", LONG).args(["sh"]);
    let tool = tool.with_file("in", b"question").unwrap().with_result("out").unwrap();
    let done = tool.run(&[]).unwrap();
    assert_eq!(done.secret.as_bytes(), b"question");
    assert!(done.said.contains("talk") && done.said.contains("noise"), "{}", done.said);
    assert!(shell("true", LONG).with_file("in", &vec![0; 1 << 20]).is_err());
}

#[test]
fn a_tool_that_hangs_gives_too_much_or_is_not_there_is_an_error() {
    let started = Instant::now();
    for script in ["sleep 1000", "sleep 1000 & wait", "exec >&- 2>&-; sleep 1000"] {
        let error = shell(script, Duration::from_millis(300)).run(&[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Failed, "{script}");
        assert!(error.to_string().contains("in time"), "{error}");
    }
    assert!(started.elapsed() < Duration::from_secs(100), "they were killed");
    let error = shell("head -c 3000000 /dev/zero", LONG).run(&[]).unwrap_err();
    assert!(error.to_string().contains("more than"), "{error}");
    // Messages have no limit: the last lines are shown.
    let done =
        shell("yes no | head -n 100000 >&2; printf 'the\\033[31m end' >&2; false", LONG).run(&[]).unwrap();
    assert!(done.said.ends_with("the?[31m end"), "{}", done.said);
    let missing = Tool::find("no-such-tool", "its-package", LONG).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NoTool);
    assert!(missing.to_string().contains("its-package"));
}
