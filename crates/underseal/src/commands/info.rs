//! `underseal info`.

use serde::Serialize;
use underseal_cipher::CpuPath;
use underseal_volume::{Header, Info};

use crate::cli::InfoArgs;
use crate::error::{Error, Result};
use crate::lower::open_header;
use crate::output::{json, print, print_json};

pub(super) fn run(args: InfoArgs) -> Result<()> {
    let path = args.header.unwrap_or(args.image);
    let header = Header::read(&*open_header(&path, true)?).map_err(|e| e.in_file(&path))?;
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

/// What the header says, and what this machine makes of it.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    info: Info,
    /// Which sector kernels this processor runs.
    cpu_path: &'static str,
}
