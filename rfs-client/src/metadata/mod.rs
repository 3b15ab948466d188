//! Names, attributes, opening, extended attributes.

pub(crate) mod lookup;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod xattr;
