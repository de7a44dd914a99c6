//! The server's end, in the midst of work.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::load::{Writer, volume_size};
use crate::support::scratch::assert_same;
use crate::support::volume::Volume;
use crate::support::{Scratch, Server, bytes};

const WRITERS: u64 = 4;
const WORK: Duration = Duration::from_millis(400);

fn volume(scratch: &Scratch) -> Volume {
    Volume::at(scratch, "image").format(&((16 << 20) + volume_size(WRITERS)).to_string(), &[])
}

/// Lets writers work for a while, then ends the server as `end` does.
fn work(socket: &Path, end: impl FnOnce()) -> Vec<Writer> {
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                scope.spawn(move || {
                    let mut writer = Writer::new(number);
                    writer.write_until_cut_off(socket);
                    writer
                })
            })
            .collect();
        thread::sleep(WORK);
        end();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    })
}

fn check(writers: &[Writer], volume: &Volume) {
    let plain = volume.read_all();
    for writer in writers {
        assert!(
            writer.acknowledged() > 20,
            "a writer had only {} writes acknowledged",
            writer.acknowledged()
        );
        writer.check(&plain);
    }
}

#[test]
fn sigterm_under_load_ends_well_and_every_acknowledged_write_is_on_the_image() {
    for open in [&[][..], &["--direct"]] {
        let scratch = Scratch::new();
        let volume = volume(&scratch);
        let mut server = Server::start(&volume, open);
        let writers = work(&server.socket(), || server.signal(Signal::TERM));
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
        let writers = work(&socket, || left_behind = Some(server.kill()));
        check(&writers, &volume);

        // Its socket is in the next one's way, which takes its place.
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
