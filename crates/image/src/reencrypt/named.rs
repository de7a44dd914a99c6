//! Options of a reencryption by name and text, for languages that have no builder.

use underseal_volume::reencrypt::Mode;

use super::options::{ReencryptionOptions, bad};
use crate::Result;
use crate::options::{flag, number};

impl ReencryptionOptions {
    /// Sets an option by its name; `include/underseal.h` of the C library lists the names. The name
    /// `mode` takes `reencrypt`, `encrypt`, `decrypt` or `resume`, and keeps all other options.
    ///
    /// # Errors
    /// `BadOption` for a name or value that is none; `Unsupported` for an unknown hash. Options
    /// that do not fit the mode are refused when the reencryption begins.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self> {
        match name {
            "mode" => {
                self.mode = match value {
                    "reencrypt" => Some(Mode::Reencrypt),
                    "encrypt" => Some(Mode::Encrypt),
                    "decrypt" => Some(Mode::Decrypt),
                    "resume" => None,
                    _ => {
                        let what =
                            format!("mode {value:?} is none of reencrypt, encrypt, decrypt and resume");
                        return Err(bad(what));
                    }
                }
            }
            "cipher" => self.cipher = Some(value.into()),
            "key-size" => self.key_size = Some(number(name, value)?),
            "sector-size" => self.sector_size = Some(number(name, value)?),
            "keep-key" => self.keep_key = flag(name, value)?,
            "resilience" => return self.resilience(value),
            "resilience-hash" => return self.resilience_hash(value),
            "hotzone-size" => self.hotzone_size = Some(number(name, value)?),
            "reduce" => self.reduce = Some(number(name, value)?),
            "lose-keyslots" => self.lose_keyslots = flag(name, value)?,
            "force" => self.force = flag(name, value)?,
            "label" => self.label = value.into(),
            "pbkdf2" => return Ok(self.pbkdf2(number(name, value)?)),
            "argon2id" => {
                let costs = value.split(',').map(|cost| number(name, cost)).collect::<Result<Vec<u32>>>()?;
                let &[passes, memory_kib, threads] = &costs[..] else {
                    return Err(bad(format!("option {name}: {value:?} is not PASSES,KIB,THREADS")));
                };
                return Ok(self.argon2id(passes, memory_kib, threads));
            }
            _ => return Err(bad(format!("no option of a reencryption has the name {name:?}"))),
        }
        Ok(self)
    }
}
