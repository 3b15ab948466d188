//! A server that has just been started: how soon it can be used, and what the first use of its memory costs.
//!
//! In every round each provider gets a new server of the full size, a mount, and a file that is written twice, from the moment on in which the mount is there: memory is
//! taken from the system in the background meanwhile. The first pass is over memory that nobody has used, the second over the same.

pub mod cli;
pub mod run;
pub mod table;
