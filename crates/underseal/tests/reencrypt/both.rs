use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::control::operator::Ran;
use crate::support::cutter::Cutter;
use crate::support::scratch::{assert_same, put_back};
use crate::support::volume::underseal;

/// Lets a program run for a while, and ends it.
fn interrupt(mut command: std::process::Command, after: Duration, signal: Signal) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(after);
    // The child may have ended.
    let _ = kill_process(Pid::from_child(&child), signal);
    child.wait().unwrap();
}

fn is_under_way(volume: &Volume) -> bool {
    dump(&volume.image).contains("online-reencrypt")
}

#[test]
fn what_is_stopped_or_killed_here_goes_on_in_cryptsetup() {
    for (turn, signal) in [Signal::INT, Signal::KILL, Signal::TERM, Signal::KILL].into_iter().enumerate() {
        let scratch = Scratch::new();
        let (volume, plain) = filled(&scratch, "what_is_stopped_or_killed_here_goes_on_in_cryptsetup", &[]);
        let options = ["--resilience checksum", "--resilience journal"][turn % 2];
        run(&mut reencrypt(&volume, &format!("{options} --init-only")));
        interrupt(reencrypt(&volume, "--resume-only --rate 16M"), Duration::from_millis(700), signal);
        assert!(is_under_way(&volume), "it ended too soon to be a test");
        run(cryptsetup(&volume, "repair").stdin(Stdio::null()));
        run(cryptsetup(&volume, "reencrypt --resume-only --force-offline-reencrypt").stdin(Stdio::null()));
        assert!(!is_under_way(&volume));
        assert_same(&volume.read(0, plain.len()), &plain, options);
    }
}

#[test]
fn what_was_killed_with_cryptsetup_goes_on_here_alone_or_beside_users() {
    for beside in [false, true] {
        let operator = Operator::new();
        let (volume, plain) = filled(&operator.scratch, "what_cryptsetup_stopped_goes_on_here", &[]);
        let pbkdf = CHEAP_PBKDF2.join(" ");
        run(cryptsetup(&volume, &format!("reencrypt --init-only {pbkdf}")).stdin(Stdio::null()));
        interrupt(
            cryptsetup(&volume, "reencrypt --resume-only --force-offline-reencrypt --hotzone-size 4K"),
            Duration::from_millis(250),
            Signal::KILL,
        );
        assert!(is_under_way(&volume), "it ended too soon to be a test");
        if beside {
            let server = operator.serve(&volume, &["--reencrypt=full"]);
            crate::reencrypt::online::wait_for(&operator, "image", "done");
            server.stop();
        } else {
            run(&mut reencrypt(&volume, "--resume-only"));
        }
        assert!(!is_under_way(&volume));
        assert_same(&volume.read(0, plain.len()), &plain, "what was there");
    }
}

/// How many times a program syncs, by either call.
fn syncs(cutter: &Cutter, program: &Command) -> u32 {
    let syncs = cutter.count(&SYNCS, program);
    assert!(syncs > 12, "{syncs}");
    syncs
}

/// A reencryption that is cut off at each of its last syncs.
struct Cut<'c> {
    volume: &'c Volume,
    /// The header, if it is in a separate file.
    header: Option<&'c Path>,
    /// The contents of the volume in the end, if nothing is lost.
    plain: &'c [u8],
}

