//! `underseal info`.

use serde::Serialize;
use underseal_cipher::CpuPath;
use underseal_volume::{Header, Info};

use crate::cli::InfoArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::open_header;
use crate::output::print;

pub(super) fn run(args: InfoArgs) -> Result<()> {
    let path = args.header.unwrap_or(args.image);
    let header = Header::read(&*open_header(&path, true)?).map_err(|e| e.in_file(&path))?;
    let mut info = header.info();
    if !args.raw_metadata {
        info.metadata = None;
    }
    print(&match (args.json, info.metadata.as_ref()) {
        (true, _) => {
            let cpu_path = CpuPath::chosen()?.name();
            json(serde_json::to_string_pretty(&Report { info, cpu_path }))?
        }
        (false, Some(metadata)) => json(serde_json::to_string_pretty(metadata))?,
        (false, None) if args.raw_metadata => {
            let context = format!("{}: LUKS1 has no metadata besides its fields", path.display());
            return Err(Error::usage(context).with_remedy("without --raw-metadata"));
        }
        (false, None) => format!("{info}\nCPU path:       {}\n", CpuPath::chosen()?.name()),
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

fn json(text: serde_json::Result<String>) -> Result<String> {
    let text = text.map_err(|e| Error::new(Exit::Failed, "cannot be said in JSON").because(&e))?;
    Ok(text + "\n")
}
