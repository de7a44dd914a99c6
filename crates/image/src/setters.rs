//! The methods of options that change one field.

/// Makes methods of options, each with its documentation, its arguments and the change it makes:
/// `force(options, force: bool) options.force = force;` is `pub fn force(mut self, force: bool) ->
/// Self`.
macro_rules! setters {
    ($($(#[$about:meta])* $name:ident($options:ident, $($argument:ident: $kind:ty),+) $change:expr;)+) => {
        $(
            $(#[$about])*
            #[must_use]
            pub fn $name(mut self, $($argument: $kind),+) -> Self {
                let $options = &mut self;
                $change;
                self
            }
        )+
    };
}

pub(crate) use setters;