impl Cut<'_> {
    /// Ends it in each way, wherever `program` was cut off: `theirs` is whether cryptsetup is to be
    /// right, too. Returns how many of the cuts lost what a step had written.
    fn goes_on_everywhere(&self, program: &Command, theirs: bool) -> u32 {
        let Self { volume, header, plain } = *self;
        let before = self.files();
        let cutter = Cutter::new();
        let syncs = syncs(&cutter, program);
        let (mut cut, mut lost) = (0, 0);
        for number in syncs - 9..=syncs {
            self.put(&before);
            cut += u32::from(!cutter.kill_at(number, &SYNCS, program).status.success());
            lost += u32::from(self.loses_a_step(&before));
            let state = self.files();
            let is_right = |who: &str| {
                let at = format!("{program:?}: cut at sync {number}, {who}");
                assert_same(&volume.read(0, plain.len()), plain, &at);
                at
            };
            let is_over = |at: &str| {
                let dump = dump(header.unwrap_or(&volume.image));
                assert!(
                    !dump.contains("online-reencrypt") && !dump.contains("underseal-wipe"),
                    "{at}: {dump}"
                );
            };
            if theirs {
                let apart = header.map_or(String::new(), |path| format!(" --header {}", text(path)));
                // cryptsetup wants a step that was cut to be repaired first. It refuses where all
                // is over.
                for words in ["repair", "reencrypt --resume-only --force-offline-reencrypt"] {
                    crate::support::output(
                        cryptsetup(volume, &format!("{words}{apart}")).stdin(Stdio::null()),
                    );
                }
                is_right("cryptsetup");
                assert!(!dump(header.unwrap_or(&volume.image)).contains("online-reencrypt"));
                self.put(&state);
            }
            crate::support::output(&mut reencrypt(volume, "--resume-only"));
            // If the reencryption is over, opening for writing wipes the old areas.
            volume.write(0, &plain[..4096]);
            is_over(&is_right("underseal"));
            self.put(&state);
            volume.write(0, &plain[..4096]);
            is_right("open");
        }
        assert_eq!(cut, 10, "{program:?}");
        self.put(&before);
        lost
    }

    /// Takes away what the step that is under way by the header has written, as a loss of power
    /// may: only the record that it is done says that it was synced. Whether there is such a step.
    /// Each place is written by one step, and has what it had `before` until then.
    fn loses_a_step(&self, before: &[Option<Vec<u8>>; 2]) -> bool {
        let mut dump = tool("cryptsetup");
        dump.args(["luksDump", "--dump-json-metadata"]).arg(self.header.unwrap_or(&self.volume.image));
        let header = serde_json::from_slice(&crate::support::output(&mut dump).stdout);
        let header: serde_json::Value = header.unwrap_or_default();
        let is_hot = |segment: &&serde_json::Value| {
            segment["flags"]
                .as_array()
                .is_some_and(|flags| flags.iter().any(|flag| flag == "in-reencryption"))
        };
        let segments = header["segments"].as_object();
        let Some(hot) = segments.and_then(|segments| segments.values().find(is_hot)) else { return false };
        let number = |member: &str| hot[member].as_str().unwrap().parse::<usize>().unwrap();
        let (at, len) = (number("offset"), number("size"));
        let before = &before[0].as_ref().unwrap()[at..at + len];
        let image = std::fs::File::options().write(true).open(&self.volume.image).unwrap();
        image.write_all_at(before, at as u64).unwrap();
        true
    }

    fn files(&self) -> [Option<Vec<u8>>; 2] {
        [Some(&*self.volume.image), self.header].map(|path| path.and_then(|path| std::fs::read(path).ok()))
    }

    fn put(&self, files: &[Option<Vec<u8>>; 2]) {
        for (path, bytes) in [Some(&*self.volume.image), self.header].into_iter().zip(files) {
            match (path, bytes) {
                (Some(path), Some(bytes)) => put_back(path, bytes),
                (Some(path), None) => drop(std::fs::remove_file(path)),
                (None, _) => {}
            }
        }
    }
}

#[test]
fn what_is_cut_off_at_the_very_end_goes_on_in_each_program_and_in_open() {
    let scratch = Scratch::in_memory();
    let (volume, plain) = filled_to(&scratch, "what_is_cut_off_at_the_very_end_goes_on", 8, &[]);
    let cut = Cut { volume: &volume, header: None, plain: &plain };
    for options in ["--hotzone-size 2M", "--hotzone-size 2M --resilience journal"] {
        assert!(cut.goes_on_everywhere(&reencrypt(&volume, options), true) > 0);
    }
}

