//! Limits for the demands of a header.

use std::time::Duration;

use clap::Args;
use underseal_cipher::CipherSpec;
use underseal_volume::{HeaderDigest, KdfLimits, Pinned};

use crate::size;

/// The limits. A header is not authenticated: a user with write access to the disk can forge it.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the header may ask for (whoever can write the disk can change it)")]
pub(crate) struct TrustArgs {
    /// Refuse keyslots that want more memory; 4 GiB, or what this machine has, by default
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) max_kdf_memory: Option<u64>,
    /// Refuse key derivations that would take longer than SECONDS here; this is measured first
    #[arg(long, value_name = "SECONDS")]
    pub(crate) max_kdf_time: Option<u32>,
    /// Refuse data that is encrypted with any other cipher
    #[arg(long, value_name = "CIPHER")]
    pub(crate) require_cipher: Option<CipherSpec>,
    /// Refuse data that has anything else beside its sectors to tell whether they were changed, or
    /// nothing: aead, poly1305, hmac-sha256, ..
    #[arg(long, value_name = "TYPE", value_parser = authenticating)]
    pub(crate) require_integrity: Option<String>,
    /// Refuse every header but this one: sha256:HEX, as `underseal info` shows it. It is another
    /// after each change of a keyslot
    #[arg(long, value_name = "DIGEST")]
    pub(crate) header_digest: Option<HeaderDigest>,
}

impl TrustArgs {
    /// Returns the limits of an unlock.
    pub(crate) fn limits(&self) -> KdfLimits {
        let defaults = KdfLimits::default();
        let kib = |bytes: u64| u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        KdfLimits {
            memory_kib: self.max_kdf_memory.map_or(defaults.memory_kib, kib),
            time: self.max_kdf_time.map(|seconds| Duration::from_secs(seconds.into())),
            ..defaults
        }
    }

    /// Returns true when an option restricts the header.
    pub(crate) fn is_asked(&self) -> bool {
        self.require_cipher.is_some() || self.require_integrity.is_some() || self.header_digest.is_some()
    }

    /// Returns the required properties of the header.
    pub(crate) fn pinned(&self) -> Pinned {
        let (cipher, integrity) = (self.require_cipher.clone(), self.require_integrity.clone());
        Pinned { digest: self.header_digest, cipher, integrity }
    }
}

/// Parses a type of integrity that detects changes.
fn authenticating(text: &str) -> Result<String, String> {
    match integrity_type(text) {
        Ok(kind) if kind != "none" => Ok(kind),
        _ => {
            Err("want hmac-HASH, cmac-aes, aead or poly1305; none only stores IVs, and protects from nothing"
                .into())
        }
    }
}

/// Parses a type of integrity as LUKS2 names it: `hmac-sha256` is `hmac(sha256)`.
pub(crate) fn integrity_type(text: &str) -> Result<String, String> {
    match text.split_once('-') {
        Some((mac @ ("hmac" | "cmac" | "phmac"), of)) => Ok(format!("{mac}({of})")),
        None if ["aead", "poly1305", "none"].contains(&text) => Ok(text.into()),
        _ => Err("want hmac-HASH, cmac-aes, aead, poly1305 or none".into()),
    }
}
