//! `underseal info`.

use clap::Args;
use serde::Serialize;
use underseal_cipher::CpuPath;
use underseal_formats::Facts;
use underseal_volume::Header;

use crate::cli::VolumeArgs;
use crate::error::{Error, Result};
use crate::lower::open_header;
use crate::output::{json, print, print_json};
use crate::{foreign, part};

/// Shows what a header says: of LUKS without any key, of TrueCrypt and VeraCrypt with the
/// passphrase.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// LUKS2: the header's own metadata, word for word
    #[arg(long)]
    pub(crate) raw_metadata: bool,
}

pub(super) fn run(args: &InfoArgs) -> Result<()> {
    let volume = &args.volume;
    let path = volume.header.as_ref().unwrap_or(&volume.image);
    let image = open_header(path, true)?;
    let part = part::range(volume.part, &*image)?;
    let on = part::window(&image, part.as_ref());
    if let Some(format) = foreign::format(volume.kind, &on)? {
        foreign::check_devices(&volume.other_device, Some(format))?;
        let others = foreign::others(&volume.other_device, volume.part)?;
        let described = foreign::described(format, &on, &others).map_err(|e| e.within(path.display()))?;
        let facts = match described {
            Some(facts) => facts,
            None => foreign::open(foreign::Request::of(volume), format, (image, part), &others)?.facts,
        };
        return of_another_system(args, facts);
    }
    foreign::check_devices(&volume.other_device, None)?;
    let header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    let mut info = header.info();
    if !args.raw_metadata {
        info.metadata = None;
    }
    if args.json {
        return print_json(&Report { info, cpu_path: CpuPath::chosen()?.name() });
    }
    print(&match info.metadata.as_ref() {
        Some(metadata) => json(metadata)?,
        None if args.raw_metadata => {
            let context = format!("{}: LUKS1 has no metadata besides its fields", path.display());
            return Err(Error::usage(context).with_remedy("without --raw-metadata"));
        }
        None => format!("{info}\nCPU path:       {}\n", CpuPath::chosen()?.name()),
    })
}

fn of_another_system(args: &InfoArgs, facts: Facts) -> Result<()> {
    if args.raw_metadata {
        let what =
            format!("{}: {} has no JSON metadata", args.volume.image.display(), facts.format().title());
        return Err(Error::usage(what).with_remedy("without --raw-metadata"));
    }
    let cpu_path = CpuPath::chosen()?.name();
    if args.json {
        return print_json(&Report { info: facts, cpu_path });
    }
    print(&format!("{facts}\nCPU path:       {cpu_path}\n"))
}

/// The header's contents, and this machine's CPU path for them.
#[derive(Serialize)]
struct Report<T: Serialize> {
    #[serde(flatten)]
    info: T,
    /// The CPU path of this processor.
    cpu_path: &'static str,
}

const EXAMPLES: &str = "\
Examples:
  underseal info disk.img
  underseal info disk.img --json | jq .keyslots
  underseal info disk.img --raw-metadata          as cryptsetup luksDump --dump-json-metadata
  underseal info stick.hc --type tcrypt --pim 485 asks for the passphrase, which alone opens the header";
