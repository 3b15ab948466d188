//! How fast names and attributes are: the program `rfs-metadata` behind `iozone/run --names`.
//!
//! On each target files are created, looked at right after the mount and once more, and removed, in one directory and in
//! a tree of a hundred; and a large directory is listed with `ls -l`. The system calls are made by a child (the
//! [`worker`]), which can be killed if the file system hangs. Beside each rate stands what the server was asked for it.
//!
//! * [`cli`]: the options; [`step`]: what is measured, in order; [`worker`]: the system calls; [`counted`]: the server's
//!   counters; [`run`]: the order of the runs; [`table`]: what is printed. `step` and `table` are pure.

pub mod cli;
pub mod counted;
pub mod run;
pub mod step;
pub mod table;
pub mod worker;
