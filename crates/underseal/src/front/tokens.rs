//! `token add|remove|import|export|unassign DEVICE`.

use super::Words;
use super::args::Args;
use super::call::Call;
use super::failure::{Failure, Result};
use super::look::find;

pub(super) fn run(args: &Args, words: &Words<'_>) -> Result<()> {
    let action = words.need(0, "an action and a device")?.to_string_lossy().into_owned();
    let device = words.need(1, "device")?;
    find(args, device)?;
    let call =
        |action: &str| Call::new(&["token", action]).word(device).option("header", args.header.as_ref());
    let id = || args.token_id.ok_or_else(|| Failure::wrong("Option --token-id is required."));
    match action.as_str() {
        "add" => {
            let name = args.key_description.as_ref();
            let name = name.ok_or_else(|| Failure::wrong("Option --key-description is required."))?;
            call("add")
                .option("key-description", Some(name))
                .number("token-id", args.token_id)
                .number("key-slot", args.key_slot)
                .flag("unassigned", args.unbound)
                .flag("replace", args.token_replace)
                .run()
        }
        "remove" => call("remove").number("token-id", Some(id()?)).run(),
        "import" => call("import")
            .option("json-file", Some(args.json_file.clone().unwrap_or_else(|| "-".into())))
            .number("token-id", args.token_id)
            .number("key-slot", args.key_slot)
            .flag("replace", args.token_replace)
            .run(),
        "export" => {
            call("export").number("token-id", Some(id()?)).option("json-file", args.json_file.as_ref()).run()
        }
        "unassign" => {
            let slot = args.key_slot.ok_or_else(|| Failure::wrong("Option --key-slot is required."))?;
            call("unassign").number("token-id", Some(id()?)).number("key-slot", Some(slot)).run()
        }
        _ => Err(Failure::wrong(&format!("Invalid token operation {action}."))),
    }
}
