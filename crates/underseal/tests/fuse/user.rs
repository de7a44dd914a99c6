//! The whole life of a mount for another user than root, who mounts through fusermount3.
//!
//! The test runs in its own mount namespace: there all users may use /dev/fuse, and /etc/fuse.conf
//! has the contents that the test needs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::support::mounts::{apart, cannot_fuse, skip};
use crate::support::volume::text;
use crate::support::{Scratch, run};

/// The argument $1 is a folder of the user. The shell checks every line; its output is only for a
/// test that fails.
const SCRIPT: &str = r#"
set -eux
cd "$1"
mkdir dev; mount -t tmpfs none dev; mknod -m 666 dev/fuse c 10 229; mount --bind dev/fuse /dev/fuse
touch none; mount --bind none /etc/fuse.conf
folder=$1
user() { setpriv --reuid=65534 --regid=65534 --clear-groups env UNDERSEAL_RUNTIME_DIR="$folder/run" "$@"; }
user mkdir -m 700 run
user ./underseal format img --size 32M -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --passphrase-file pass
user touch disk
open() { user ./underseal open img --passphrase-file pass --fuse disk --daemon --log-file log "$@"; }

open
user dd if=/dev/urandom of=disk bs=1M count=4 conv=notrunc,fsync
sum=$(user md5sum disk)
user ./underseal status img | grep disk
if md5sum disk; then echo "root may read it"; exit 1; fi
user fusermount3 -u disk
# The server ends once it has heard; the image is locked until then.
for i in $(seq 600); do
    if open --fuse-allow-root 2> said; then echo "it is allowed"; exit 1; fi
    ! grep -q 'in use' said || { sleep 0.1; continue; }
    break
done
grep 'user_allow_other' said || { cat said; exit 1; }
echo user_allow_other > conf; mount --bind conf /etc/fuse.conf
open --fuse-allow-root
test "$(md5sum disk)" = "$sum"
user ./underseal close img
test ! -s disk
"#;

#[test]
fn a_user_needs_no_root() {
    if let Some(reason) = cannot_fuse() {
        return skip("user", reason);
    }
    if !rustix::process::geteuid().is_root() {
        return skip("user", "becoming another user, and giving it /dev/fuse, needs root");
    }
    let scratch = Scratch::new();
    let folder = scratch.folder();
    fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
    // Other users may not read the build folder.
    fs::copy(env!("CARGO_BIN_EXE_underseal"), folder.join("underseal")).unwrap();
    fs::write(folder.join("pass"), "correct horse").unwrap();
    run(apart().args(["bash", "-c", SCRIPT, "bash", text(folder)]));
}
