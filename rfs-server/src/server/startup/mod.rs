//! The start of a server: its host, its directories, and the directories that it makes.

pub(super) mod directories;
pub(super) mod host;
pub(super) mod new_directories;
