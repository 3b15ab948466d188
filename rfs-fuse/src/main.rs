//! The program `rfs-fuse`: mounts the memory of an rfs-server. See `rfs-fuse --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rfs_fuse::run::main(option_env!("RFS_COMMIT"))
}
