//! The rate of a reencryption, of `open`, `reencrypt` and `table open`.

use std::num::NonZeroU64;
use std::str::FromStr;

use underseal_export::control::Rate;

use crate::size;

/// `give-way`, `full`, or bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateArg(pub(crate) Rate);

impl FromStr for RateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "give-way" => Ok(Self(Rate::GiveWay)),
            "full" => Ok(Self(Rate::Full)),
            _ => {
                let bytes = size::parse(text).map_err(|e| format!("give-way, full, or {e}"))?;
                let bytes = NonZeroU64::new(bytes).ok_or("--pause stops it; 0 bytes a second is no rate")?;
                Ok(Self(Rate::Limit(bytes)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_word_or_bytes_a_second() {
        let rate = |text: &str| text.parse::<RateArg>().map(|rate| rate.0);
        assert_eq!(rate("give-way"), Ok(Rate::GiveWay));
        assert_eq!(rate("full"), Ok(Rate::Full));
        assert_eq!(rate("50M"), Ok(Rate::Limit(NonZeroU64::new(50 << 20).unwrap())));
        assert!(rate("0").unwrap_err().contains("--pause"));
        assert!(rate("fast").unwrap_err().contains("give-way"));
    }
}
