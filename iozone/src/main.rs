//! `rfs-iozone`: measures rfs. Run it through `iozone/run`, which installs and builds the required
//! programs.

use std::process::ExitCode;

use iozone::plan::Cli;
use program_version::Build;

/// The build that `--version` prints.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("RFS_COMMIT"),
    protocols: &[("runtime protocol", rdmabox::PROTOCOL)],
};

fn main() -> ExitCode {
    match BUILD.parse::<Cli>().command.perform() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("rfs-iozone: {err}");
            ExitCode::from(err.exit_code())
        }
    }
}
