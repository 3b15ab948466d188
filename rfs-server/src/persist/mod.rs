//! Snapshots: what is lent, in files that outlive the memory itself. PERSIST.md has the format and what is promised.
//!
//! A snapshot says how all names, attributes and extents are at one moment, in the words of the log, and then has the bytes of these
//! extents. Requests go on meanwhile: while the inodes are described, what they change goes along, and while bytes are copied nobody else
//! gets space that was a file's at that moment. So a file has its own bytes, of then or of later, and never those of another one.
//!
//! From the bottom up: [`mod@format`] are frames with checks, [`mod@write`] makes a snapshot of a dispatcher, [`read`] looks at one, [`restore`] makes
//! memory of it, [`directory`] has the files of an export, and [`keeper`] makes them, on a thread of its own.

pub mod directory;
pub mod format;
pub mod keeper;
pub mod read;
pub mod restore;
pub mod write;

pub use directory::{Directory, PersistError};
pub use read::{Contents, ReadError};
