//! `rfs-paging run`: checks the options, and becomes the program with the preload library.
//!
//! # Concurrency
//! One thread, which `exec` replaces.

use std::{
    error::Error,
    ffi::OsString,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use rfs_paging::{RemotePager, Switches};

use rfs_paging::cli::RunOptions;

const LIBRARY: &str = "librfs_paging_preload.so";

/// Runs the program. Returns only with an error.
pub(crate) fn run(options: RunOptions) -> Result<(), Box<dyn Error>> {
    let library = match &options.library {
        Some(path) => path.clone(),
        None => find_library(&std::env::current_exe()?)?,
    };
    let library = library.canonicalize().map_err(|error| format!("{}: {error}", library.display()))?;
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(format!("{}: LD_PRELOAD takes no path with spaces or colons", library.display()).into());
    }
    check(&options)?;
    let (program, arguments) = options.program.split_first().ok_or("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).envs(environment(&options)).env("LD_PRELOAD", preload_list(&library));
    let error = command.exec();
    Err(format!("{}: {error}", program.display()).into())
}

/// Finds the library in the folder of this program, or in `../lib/rfs` as packages have it.
fn find_library(program: &Path) -> Result<PathBuf, String> {
    let beside = program.with_file_name(LIBRARY);
    let packaged = program.with_file_name("../lib/rfs").join(LIBRARY);
    match [&beside, &packaged].into_iter().find(|path| path.exists()) {
        Some(path) => Ok(path.clone()),
        None => Err(format!("{} is missing: build rfs-paging-preload, or give --library", beside.display())),
    }
}

/// Makes a pager with the options and drops it, so that errors come before the program runs.
fn check(options: &RunOptions) -> Result<(), Box<dyn Error>> {
    let pager =
        super::pager_options(&options.pager)?.read_ahead(options.read_ahead).follow(!options.no_follow);
    RemotePager::connect(&options.pager.server, pager)?;
    Ok(())
}

/// Returns the variables that configure the preload library (`settings.rs` of
/// `rfs-paging-preload`).
fn environment(options: &RunOptions) -> Vec<(&'static str, OsString)> {
    let pager = &options.pager;
    let servers: Vec<String> = pager.server.iter().map(ToString::to_string).collect();
    let mut variables = vec![
        ("RFS_PAGING_LOCAL", pager.local.to_string().into()),
        ("RFS_PAGING_SERVERS", servers.join(",").into()),
        ("RFS_PAGING_REDUNDANCY", pager.redundancy().to_string().into()),
        ("RFS_PAGING_READ_AHEAD", options.read_ahead.to_string().into()),
        ("RFS_PAGING_FOLLOW", OsString::from(if options.no_follow { "0" } else { "1" })),
        ("RFS_PAGING_MIN_SIZE", options.min_size.to_string().into()),
        ("RFS_PAGING_STATS", OsString::from(if options.stats { "1" } else { "0" })),
    ];
    if let Some(small) = options.small {
        variables.push(("RFS_PAGING_SMALL", small.to_string().into()));
    }
    if pager.switches != Switches::default() {
        variables.push(("RFS_PAGING_SWITCHES", pager.switches.to_string().into()));
    }
    if let Some(key) = &pager.key {
        variables.push(("RFS_PAGING_KEY", key.into()));
    }
    variables
}

/// Puts the library before others that are preloaded.
fn preload_list(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}
