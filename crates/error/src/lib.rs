//! The error type of every crate: a stable kind for programs, a context for people, and a cause.
//!
//! A crate defines its kinds and takes the rest from here. The type is local to the crate, so that
//! the crate can add methods and conversions:
//! ```
//! /// The kind of a failure.
//! #[derive(Debug, Clone, Copy, PartialEq, Eq)]
//! pub enum ErrorKind {
//!     /// A read failed.
//!     Read,
//! }
//! underseal_error::error_type! {
//!     /// An error of this crate.
//!     pub struct Error(ErrorKind);
//! }
//!
//! # fn main() {
//! let cause = std::io::Error::from_raw_os_error(5);
//! let error = Error::new(ErrorKind::Read, "cannot read").with_source(cause).within("a.img");
//! assert_eq!(error.kind(), ErrorKind::Read);
//! assert_eq!(error.to_string(), "a.img: cannot read");
//! let told = underseal_error::with_causes(&error).to_string();
//! assert_eq!(told, "a.img: cannot read: Input/output error (os error 5)");
//! # }
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;

/// The type of an error's cause.
pub type Source = Box<dyn Error + Send + Sync>;

/// Defines a crate's error type with the crate's kinds. With `from io::Error` after the kinds,
/// `with_source` accepts only causes that convert into `io::Error`.
#[macro_export]
macro_rules! error_type {
    ($(#[$about:meta])* pub struct $name:ident($kind:ty);) => {
        $crate::error_type! { $(#[$about])* pub struct $name($kind) from $crate::Source; }
    };
    ($(#[$about:meta])* pub struct $name:ident($kind:ty) from $source:ty;) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name {
            kind: $kind,
            context: ::std::string::String,
            source: ::std::option::Option<$crate::Source>,
        }

        impl $name {
            /// An error of a kind, with a context.
            pub fn new(kind: $kind, context: impl ::std::convert::Into<::std::string::String>) -> Self {
                Self { kind, context: context.into(), source: None }
            }

            /// Adds the cause.
            #[must_use]
            pub fn with_source(mut self, source: impl ::std::convert::Into<$source>) -> Self {
                let source: $source = source.into();
                self.source = Some(source.into());
                self
            }

            /// The same error with a place before the context: `place: context`.
            #[must_use]
            pub fn within(mut self, place: impl ::std::fmt::Display) -> Self {
                self.context = format!("{place}: {}", self.context);
                self
            }

            /// The same error with a file's name before the context.
            #[must_use]
            pub fn in_file(self, name: &::std::path::Path) -> Self {
                self.within(name.display())
            }

            /// The stable kind.
            pub fn kind(&self) -> $kind {
                self.kind
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.context)
            }
        }

        impl ::std::error::Error for $name {
            fn source(&self) -> ::std::option::Option<&(dyn ::std::error::Error + 'static)> {
                self.source.as_ref().map(|source| source.as_ref() as _)
            }
        }
    };
}

/// An error and all of its causes on one line, joined with ": ".
pub fn with_causes(error: &dyn Error) -> impl fmt::Display {
    WithCauses(error)
}

struct WithCauses<'a>(&'a dyn Error);

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}
