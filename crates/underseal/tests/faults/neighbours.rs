//! Other programs that use the image of a served volume, played at random: cryptsetup changes the
//! header, keyslots come and go, the image is locked and synced, the volume is suspended and
//! reencrypted, clients come late and leave.
//!
//! `UNDERSEAL_SEED` repeats a run, `UNDERSEAL_SECONDS` makes each of the two longer.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::fs::{Advice, FlockOperation, fadvise, flock};

use crate::control::operator::Operator;
use crate::faults::foreign::{LOST, MIB, Thin};
use crate::support::mounts::{cannot_mount, skip};
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, output, wait_until};
use crate::support::volume::{CHEAP_PBKDF2, Volume, text, underseal};
use crate::support::{Server, run, seed, tool};

const BLOCK: u64 = 4096;
const BLOCK_LEN: usize = 4096;
const MIB_LEN: usize = 1 << 20;
/// The blocks of the volume that clients write to.
const BLOCKS: u64 = 4096;
const WRITERS: u64 = 2;

fn time() -> Duration {
    let given = std::env::var("UNDERSEAL_SECONDS").ok();
    Duration::from_secs(given.map_or(4, |given| given.parse().expect("UNDERSEAL_SECONDS is a number")))
}

fn block(fill: u64) -> Vec<u8> {
    fill.to_le_bytes().repeat(BLOCK_LEN / 8)
}

/// Connects. On a busy machine a client may be too slow for the server's limit of the handshake.
fn connect(socket: &Path) -> Client {
    loop {
        match Client::connect(socket) {
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            connected => return connected.unwrap(),
        }
    }
}

/// A client that comes and goes, and writes every other block. Returns what each block holds; 0
/// where nothing was written.
fn come_and_go(number: u64, mut dice: Rng, socket: &Path, stop: &AtomicBool) -> Vec<u64> {
    let mut held = vec![0; usize::try_from(BLOCKS).unwrap()];
    while !stop.load(SeqCst) {
        let mut client = connect(socket);
        for _ in 0..dice.u32(1..200) {
            let at = dice.u64(0..BLOCKS / WRITERS) * WRITERS + number;
            let slot = &mut held[usize::try_from(at).unwrap()];
            match dice.u32(0..40) {
                0 => client.flush().unwrap(),
                1..20 => {
                    let fill = dice.u64(1..);
                    client.write(at * BLOCK, &block(fill)).unwrap();
                    *slot = fill;
                }
                _ if *slot > 0 => {
                    let read = client.read(at * BLOCK, BLOCK_LEN).unwrap();
                    assert_same(&read, &block(*slot), "a read amid changes");
                }
                _ => {}
            }
        }
    }
    held
}

/// A program that locks the image as cryptsetup does, for less time than others wait, and syncs it.
fn lock_and_sync(mut dice: Rng, image: &Path, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        let file = File::open(image).unwrap();
        let how = [FlockOperation::LockShared, FlockOperation::LockExclusive];
        flock(&file, how[dice.usize(0..2)]).unwrap();
        thread::sleep(Duration::from_millis(dice.u64(0..200)));
        drop(file);
        run(tool("sync").arg(image));
        thread::sleep(Duration::from_millis(dice.u64(0..300)));
    }
}

/// A program that changes the header.
struct Neighbour<'n> {
    operator: &'n Operator,
    volume: &'n Volume,
    dice: Rng,
    /// Key files that were added.
    keys: Vec<PathBuf>,
    made: u32,
}