#[test]
fn a_volume_that_moves_is_cut_off_at_the_very_end_and_goes_on_in_each_program() {
    let scratch = Scratch::in_memory();
    let (volume, plain) = filled_to(&scratch, "a_volume_that_moves_is_cut_off_at_the_very_end", 8, &[]);
    let cut = Cut { volume: &volume, header: None, plain: &plain[..6 << 20] };
    cut.goes_on_everywhere(&reencrypt(&volume, "--reduce-device-size 2M --force"), true);
    let pbkdf = CHEAP_PBKDF2.join(" ");
    let theirs = format!("reencrypt --force-offline-reencrypt --reduce-device-size 2M {pbkdf}");
    // cryptsetup destroys some of those itself.
    cut.goes_on_everywhere(&cryptsetup(&volume, &theirs), false);
}

#[test]
fn an_encryption_with_its_header_in_front_is_cut_off_at_the_very_end_and_goes_on() {
    let scratch = Scratch::in_memory();
    let plain = bytes(crate::support::seed("an_encryption_with_its_header_in_front_is_cut_off"), 24 << 20);
    let volume = Volume::at(&scratch, "image");
    std::fs::write(&volume.image, [&plain[..], &vec![0; 32 << 20]].concat()).unwrap();
    let cut = Cut { volume: &volume, header: None, plain: &plain };
    let pbkdf = CHEAP_PBKDF2.join(" ");
    let options = format!("--encrypt --reduce-device-size 32M --hotzone-size 4M {pbkdf}");
    cut.goes_on_everywhere(&reencrypt(&volume, &format!("{options} --force")), true);
    // cryptsetup opens what it was cut off with, and does not resume it.
    let theirs = format!("reencrypt --force-offline-reencrypt {options}");
    cut.goes_on_everywhere(&cryptsetup(&volume, &theirs), false);
}

#[test]
fn an_encryption_with_a_header_apart_is_cut_off_at_the_very_end_and_goes_on_in_each_program() {
    let scratch = Scratch::in_memory();
    let header = scratch.path("header");
    let plain = bytes(crate::support::seed("an_encryption_with_a_header_apart_is_cut_off"), 8 << 20);
    let volume = Volume::at(&scratch, "image").with(["--header", text(&header)]);
    std::fs::write(&volume.image, &plain).unwrap();
    let cut = Cut { volume: &volume, header: Some(&header), plain: &plain };
    for options in ["--resilience journal", "--resilience checksum"] {
        let options = format!("--encrypt --hotzone-size 2M {options} {}", CHEAP_PBKDF2.join(" "));
        assert!(cut.goes_on_everywhere(&reencrypt(&volume, &options), true) > 0);
    }
}

#[test]
fn a_decryption_with_a_header_apart_is_cut_off_at_the_very_end_and_goes_on_in_each_program() {
    let scratch = Scratch::in_memory();
    let header = scratch.path("header");
    let plain = bytes(crate::support::seed("a_decryption_with_a_header_apart_is_cut_off"), 8 << 20);
    let volume = Volume::at(&scratch, "image").with(["--header", text(&header)]);
    std::fs::write(&volume.image, &plain).unwrap();
    let pbkdf = CHEAP_PBKDF2.join(" ");
    run(&mut reencrypt(&volume, &format!("--encrypt --hotzone-size 2M {pbkdf}")));
    let cut = Cut { volume: &volume, header: Some(&header), plain: &plain };
    let (before, cutter) = (cut.files(), Cutter::new());
    for resilience in ["journal", "checksum"] {
        let options = format!("--decrypt --hotzone-size 2M --resilience {resilience}");
        let program = reencrypt(&volume, &options);
        let (syncs, mut lost) = (syncs(&cutter, &program), 0);
        for number in syncs - 12..=syncs {
            cut.put(&before);
            cutter.kill_at(number, &SYNCS, &program);
            lost += u32::from(cut.loses_a_step(&before));
            let state = cut.files();
            let is_right = |who: &str| {
                let at = format!("{resilience}: cut at sync {number} of {syncs}, {who}");
                assert_same(&std::fs::read(&volume.image).unwrap(), &plain, &at);
            };
            for words in ["repair", "reencrypt --resume-only --force-offline-reencrypt"] {
                let mut theirs = cryptsetup(&volume, &format!("{words} --header {}", text(&header)));
                crate::support::output(theirs.stdin(Stdio::null()));
            }
            is_right("cryptsetup");
            cut.put(&state);
            crate::support::output(&mut reencrypt(&volume, "--resume-only"));
            is_right("underseal");
        }
        assert!(lost > 0, "no step was cut off");
        cut.put(&before);
    }
}

