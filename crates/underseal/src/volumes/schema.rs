//! The JSON schema of a volume's file, made from the options of `underseal open`; a test compares
//! it with packaging/volume.schema.json.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use clap::{Arg, ArgAction, CommandFactory};
use serde_json::{Map, Value, json};

use super::toml::{KEYS, Kind, OWN};
use crate::cli::Cli;

/// Options of `open` that no file says: a name is the file's, `up` sees to process and passphrase,
/// no program is run for a key, and cryptsetup's parts of names are for its own actions.
const NOT_THERE: [&str; 11] = [
    "chain-part",
    "name",
    "daemon",
    "desktop",
    "pid-file",
    "passphrase-fd",
    "passphrase-command",
    "help",
    "quiet",
    "verbose",
    "version",
];

fn options() -> Vec<Arg> {
    let mut command = Cli::command();
    command.build();
    let open = command.find_subcommand("open").unwrap();
    open.get_arguments().filter(|arg| arg.get_long().is_some()).cloned().collect()
}

fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>()
}

fn schema() -> Value {
    let options = options();
    let help = |name: &str| {
        let arg = options.iter().find(|arg| arg.get_long() == Some(name));
        arg.and_then(|arg| Some(arg.get_help()?.to_string()))
    };
    let own = |name: &str| match name {
        "auto" => "Whether `underseal up` without names opens it, and systemd at boot; true by default",
        "device" => {
            "The image: an absolute path, a URI, rbd:POOL/IMAGE, UUID=, LABEL=, PARTUUID= or PARTLABEL="
        }
        "may-fail" => "All is well without it: it does not make `underseal up` fail",
        "network" => "It needs the network, which its other keys do not tell",
        _ => "",
    };
    let mut properties = Map::new();
    for (name, kind) in OWN.iter().chain(KEYS) {
        let text = json!({ "type": "string", "minLength": 1 });
        let mut property = match kind {
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Text => text,
            Kind::Number => json!({ "type": "integer", "minimum": 0 }),
            Kind::Size => {
                json!({ "type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+[A-Za-z]*$" })
            }
            Kind::Path => json!({ "type": "string", "pattern": "^/" }),
            Kind::Mode => json!({ "type": ["string", "integer"], "pattern": "^[0-7]{1,4}$" }),
            Kind::Places => json!({
                "type": ["boolean", "string", "array"], "minLength": 1, "minItems": 1, "items": text,
            }),
        };
        let arg = options.iter().find(|arg| arg.get_long() == Some(name));
        let choices: Vec<_> = arg.map(Arg::get_possible_values).unwrap_or_default();
        if *kind == Kind::Text && !choices.is_empty() {
            property = json!({ "enum": choices.iter().map(|one| one.get_name()).collect::<Vec<_>>() });
        }
        let description = Some(own(name)).filter(|own| !own.is_empty()).map(str::to_owned);
        property["description"] = description.or_else(|| help(name)).expect("a description").into();
        properties.insert((*name).into(), property);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A volume of Underseal's: /etc/underseal/volumes.d/NAME.toml",
        "type": "object",
        "required": ["device"],
        "additionalProperties": false,
        "properties": properties,
    })
}

#[test]
fn each_option_of_open_is_a_key_or_meant_not_to_be() {
    let keys: BTreeSet<_> = KEYS.iter().map(|(name, _)| *name).collect();
    assert_eq!(keys.len(), KEYS.len(), "a key twice");
    assert!(OWN.iter().all(|(name, _)| !keys.contains(name)));
    let mut left = keys;
    for arg in options() {
        let name = arg.get_long().unwrap();
        if NOT_THERE.contains(&name) || name == "key-file" {
            assert!(!left.contains(name), "{name}");
            continue;
        }
        let found = KEYS.iter().find(|(key, _)| *key == name);
        let kind = found.unwrap_or_else(|| panic!("--{name}: a key, or meant not to be one?")).1;
        left.remove(name);
        assert_eq!(matches!(arg.get_action(), ArgAction::SetTrue), kind == Kind::Flag, "{name}");
        assert_eq!(matches!(arg.get_action(), ArgAction::Append), kind == Kind::Places, "{name}");
        assert_eq!(is_path(&arg), kind == Kind::Path, "{name}");
    }
    assert!(left.is_empty(), "no options of open: {left:?}");
}

#[test]
fn the_schema_is_that_of_the_keys() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/volume.schema.json");
    let made = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    // After a change of the options: UNDERSEAL_WRITE_SCHEMA=1 cargo test -p underseal schema
    if std::env::var_os("UNDERSEAL_WRITE_SCHEMA").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap_or_default() == made, "{} is another one", path.display());
}
