//! Loads: this program as a child process, which makes the measured system calls. A child can be
//! killed if the file system hangs.

pub mod builtin;
pub mod data;
pub mod files;
pub mod latency;
pub mod memory;
pub mod names;
pub mod native;
mod pattern;
pub mod thread_group;

use std::{env, io::Write, path::Path, time::Duration};

use clap::Subcommand;

pub use pattern::Pattern;

use crate::{
    Error, Result,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};

/// A load with its options.
#[derive(Debug, Subcommand)]
pub enum Load {
    /// Run the access patterns of IOzone on files and print a line per phase.
    Builtin(builtin::Job),
    /// Run the access patterns of IOzone in the native API and print a line per phase.
    Native(native::Job),
    /// Read or write files, and print the results.
    Data(data::Work),
    /// Create, look up and remove files in one directory, and print the results.
    Names(names::Work),
    /// Perform one action on many files and print the seconds that it took.
    Files(files::Work),
}

impl Load {
    /// Performs the load and prints its results.
    pub fn perform(&self, out: &mut impl Write) -> Result<()> {
        match self {
            Load::Builtin(job) => builtin::work(job, out),
            Load::Native(job) => native::work(job, out),
            Load::Data(work) => data::work(work, out),
            Load::Names(work) => names::work(work, out),
            Load::Files(work) => files::work(work, out),
        }
    }
}

/// Returns the command line of a load without its options.
pub fn command(name: &str) -> Result<Invocation> {
    let program = env::current_exe().map_err(Error::io("the path of this program"))?;
    Ok(Invocation::new(program).args(["load", name]))
}

/// Runs a load and returns its output. Calls `tick` with the output at every poll.
pub fn run(
    command: &Invocation,
    limit: Duration,
    interrupt: &Interrupt,
    tick: impl FnMut(&str),
) -> Result<String> {
    // The working directory is outside of the measured mount, because it would keep the mount busy.
    Guarded::spawn(command, Path::new("/"))?.wait_success(interrupt, limit, tick)
}
