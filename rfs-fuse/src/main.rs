//! The program `rfs-fuse`: mounts the memory of an rfs-server. See `rfs-fuse --help`.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    rfs_fuse::run::main(&rfs_fuse::cli::Args::parse())
}
