//! Measures operations on names and attributes: the program `rfs-metadata` behind
//! `iozone/run --names`.
//!
//! On each target, files are created, looked up on a fresh mount and once more, and removed, in one
//! directory and in a tree of a hundred directories. A large directory is listed with `ls -l`. A
//! child (the [`worker`]) makes the system calls, so that it can be killed if the file system
//! hangs. The output shows the requests to the server for each rate.
//!
//! [`cli`] has the options, [`step`] the steps and their requirements, [`counted`] the counters of
//! the server, [`run`] the order of the runs, and [`table`] the output.

pub mod cli;
pub mod counted;
pub mod run;
pub mod step;
pub mod table;
pub mod worker;
