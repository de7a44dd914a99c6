//! Tokens with what the field has: a software TPM, a tang server, the kernel's keyring, a software card; each both ways.

#[path = "../support/support.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests, which use all of it together")]
mod support;

mod clevis;
mod command;
mod disk;
mod edit;
mod fido2;
mod keyring;
mod pkcs11;
mod tpm;
mod tpm2;
