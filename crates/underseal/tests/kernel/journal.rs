//! Volumes of dm-integrity whose journal is encrypted and has a MAC, and those whose data are on a
//! device of their own; with the hashes that no other test has. Both ways, and as the machine
//! leaves them when it stops in the middle.

use std::process::Command;

use fastrand::Rng;

use crate::kernel::authenticated::{IMAGE, guest, sectors, turns, with_files, write_and_kill};
use crate::kernel::patches::Patches;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::volume::underseal;
use crate::support::{Scratch, Server, bytes, run, seed};

/// A kind of volume: names are those of `integritysetup`, and sizes bytes.
struct Kind {
    hash: &'static str,
    key: usize,
    /// The tag size, since integritysetup does not know that of each hash.
    tag: usize,
    block: usize,
    crypt: Option<(&'static str, usize)>,
    mac: Option<(&'static str, usize)>,
    /// The data are elsewhere.
    apart: bool,
}

const KINDS: [Kind; 8] = [
    kind(("sha224", 0, 28), 512, None, Some(("hmac-sha256", 32)), false),
    kind(("sha384", 0, 48), 4096, Some(("ctr-aes", 32)), None, false),
    kind(("sha3-512", 0, 64), 512, Some(("ctr-aes", 16)), Some(("hmac-sha256", 32)), false),
    kind(("blake2b-512", 0, 64), 1024, Some(("cbc-aes", 32)), Some(("hmac-sha512", 64)), false),
    kind(("hmac-sha384", 48, 48), 2048, Some(("cbc-aes", 16)), Some(("sha256", 0)), false),
    kind(("sha3-224", 0, 28), 4096, None, None, true),
    kind(("sha3-384", 0, 48), 512, Some(("ctr-aes", 24)), Some(("hmac-sha1", 20)), true),
    kind(("crc32c", 0, 4), 4096, Some(("cbc-aes", 32)), Some(("hmac-sha256", 16)), true),
];

const fn kind(
    (hash, key, tag): (&'static str, usize, usize),
    block: usize,
    crypt: Option<(&'static str, usize)>,
    mac: Option<(&'static str, usize)>,
    apart: bool,
) -> Kind {
    Kind { hash, key, tag, block, crypt, mac, apart }
}

impl Kind {
    /// Options of both programs for all that has to be told again; what their keys are is written
    /// to files.
    fn options(&self, scratch: &Scratch, name: &str, rng: &mut Rng) -> Vec<String> {
        let mut options = Vec::new();
        let parts = [
            ("integrity", Some((self.hash, self.key))),
            ("journal-integrity", self.mac),
            ("journal-crypt", self.crypt),
        ];
        for (option, part) in parts {
            let Some((algorithm, key)) = part else { continue };
            options.extend([format!("--{option}"), algorithm.into()]);
            if key > 0 {
                let file = format!("{name}.{option}.key");
                scratch.file(&file, &bytes(rng.u64(..), key));
                options.extend([format!("--{option}-key-file"), file]);
                options.extend([format!("--{option}-key-size"), key.to_string()]);
            }
        }
        options
    }

    /// The files of a volume.
    fn parts(&self) -> &'static [&'static str] {
        if self.apart { &["img", "data"] } else { &["img"] }
    }

    fn data_device(&self, data: &str) -> Vec<String> {
        if self.apart { vec!["--data-device".into(), data.into()] } else { Vec::new() }
    }
}

fn here(scratch: &Scratch, verb: &str, image: &str, options: &[Vec<String>]) -> Command {
    let mut command = underseal();
    command.args(["integrity", verb, image]).args(options.concat()).current_dir(scratch.folder());
    command
}

#[test]
fn journals_with_a_mac_encrypted_and_apart_from_the_data_go_both_ways() {
    let mut rng = Rng::with_seed(seed("journals"));
    let scratch = Scratch::new();
    let mut guest = guest(&scratch);
    let mut cases = Vec::new();
    for (i, kind) in KINDS.iter().enumerate() {
        let name = format!("journal{i}");
        let options = kind.options(&scratch, &name, &mut rng);
        let data = kind.data_device(&format!("{name}.data"));
        let image = format!("{name}.img");
        if kind.apart {
            scratch.file(&format!("{name}.data"), &vec![0; 3 << 20]);
        }
        let size = ["--size", IMAGE, "--sector-size", &kind.block.to_string()].map(String::from).to_vec();
        run(&mut here(&scratch, "format", &image, &[size, options.clone(), data.clone()]));
        let size = sectors(&mut here(&scratch, "info", &image, &[data.clone(), vec!["--json".into()]])) * 512;
        let mut plain = vec![0; usize::try_from(size).unwrap()];
        let open = here(&scratch, "open", &image, &[options.clone(), data]);
        write_and_kill(Server::start_command(open, &[]), &mut plain, &mut rng);
        let patches = Patches::random(&mut rng, plain.len());
        let act = turns(&scratch, &name, &plain, &patches);
        let apart = kind.data_device("$data").join(" ");
        let open = |name: &str| format!("integritysetup open {} {apart} $img {name}\n", options.join(" "));
        let close = |name: &str| format!("integritysetup close {name}");
        let files = |name: &str| -> String {
            kind.parts().iter().map(|part| format!("cp {name}.{part} /run/\n")).collect()
        };
        let script = with_files(&name, kind.parts(), &files(&name), &open(&name), &close(&name), &act);
        guest.task(&name, &script);
        patches.apply(&mut plain);
        cases.push((name.clone(), kind, options.clone(), plain));

        let theirs = format!("{name}theirs");
        let make: String =
            kind.parts().iter().map(|part| format!("truncate -s {IMAGE} /run/{theirs}.{part}\n")).collect();
        let make = format!(
            "{make}integritysetup format -q --sector-size {} --tag-size {} {} {} /run/{theirs}.img\n",
            kind.block,
            kind.tag,
            options.join(" "),
            kind.data_device(&format!("/run/{theirs}.data")).join(" ")
        );
        let plain = bytes(rng.u64(..), 1 << 20);
        scratch.file(&format!("{theirs}.plain"), &plain);
        let act = format!("dd if={theirs}.plain of=/dev/mapper/{theirs} bs=64k conv=fsync status=none\n");
        let script = with_files(&theirs, kind.parts(), &make, &open(&theirs), &close(&theirs), &act);
        guest.task(&theirs, &script);
        cases.push((theirs, kind, options, plain));
    }
    guest.boot();
    for (name, kind, options, plain) in cases {
        for state in ["closed", "cut"] {
            let name = format!("{name}.{state}");
            let data = kind.data_device(&format!("{name}.data"));
            let open = here(&scratch, "open", &format!("{name}.img"), &[options.clone(), data]);
            let server = Server::start_command(open, &[]);
            let mut client = Client::connect(&server.socket()).unwrap();
            assert_same(&client.read(0, plain.len()).unwrap(), &plain, &format!("{name}: {}", kind.hash));
        }
    }
}