impl Neighbour<'_> {
    fn is_being_reencrypted(&self) -> bool {
        let state = self.operator.status("image")["reencryption"]["state"].clone();
        !(state.is_null() || state == "done")
    }

    fn reencrypt(&self, options: &str) -> Option<i32> {
        let passphrase = text(&self.volume.passphrase);
        self.operator.run(&format!("reencrypt image --passphrase-file {passphrase} {options}")).code
    }

    fn cryptsetup(&self, action: &str) -> std::process::Command {
        let mut command = tool("cryptsetup");
        command.args(["-q", action]).arg(&self.volume.image);
        command
    }

    fn new_key(&mut self) -> PathBuf {
        self.made += 1;
        // Without a newline, where a passphrase file would end and a key file would not.
        let key = format!("{:032x}", self.dice.u128(..));
        self.operator.scratch.file(&format!("key{}", self.made), key.as_bytes())
    }

    /// Changes something.
    fn act(&mut self) {
        let is_being_reencrypted = self.is_being_reencrypted();
        let (image, passphrase) = (&self.volume.image, &self.volume.passphrase);
        match self.dice.u32(0..9) {
            0 => {
                let label = format!("label{}", self.dice.u32(..));
                let changed = output(self.cryptsetup("config").args(["--label", &label]));
                assert!(changed.status.success() || is_being_reencrypted, "{changed:?}");
            }
            // A reencryption is given one passphrase.
            1 if !is_being_reencrypted && self.keys.len() < 4 => {
                let key = self.new_key();
                run(self.cryptsetup("luksAddKey").arg(&key).arg("-d").arg(passphrase).args(CHEAP_PBKDF2));
                self.keys.push(key);
            }
            2 if !is_being_reencrypted && self.keys.len() < 4 => {
                let key = self.new_key();
                let mut add = underseal();
                add.args(["keyslot", "add"]).arg(image).args(CHEAP_PBKDF2);
                run(add.arg("--passphrase-file").arg(passphrase).arg("--new-passphrase-file").arg(&key));
                self.keys.push(key);
            }
            3 if !is_being_reencrypted => {
                if let Some(key) = self.keys.pop() {
                    run(self.cryptsetup("luksRemoveKey").arg(&key));
                }
            }
            4 => {
                self.operator.does("suspend image");
                thread::sleep(Duration::from_millis(self.dice.u64(0..100)));
                self.operator.does("resume image");
            }
            5 if is_being_reencrypted => {
                // The reencryption may have ended meanwhile.
                let order = ["--pause", "--resume", "--stop"][self.dice.usize(0..3)];
                self.reencrypt(order);
            }
            6 | 7 if is_being_reencrypted => drop(self.reencrypt("--resume-only --no-wait --rate full")),
            8 if !is_being_reencrypted && self.keys.is_empty() => {
                assert_eq!(self.reencrypt("--no-wait --rate full"), Some(0));
            }
            _ => {}
        }
    }

    /// Brings a reencryption to its end.
    fn settle(&self) {
        wait_until("a reencryption comes to its end", PATIENCE, || {
            if self.is_being_reencrypted() {
                self.reencrypt("--resume");
                self.reencrypt("--resume-only --rate full");
            }
            !self.is_being_reencrypted()
        });
    }
}

#[test]
fn a_volume_is_a_disk_whatever_other_programs_do_to_its_image() {
    let seed = seed("neighbours");
    let operator = Operator::new();
    let (volume, server) = operator.open(&[]);
    let dice = |number| Rng::with_seed(seed.wrapping_add(number));
    let mut neighbour =
        Neighbour { operator: &operator, volume: &volume, dice: dice(0), keys: Vec::new(), made: 0 };
    let (socket, stop) = (server.socket(), AtomicBool::new(false));
    let held: Vec<Vec<u64>> = thread::scope(|scope| {
        let (socket, stop, volume) = (&socket, &stop, &volume);
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| scope.spawn(move || come_and_go(number, dice(1 + number), socket, stop)))
            .collect();
        scope.spawn(move || lock_and_sync(dice(100), &volume.image, stop));
        let end = Instant::now() + time();
        // The other threads are stopped also when this thread fails.
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while Instant::now() < end && writers.iter().all(|writer| !writer.is_finished()) {
                neighbour.act();
            }
        }));
        stop.store(true, SeqCst);
        let held = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        played.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        held
    });
    neighbour.settle();
    operator.does("close image");
    drop(server);
    let plain = volume.read_all();
    for (at, held) in held.iter().flat_map(|held| held.iter().enumerate()).filter(|(_, held)| **held > 0) {
        let at = at * BLOCK_LEN;
        assert_same(&plain[at..at + BLOCK_LEN], &block(*held), "a block afterwards");
    }
    for key in neighbour.keys.iter().chain([&volume.passphrase]) {
        run(neighbour.cryptsetup("open").args(["--test-passphrase", "-d"]).arg(key));
    }
}

