//! `rdmabox-bench`: see `rdmabox-bench --help`.

use std::process::ExitCode;

use rdmabox_bench::{Result, cli::Request, program};

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("rdmabox-bench: {err}");
            ExitCode::from(err.exit_code())
        }
    }
}

fn start() -> Result<()> {
    match Request::from_command_line()? {
        Some(request) => program::carry_out(request),
        None => Ok(()),
    }
}
