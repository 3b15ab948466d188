//! Paths: components, symbolic links, and permission to search.

pub(crate) mod components;
pub(crate) mod walk;