/// A disk that loses some of the clients' writes.
struct Losing<'l> {
    volume: &'l Volume,
    server: &'l Server,
    /// The contents of each MiB.
    held: Vec<Option<u8>>,
    /// A flush has failed.
    is_lost: bool,
}

impl Losing<'_> {
    fn connect(&self) -> Client {
        connect(&self.server.socket())
    }

    /// Writes some MiB, over a connection that ends or has been there before.
    fn write(&mut self, dice: &mut Rng, client: &mut Client) {
        for _ in 0..dice.u32(1..5) {
            let (at, fill) = (dice.usize(0..self.held.len()), dice.u8(..));
            client.write(at as u64 * MIB, &vec![fill; MIB_LEN]).unwrap();
            self.held[at] = Some(fill);
        }
    }

    /// A flush that succeeds has stored everything; after one that failed none does.
    fn flush(&mut self, client: &mut Client) {
        let flushed = client.flush().is_ok();
        assert!(!(self.is_lost && flushed), "a flush succeeds after one that failed");
        self.is_lost = !flushed;
        if flushed {
            self.forget();
            for (at, fill) in self.held.iter().enumerate() {
                let Some(fill) = *fill else { continue };
                let read = client.read(at as u64 * MIB, MIB_LEN).unwrap();
                assert_same(&read, &vec![fill; MIB_LEN], "what a flush has stored");
            }
        }
    }

    /// From now on the image is read from its disk.
    fn forget(&self) {
        let image = File::open(&self.volume.image).unwrap();
        fadvise(image.as_fd(), 0, None, Advice::DontNeed).unwrap();
    }
}

#[test]
fn a_flush_that_succeeds_has_stored_everything_whichever_program_syncs_before() {
    if let Some(reason) = cannot_mount() {
        return skip("a disk that loses writes beside other programs", reason);
    }
    let mut dice = Rng::with_seed(seed("losing neighbours"));
    let end = Instant::now() + time();
    let mut lost = 0;
    while Instant::now() < end || lost == 0 {
        let operator = Operator::new();
        let thin = Thin::new(&operator.scratch);
        let volume = Thin::volume(&operator.scratch, thin.disk.directory());
        let mut server = operator.serve(&volume, &[]);
        let mut losing = Losing { volume: &volume, server: &server, held: vec![None; 48], is_lost: false };
        let mut stays = losing.connect();
        for _ in 0..dice.u32(5..25) {
            match dice.u32(0..8) {
                0..3 => {
                    let mut client = losing.connect();
                    losing.write(&mut dice, &mut client);
                }
                3 => losing.write(&mut dice, &mut stays),
                4 => drop(output(tool("sync").arg(&volume.image))),
                5 => {
                    let mut config = tool("cryptsetup");
                    config.args(["config", "--label"]).arg(dice.u32(..).to_string());
                    drop(output(config.arg(&volume.image)));
                }
                6 => {
                    let mut client = losing.connect();
                    losing.flush(&mut client);
                }
                _ => losing.flush(&mut stays),
            }
        }
        drop(stays);
        let Losing { held, is_lost, .. } = losing;
        let closed = operator.run("close image");
        let status = server.wait();
        let (is_lost_now, code) = (closed.code != Some(0), status.code());
        assert!(is_lost_now || !is_lost, "{closed:?}");
        assert_eq!(code, Some(if is_lost_now { LOST } else { 0 }), "{closed:?}\n{}", server.log());
        if is_lost_now {
            lost += 1;
            continue;
        }
        fadvise(File::open(&volume.image).unwrap().as_fd(), 0, None, Advice::DontNeed).unwrap();
        let plain = volume.read_all();
        for (at, fill) in held.iter().enumerate().filter_map(|(at, fill)| Some((at, (*fill)?))) {
            let at = at * MIB_LEN;
            assert_same(&plain[at..at + MIB_LEN], &vec![fill; MIB_LEN], "what was stored at the end");
        }
    }
}