#[test]
fn a_decryption_in_small_steps_is_finished_by_cryptsetup() {
    let scratch = Scratch::in_memory();
    let (volume, plain) = filled(&scratch, "a_decryption_in_small_steps", &[]);
    let header = scratch.path("header");
    let apart = format!("--header {}", text(&header));
    let program = reencrypt(&volume, &format!("--decrypt {apart} --force --hotzone-size 4M"));
    let before = std::fs::read(&volume.image).unwrap();
    let cutter = Cutter::new();
    let syncs = syncs(&cutter, &program);
    for number in syncs - 8..syncs {
        put_back(&volume.image, &before);
        let _ = std::fs::remove_file(&header);
        cutter.kill_at(number, &SYNCS, &program);
        for words in ["repair", "reencrypt --resume-only --force-offline-reencrypt"] {
            let mut theirs = cryptsetup(&volume, &format!("{words} {apart}"));
            crate::support::output(theirs.stdin(Stdio::null()));
        }
        let now = std::fs::read(&volume.image).unwrap();
        assert_same(&now[..plain.len()], &plain, &format!("cut at sync {number} of {syncs}"));
    }
}

#[test]
fn a_decryption_that_cryptsetup_has_not_ended_is_not_written_to_and_ended_by_repair() {
    let scratch = Scratch::in_memory();
    let (volume, plain) = filled_to(&scratch, "a_decryption_that_cryptsetup_has_not_ended", 8, &[]);
    let header = scratch.path("header");
    let apart = format!("--header {}", text(&header));
    let begin = format!("reencrypt --decrypt --force-offline-reencrypt {apart}");
    let detached = volume.clone().with(["--header", text(&header)]);
    let before = std::fs::read(&volume.image).unwrap();
    let (cutter, program, mut refused) = (Cutter::new(), cryptsetup(&volume, &begin), 0);
    let syncs = syncs(&cutter, &program);
    for number in syncs - 10..=syncs - 4 {
        put_back(&volume.image, &before);
        let _ = std::fs::remove_file(&header);
        cutter.kill_at(number, &SYNCS, &program);
        let at = format!("cut at sync {number} of {syncs}");
        let opened = Ran::from(crate::support::output(detached.command("write").stdin(Stdio::null())));
        if opened.err.contains("has not ended") {
            refused += 1;
            assert_same(&detached.read(0, plain.len()), &plain, &at);
            let mut repair = underseal();
            repair.args(["header", "repair"]).arg(&volume.image).args(&detached.options);
            run(repair.arg("--passphrase-file").arg(&volume.passphrase));
        }
        for words in ["repair", "reencrypt --resume-only --force-offline-reencrypt"] {
            let mut theirs = cryptsetup(&volume, &format!("{words} {apart}"));
            crate::support::output(theirs.stdin(Stdio::null()));
        }
        assert_same(&std::fs::read(&volume.image).unwrap()[..plain.len()], &plain, &at);
    }
    assert!(refused > 1, "{refused}");
}
