//! The real binary, as its users and the field's own tools meet it.

mod activation;
mod authenticated;
mod background;
pub(crate) mod common;
mod detached;
mod errors;
mod format;
mod header;
mod integrity;
mod keyslots;
mod lost_names;
mod new_files;
mod pages;
mod plain_size;
mod secrecy;
mod serve;
mod stop;
mod terminal;
pub(crate) mod tls;
mod transfer;
