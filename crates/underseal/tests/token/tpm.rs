//! A software TPM: by its socket, and as /dev/tpmrm0 of a mount namespace, where cryptsetup's
//! plugin of systemd's looks for one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::support::{run, tool};
use underseal_testing::{PATIENCE, wait_until};

pub(crate) struct Tpm {
    server: Child,
    socket: PathBuf,
}

impl Tpm {
    pub(crate) fn start(folder: &Path) -> Self {
        let state = folder.join("tpm-state");
        std::fs::create_dir(&state).unwrap();
        let socket = folder.join("tpm");
        let server = tool("swtpm")
            .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
            .args(["--tpmstate", &format!("dir={}", state.display())])
            .args(["--server", &format!("type=unixio,path={}", socket.display())])
            .args(["--ctrl", &format!("type=unixio,path={}.ctrl", socket.display())])
            .stdout(Stdio::null())
            .spawn()
            .expect("swtpm is missing: apt-get install swtpm");
        wait_until("the TPM listens", PATIENCE, || socket.exists() && folder.join("tpm.ctrl").exists());
        Self { server, socket }
    }

    pub(crate) fn device(&self) -> String {
        format!("swtpm:path={}", self.socket.display())
    }

    /// A tool of tpm2-tools on it.
    pub(crate) fn tool(&self, name: &str) -> Command {
        let mut command = tool(name);
        command.env("TPM2TOOLS_TCTI", self.device());
        command
    }

    /// Extends a PCR, as another firmware would.
    pub(crate) fn extend(&self, pcr: u8) {
        run(self.tool("tpm2_pcrextend").arg(format!("{pcr}:sha256={}", "11".repeat(32))));
    }

    /// Forgives wrong PINs.
    pub(crate) fn forgive(&self) {
        run(self.tool("tpm2_dictionarylockout").arg("-c"));
    }

    /// Flushes the sessions that systemd leaves behind, as a resource manager would.
    pub(crate) fn forget_sessions(&self) {
        run(self.tool("tpm2_flushcontext").arg("-l"));
    }

    /// A command for which it is /dev/tpmrm0. Root only.
    pub(crate) fn with_device(&self, command: &Command) -> (Command, OwnedFd) {
        self.forget_sessions();
        let (ours, name, keep) = terminal();
        let mut tpm = UnixStream::connect(&self.socket).unwrap();
        // The thread ends when the terminal's other side is closed.
        std::thread::spawn(move || {
            let mut ours = ours;
            while relay(&mut ours, &mut tpm).is_ok() && relay(&mut tpm, &mut ours).is_ok() {}
        });
        let script = "D=$(mktemp -d); mount -t tmpfs none $D; mkdir $D/pts; mount --rbind /dev/pts $D/pts
            for n in null zero random urandom ptmx; do touch $D/$n; mount --bind /dev/$n $D/$n; done
            ln -s $1 $D/tpmrm0; ln -s /proc/self/fd $D/fd; shift; mount --move $D /dev; rmdir $D
            mount -t tmpfs none /sys/class; mkdir -p /sys/class/tpmrm/tpmrm0; exec \"$@\"";
        let mut shell = tool("unshare");
        shell
            .args(["-m", "sh", "-ec", script, "sh", &name])
            .arg(command.get_program())
            .args(command.get_args());
        (shell, keep)
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A terminal that passes bytes as they are: our side, its name, and a descriptor that keeps it.
fn terminal() -> (File, String, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs: OwnedFd = File::options().read(true).write(true).open(&name).unwrap().into();
    let mut raw = tcgetattr(theirs.as_fd()).unwrap();
    raw.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &raw).unwrap();
    (ours.into(), name, theirs)
}

/// Passes on one command or answer.
fn relay(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let mut whole = vec![0; 10];
    from.read_exact(&mut whole)?;
    let len = u32::from_be_bytes(whole[2..6].try_into().unwrap());
    whole.resize(usize::try_from(len).unwrap(), 0);
    from.read_exact(&mut whole[10..])?;
    to.write_all(&whole)
}
