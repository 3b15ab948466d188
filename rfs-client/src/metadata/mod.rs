//! Names, attributes, opening, extended attributes, file locks.

pub(crate) mod access_times;
pub(crate) mod attributes;
pub(crate) mod export;
pub(crate) mod lent_rights;
pub(crate) mod locks;
pub(crate) mod lookup;
pub(crate) mod names;
pub(crate) mod open_files;
pub(crate) mod privileges;
pub(crate) mod readdir;
pub(crate) mod xattr;
