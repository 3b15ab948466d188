//! `rfs-fuse status [DIR | --all]`: asks running mounts for their status.
//!
//! The mount table says which device number a directory has, and that names the control socket of
//! the mount. So the command waits for no mount that hangs.
//!
//! # Concurrency
//! The main thread, and a thread with a time limit that resolves the name of a directory.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{CommandFactory, Parser};
use rfs_status::{
    control::{ASK_LIMIT, AskError, STATUS, ask},
    watch::{ShowOptions, join_interval, show},
};

use super::MountStatus;
use crate::{
    cli::parse,
    mount::{
        control,
        table::{self, Entry},
        within,
    },
};

/// Exit code if a mount has not answered.
const FAILED: u8 = 1;
/// Limit of the time to resolve the name of a directory: a mount on the way may hang.
const RESOLVE_LIMIT: Duration = Duration::from_secs(2);
/// Beginning of the type of a FUSE mount in the mount table.
const FUSE: &str = "fuse.";

/// Shows the state of a mount: its session, requests, latencies, and waiting operations.
///
/// The mount answers root and its own user, on a control socket. The command does not touch the
/// mount itself.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-fuse status",
    bin_name = "rfs-fuse status",
    max_term_width = 110,
    after_help = "Exit status: 0 if all mounts have answered, 1 if not, 2 for an invalid command line."
)]
struct StatusArgs {
    /// The directory of the mount [default: all mounts of this program]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Show all mounts of this program that this user may ask
    #[arg(long, conflicts_with = "directory")]
    all: bool,

    #[command(flatten)]
    show: ShowOptions,
}

/// Returns the command line of the command.
pub(crate) fn command_line() -> clap::Command {
    StatusArgs::command().name("status")
}

/// Asks mounts, and prints their answers. Returns the exit code.
pub(crate) fn main(arguments: &[OsString]) -> u8 {
    let args = match parse::<StatusArgs>(join_interval(arguments)) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match &args.directory {
        Some(directory) => show_one(directory, &args.show),
        None => show_all(&args.show),
    }
}

fn show_one(directory: &Path, options: &ShowOptions) -> u8 {
    let entry = match find(directory) {
        Ok(entry) => entry,
        Err(why) => return fail(&format!("{}: {why}", directory.display())),
    };
    let render = |now: &MountStatus, before: Option<&MountStatus>| now.render(before);
    match show(options, || ask_mount(&entry), render) {
        Ok(()) => 0,
        Err(e) => fail(&format!("mount on {}: {e}", directory.display())),
    }
}

fn show_all(options: &ShowOptions) -> u8 {
    let mut all_answer = true;
    let mut ask_all = || -> Result<String, AskError> {
        let answers: Vec<serde_json::Value> = mounts().iter().map(answer_or_error).collect();
        all_answer = answers.iter().all(|answer| answer.get("error").is_none());
        Ok(serde_json::Value::Array(answers).to_string())
    };
    let render = |now: &Vec<MountStatus>, before: Option<&Vec<MountStatus>>| {
        if now.is_empty() {
            return "no mount of rfs-fuse\n".to_owned();
        }
        let earlier = |status: &MountStatus| before?.iter().find(|other| other.device == status.device);
        let texts: Vec<String> = now.iter().map(|status| status.render(earlier(status))).collect();
        texts.join("\n")
    };
    match show::<Vec<MountStatus>>(options, &mut ask_all, render) {
        Ok(()) if all_answer => 0,
        Ok(()) => FAILED,
        Err(e) => fail(&e.to_string()),
    }
}

fn fail(what: &str) -> u8 {
    eprintln!("rfs-fuse status: {what}");
    FAILED
}

/// Returns the answer of a mount, or a status with the error.
fn answer_or_error(entry: &Entry) -> serde_json::Value {
    let answer = ask_mount(entry).and_then(|answer| {
        serde_json::from_str(&answer).map_err(|e| AskError::Foreign { why: e.to_string() })
    });
    answer.unwrap_or_else(|e| {
        serde_json::json!({
            "mount_point": entry.path.to_string_lossy(),
            "device": entry.device,
            "error": e.to_string(),
        })
    })
}

/// Asks the mount of an entry of the mount table.
fn ask_mount(entry: &Entry) -> Result<String, AskError> {
    ask(&control_path(entry), STATUS, ASK_LIMIT)
}

/// Returns the path of a mount's control socket.
pub(crate) fn control_path(entry: &Entry) -> PathBuf {
    let paths = control::paths(entry.user.unwrap_or(0), &entry.device);
    paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]).clone()
}

/// Returns the mounts of this program: those that have a control socket, and those that have the
/// type of this program.
fn mounts() -> Vec<Entry> {
    let is_own = |entry: &Entry| {
        let is_usual = entry.fs_type == "fuse.rfs-fuse";
        entry.fs_type.starts_with(FUSE)
            && (is_usual
                || control::paths(entry.user.unwrap_or(0), &entry.device).iter().any(|path| path.exists()))
    };
    let mut mounts: Vec<Entry> = Vec::new();
    for entry in table::all().into_iter().filter(is_own) {
        // A mount that is bound to several directories is one mount.
        if mounts.iter().all(|other| other.device != entry.device) {
            mounts.push(entry);
        }
    }
    mounts
}

/// Finds the mount on a directory.
pub(crate) fn find(directory: &Path) -> Result<Entry, String> {
    let absolute = std::path::absolute(directory).map_err(|e| e.to_string())?;
    // Most names need no file system, which may hang.
    let plain: PathBuf = absolute.components().collect();
    let found = table::topmost(&plain).or_else(|| {
        let resolved = within(RESOLVE_LIMIT, move || std::fs::canonicalize(plain));
        table::topmost(&resolved?.ok()?)
    });
    match found {
        Some(entry) if entry.fs_type.starts_with(FUSE) => Ok(entry),
        Some(entry) => {
            Err(format!("a file system of type {} is mounted there, none of rfs-fuse", entry.fs_type))
        }
        None => Err("nothing is mounted there: rfs-fuse status --all lists the mounts".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        use clap::CommandFactory;
        StatusArgs::command().debug_assert();
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(StatusArgs::try_parse_from(words("status --all /mnt")).is_err());
        let parsed = StatusArgs::try_parse_from(join_interval(&words("status --watch /mnt"))).unwrap();
        assert_eq!(parsed.directory, Some("/mnt".into()));
    }

    #[test]
    fn only_fuse_mounts_are_asked() {
        assert!(find(Path::new("/proc")).unwrap_err().contains("of type proc"));
        assert!(find(Path::new("/proc/self/")).unwrap_err().contains("nothing is mounted there"));
    }
}
