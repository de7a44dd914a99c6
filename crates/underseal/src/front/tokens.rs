//! `token add|remove|import|export|unassign DEVICE`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::{Map, Value, json};
use underseal_volume::luks2::{NewToken, json_bytes};
use underseal_volume::{Header, luks2};

use super::Words;
use super::args::Args;
use super::call::Call;
use super::failure::{Failure, Result};
use super::look::find;
use crate::error::Error;
use crate::lower::open_header;
use crate::output::print_bytes;

pub(super) fn run(args: &Args, words: &Words<'_>) -> Result<()> {
    let action = words.need(0, "an action and a device")?.to_string_lossy().into_owned();
    let device = words.need(1, "device")?;
    let header = match find(args, device)? {
        Header::Luks2(header) => header,
        _ => return Err(Failure::wrong("Tokens are part of LUKS2 headers only.")),
    };
    let call =
        |action: &str| Call::new(&["token", action]).word(device).option("header", args.header.as_ref());
    let id = || args.token_id.ok_or_else(|| Failure::wrong("Option --token-id is required."));
    match action.as_str() {
        "add" => add(args, device, *header),
        "remove" => call("remove").number("token-id", Some(id()?)).run(),
        "import" => call("import")
            .option("json-file", Some(args.json_file.clone().unwrap_or_else(|| "-".into())))
            .number("token-id", args.token_id)
            .number("key-slot", args.key_slot)
            .flag("replace", args.token_replace)
            .run(),
        "export" => export(args, header.token(id()?).map_err(Error::from)?),
        "unassign" => {
            let slot = args.key_slot.ok_or_else(|| Failure::wrong("Option --key-slot is required."))?;
            call("unassign").number("token-id", Some(id()?)).number("key-slot", Some(slot)).run()
        }
        _ => Err(Failure::wrong(&format!("Invalid token operation {action}."))),
    }
}

/// Adds a token that names a key of the kernel's keyring: for the given keyslot, else for all
/// keyslots.
fn add(args: &Args, device: &Path, mut header: luks2::Header) -> Result<()> {
    let name = args.key_description.as_ref();
    let name = name.ok_or_else(|| Failure::wrong("Option --key-description is required."))?;
    let all = header.info().keyslots.into_iter().map(|slot| slot.number);
    let slots: Vec<u32> = match args.key_slot {
        Some(slot) => vec![slot],
        None if args.unbound => vec![],
        None => all.collect(),
    };
    let slots: Vec<String> = slots.iter().map(u32::to_string).collect();
    let token = json!({ "type": "luks2-keyring", "keyslots": slots, "key_description": name });
    let Value::Object(token) = token else { return Ok(()) };
    let on = open_header(args.header.as_deref().unwrap_or(device), false)?;
    let new = NewToken { number: args.token_id, replace: args.token_replace };
    header.add_token(&*on, token, new).map_err(|e| Error::from(e).within(device.display()))?;
    Ok(())
}

fn export(args: &Args, token: &Map<String, Value>) -> Result<()> {
    let text = json_bytes(&serde_json::to_string(token).map_err(|e| Failure::wrong(&e.to_string()))?);
    let Some(path) = &args.json_file else { return Ok(print_bytes(&text)?) };
    // As in cryptsetup, an existing file is overwritten.
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(&text));
    written.map_err(|e| Failure::wrong(&format!("{}: {e}", path.display())))
}
