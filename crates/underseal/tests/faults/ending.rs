//! The server's end, in the midst of work.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::faults::load::{Writer, volume_size};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until, within};
use crate::support::volume::Volume;
use crate::support::{Scratch, Server, bytes, output};

const WRITERS: u64 = 4;
/// The exit status for an image that another program uses.
const IN_USE: i32 = 4;
/// The number of writes of each writer at least when the server ends: two rounds over all of its
/// places, with a flush.
const WORK: u64 = 150;

fn counts() -> Vec<AtomicU64> {
    (0..WRITERS).map(|_| AtomicU64::new(0)).collect()
}

fn volume(scratch: &Scratch) -> Volume {
    Volume::at(scratch, "image").format(&((16 << 20) + volume_size(WRITERS)).to_string(), &[])
}

/// Lets writers work for a while, then ends the server as `end` does.
fn work<'c>(socket: &Path, counts: &'c [AtomicU64], end: impl FnOnce()) -> Vec<Writer<'c>> {
    thread::scope(|scope| {
        let writers: Vec<_> = (0..)
            .zip(counts)
            .map(|(number, count)| {
                scope.spawn(move || {
                    let mut writer = Writer::new(number, count);
                    writer.write_until_cut_off(socket);
                    writer
                })
            })
            .collect();
        let busy = within(PATIENCE, || counts.iter().all(|count| count.load(Ordering::Relaxed) >= WORK));
        // The server ends in any case: writers only end with it.
        end();
        assert!(busy, "acknowledged: {counts:?}");
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    })
}

fn check(writers: &[Writer], volume: &Volume) {
    let plain = volume.read_all();
    for writer in writers {
        writer.check(&plain);
    }
}

#[test]
fn sigterm_under_load_ends_well_and_every_acknowledged_write_is_on_the_image() {
    for open in [&[][..], &["--direct"]] {
        let scratch = Scratch::new();
        let volume = volume(&scratch);
        let mut server = Server::start(&volume, open);
        let counts = counts();
        let writers = work(&server.socket(), &counts, || server.signal(Signal::TERM));
        let status = server.wait();
        assert!(status.success(), "{status}\n{}", server.log());
        assert!(!server.socket().exists(), "the socket was left behind");
        check(&writers, &volume);
    }
}

#[test]
fn after_sigkill_the_volume_opens_again_and_every_acknowledged_write_is_there() {
    for open in [&[][..], &["--direct"]] {
        let scratch = Scratch::new();
        let volume = volume(&scratch);
        let server = Server::start(&volume, open);
        let mut left_behind = None;
        let socket = server.socket();
        let counts = counts();
        let writers = work(&socket, &counts, || left_behind = Some(server.kill()));
        // Requests that the killed server's rings had in flight keep the image open, and so locked,
        // until they are done.
        wait_until("the kernel lets go of the image", PATIENCE, || {
            output(volume.command("read").args(["--length", "512"])).status.code() != Some(IN_USE)
        });
        check(&writers, &volume);

        // The killed server's socket file is still there; the next server replaces it.
        assert!(socket.exists());
        let server = Server::start_in(left_behind.unwrap(), &volume, open);
        let mut client = crate::support::nbd::Client::connect(&server.socket()).unwrap();
        let data = bytes(7, 65_536);
        client.write(0, &data).unwrap();
        assert_same(&client.read(0, data.len()).unwrap(), &data, "the next server");
        drop(client);
        server.stop();
    }
}
