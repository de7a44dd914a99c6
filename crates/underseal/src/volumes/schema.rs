//! The JSON schema of a volume's file, made from the options of `underseal open`; a test compares
//! it with packaging/volume.schema.json.

use std::fs;
use std::path::PathBuf;

use clap::Arg;
use serde_json::{Map, Value, json};

use super::open_options::{Kind, OPTIONS, definition};
use super::toml::OWN;

fn schema() -> Value {
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
    for &(name, kind) in OWN.iter().chain(OPTIONS.iter()) {
        let arg = definition(name);
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
            Kind::OptionalText => json!({ "type": ["boolean", "string"], "minLength": 1 }),
            Kind::Texts | Kind::Devices => json!({
                "type": ["string", "array"], "minLength": 1, "minItems": 1, "items": text,
            }),
            Kind::Paths => json!({
                "type": ["string", "array"], "pattern": "^/", "minItems": 1,
                "items": { "type": "string", "pattern": "^/" },
            }),
            Kind::Places => json!({
                "type": ["boolean", "string", "array"], "minLength": 1, "minItems": 1, "items": text,
            }),
        };
        let choices: Vec<_> = arg.map(Arg::get_possible_values).unwrap_or_default();
        if kind == Kind::Text && !choices.is_empty() {
            property = json!({ "enum": choices.iter().map(|one| one.get_name()).collect::<Vec<_>>() });
        }
        let description = Some(own(name)).filter(|own| !own.is_empty()).map(str::to_owned);
        let help = || Some(arg?.get_help()?.to_string());
        property["description"] = description.or_else(help).expect("a description").into();
        properties.insert(name.into(), property);
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
fn the_schema_is_that_of_the_keys() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/volume.schema.json");
    let made = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    // After a change of the options: UNDERSEAL_WRITE_SCHEMA=1 cargo test -p underseal schema
    if std::env::var_os("UNDERSEAL_WRITE_SCHEMA").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap_or_default() == made, "{} is another one", path.display());
}
