//! Opening a volume with its header's tokens.
//!
//! Each token is tried once without a PIN; then, if a terminal can be asked, those that need one.
//! If none opens the volume, a passphrase may.

use std::path::Path;
use std::time::{Duration, Instant};

use underseal_cipher::Key;
use underseal_tokens::{ErrorKind, Kind, Options};
use underseal_volume::luks2::{self, TokenChoice, TokenToTry};
use underseal_volume::{Header, Target, UnlockOptions, Unlocked};

use crate::cli::{HardwareArgs, TokenArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::passphrase::{Secret, ask_hidden, first_line_of_file, tell};
use crate::persona::persona;

/// How often a PIN may be typed.
const TRIES: u32 = 3;
/// The time that the tokens of a header may take together, without PINs that are typed: a header
/// may have 32, whose servers do not answer.
const TOGETHER: Duration = Duration::from_secs(120);

/// The failure of a token; the most informative one compares as the greatest.
struct Failure {
    kind: ErrorKind,
    error: Error,
}

/// The unlocked keyslot, and the passphrase from a token.
type Opened = (Unlocked, Key);

/// Opens a volume with tokens; `None` when that is not requested, or no token opens it and a
/// passphrase may. Fails with the reason with `--token-only`; with the errors of reading the
/// keyslots.
pub(crate) fn unlock(
    header: &Header,
    on: &dyn Target,
    (tokens, secret): (&TokenArgs, &Secret<'_>),
    name: &Path,
    unlocking: &UnlockOptions,
) -> Result<Option<Opened>> {
    let named = tokens.are_named();
    let asks = named || secret.is_asked();
    if tokens.no_token || !(asks || tokens.tokens_first) {
        return Ok(None);
    }
    let shown = name.display();
    let Header::Luks2(header) = header else {
        let why = || Error::new(Exit::Unsupported, format!("{shown}: LUKS1 has no tokens"));
        return if named { Err(why().with_remedy("without --token options")) } else { Ok(None) };
    };
    let choice =
        TokenChoice { token: tokens.token_id, kind: tokens.token_type.as_deref(), slot: unlocking.slot };
    let mut found = header.tokens_to_try(choice).map_err(|e| e.in_file(name))?;
    if tokens.token_id.is_none() {
        let asks_clevis = asks || persona().asks_clevis;
        let asked = |kind| asks_clevis || kind != Kind::Clevis;
        found.retain(|token| Kind::of(&token.kind).is_some_and(asked));
    }
    let mut search = TokenSearch { header, on, name, tokens, unlocking, asks, worst: None };
    if let Some(opened) = search.all(found)? {
        return Ok(Some(opened));
    }
    match search.worst {
        Some(worst) if tokens.token_only => Err(worst.error),
        None if tokens.token_only => {
            let what = format!("{shown}: no token opens a keyslot of this volume");
            Err(Error::new(Exit::NoKey, what).with_remedy("`underseal token list` shows the tokens"))
        }
        _ => Ok(None),
    }
}

/// Returns this machine's devices, as absolute paths.
pub(crate) fn options(hardware: &HardwareArgs) -> Result<Options> {
    let absolute = |path: &Option<std::path::PathBuf>| match path {
        Some(path) => std::path::absolute(path).map(Some).map_err(|e| Error::io(path, "cannot be found", e)),
        None => Ok(None),
    };
    Ok(Options {
        tpm2_device: hardware.tpm2_device.clone(),
        fido2_device: absolute(&hardware.fido2_device)?,
        pkcs11_module: absolute(&hardware.pkcs11_module)?,
        ..Options::default()
    })
}

/// The state common to all tokens.
struct TokenSearch<'w> {
    header: &'w luks2::Header,
    on: &'w dyn Target,
    name: &'w Path,
    tokens: &'w TokenArgs,
    unlocking: &'w UnlockOptions,
    /// True when a PIN may be asked for.
    asks: bool,
    worst: Option<Failure>,
}

impl TokenSearch<'_> {
    fn all(&mut self, tokens: Vec<TokenToTry>) -> Result<Option<Opened>> {
        let options = options(&self.tokens.hardware)?;
        let given = self.tokens.token_pin_file.as_ref();
        let mut given =
            given.filter(|_| !tokens.is_empty()).map(|path| first_line_of_file(path)).transpose()?;
        let mut want_pin = Vec::new();
        let until = Instant::now() + TOGETHER;
        for token in tokens {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                let (name, number) = (self.name.display(), token.number);
                log::warn!(
                    "{name}: token {number} and later ones are not tried: the others took {TOGETHER:?}"
                );
                break;
            }
            let options = Options { limit: options.limit.min(rest), ..options.clone() };
            let token_json = self.header.token(token.number).map_err(|e| e.in_file(self.name))?;
            match underseal_tokens::open(token_json, given.as_ref(), &options) {
                Ok(passphrase) => {
                    if let Some(unlocked) = self.try_slots(&token, &passphrase)? {
                        return Ok(Some((unlocked, passphrase)));
                    }
                }
                Err(e) if e.kind() == ErrorKind::PinWanted => want_pin.push((token, e)),
                Err(e) => {
                    // A PIN that is wrong once is not tried on other tokens, which may lock
                    // themselves.
                    if e.kind() == ErrorKind::WrongPin {
                        given = None;
                    }
                    self.failed(&token, e);
                }
            }
        }
        for (token, wanted) in want_pin {
            if !self.asks {
                self.failed(&token, wanted);
                continue;
            }
            if let Some(opened) = self.with_pin(&token, wanted, &options)? {
                return Ok(Some(opened));
            }
        }
        Ok(None)
    }

    /// Asks for a token's PIN, and again when it is wrong; an empty one skips the token.
    fn with_pin(
        &mut self,
        token: &TokenToTry,
        wanted: underseal_tokens::Error,
        options: &Options,
    ) -> Result<Option<Opened>> {
        let mut last = wanted;
        for _ in 0..TRIES {
            let question =
                format!("PIN of token {} ({}) of {}: ", token.number, token.kind, self.name.display());
            let Ok(pin) = ask_hidden(&question) else { break };
            if pin.is_empty() {
                break;
            }
            let token_json = self.header.token(token.number).map_err(|e| e.in_file(self.name))?;
            match underseal_tokens::open(token_json, Some(&pin), options) {
                Ok(passphrase) => {
                    let unlocked = self.try_slots(token, &passphrase)?;
                    return Ok(unlocked.map(|unlocked| (unlocked, passphrase)));
                }
                Err(e) if e.kind() == ErrorKind::WrongPin => {
                    tell("The PIN is wrong.");
                    last = e;
                }
                Err(e) => {
                    last = e;
                    break;
                }
            }
        }
        self.failed(token, last);
        Ok(None)
    }

    fn try_slots(&mut self, token: &TokenToTry, passphrase: &Key) -> Result<Option<Unlocked>> {
        for &slot in &token.keyslots {
            let options = UnlockOptions { slot: Some(slot), ..self.unlocking.clone() };
            match self.header.unlock(self.on, passphrase, &options) {
                Ok(unlocked) => {
                    log::info!("{}: token {} ({}) opens", self.name.display(), token.number, token.kind);
                    return Ok(Some(unlocked));
                }
                Err(e) if e.kind() == underseal_volume::ErrorKind::WrongPassphrase => {}
                Err(e) => return Err(e.in_file(self.name).into()),
            }
        }
        let why = "what it gives opens none of its keyslots: they may have another passphrase since";
        self.failed(token, underseal_tokens::Error::new(ErrorKind::NotUsable, why));
        Ok(None)
    }

    fn failed(&mut self, token: &TokenToTry, e: underseal_tokens::Error) {
        let kind = e.kind();
        let place = format!("{}: token {} ({})", self.name.display(), token.number, token.kind);
        let error = Error::from(e).within(&place);
        if !self.tokens.token_only {
            log::warn!("{}", error.what());
        }
        if self.worst.as_ref().is_none_or(|worst| worst.kind < kind) {
            self.worst = Some(Failure { kind, error });
        }
    }
}
