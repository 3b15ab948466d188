//! The program `rfs-server`: lends memory as a file system. See `rfs-server --help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rfs_server::run::main(option_env!("RFS_COMMIT"))
}
