//! `underseal info`.

use std::fs::File;

use underseal_volume::Header;

use crate::cli::InfoArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;

pub(super) fn run(args: InfoArgs) -> Result<()> {
    let path = args.header.unwrap_or(args.image);
    let file = File::open(&path).map_err(|e| Error::io(&path, "cannot open", e))?;
    let header = Header::read(&file, &path)?;
    let mut info = header.info();
    if !args.raw_metadata {
        info.metadata = None;
    }
    print(&match (args.json, &info.metadata) {
        (true, _) => json(serde_json::to_string_pretty(&info))?,
        (false, Some(metadata)) => json(serde_json::to_string_pretty(metadata))?,
        (false, None) if args.raw_metadata => {
            let context = format!("{}: LUKS1 has no metadata besides its fields", path.display());
            return Err(Error::usage(context).with_remedy("without --raw-metadata"));
        }
        (false, None) => info.to_string(),
    })
}

fn json(text: serde_json::Result<String>) -> Result<String> {
    let text = text.map_err(|e| Error::new(Exit::Failed, "cannot be said in JSON").because(&e))?;
    Ok(text + "\n")
}
