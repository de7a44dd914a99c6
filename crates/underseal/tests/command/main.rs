//! The real binary, as its users and the field's own tools meet it.

mod activation;
mod background;
mod common;
mod errors;
mod format;
mod lab;
mod pages;
mod secrecy;
mod serve;
mod stop;
mod terminal;
mod tls;
mod transfer;
