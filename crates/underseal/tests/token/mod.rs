//! Tokens with what the field has: a software TPM, a tang server, the kernel's keyring, a software
//! card; each both ways.

mod clevis;
mod command;
mod disk;
mod edit;
mod fido2;
mod keyring;
mod pkcs11;
mod tpm;
mod tpm2;
