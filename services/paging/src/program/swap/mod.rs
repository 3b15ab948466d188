//! `rfs-paging swapon` and `swapoff`: a swap area in the memory of an rfs-server.
//!
//! The area is a file on a mount, and a loop device makes it a block device. Each area has a folder
//! in [`FOLDER`], which has the number of its process in its name and the mount point in it. So
//! another process can end an area whose process was killed.
//!
//! # Concurrency
//! One thread. Signals are events, so none ends the process between two steps.

mod area;
mod error;
mod header;
mod loop_device;
mod mount;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use signal_hook::{
    consts::{SIGCHLD, SIGINT, SIGTERM},
    iterator::Signals,
};

use self::{
    area::{Area, FAILURE},
    mount::PAUSE,
};
use crate::cli::SwapOptions;

/// Where the folders of areas are.
const FOLDER: &str = "/run/rfs-paging";

/// Makes a swap area, and keeps it until a signal comes or the mount ends.
pub(crate) fn on(options: &SwapOptions) -> Result<(), Box<dyn Error>> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can add swap areas: run it as root".into());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGCHLD])?;
    // A process that is swapped out to its own area could not end the area.
    rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::FUTURE)?;
    let folder = Path::new(FOLDER).join(format!("swap-{}", std::process::id()));
    let mut is_stopped = || signals.pending().any(|signal| signal != SIGCHLD);
    let mut area = match Area::make(&folder, options, &mut is_stopped) {
        Ok(area) => area,
        Err(error) => {
            return match area::undo(&folder) {
                Ok(()) => Err(error.into()),
                Err(undo) => Err(format!("{error}; then: {undo}; `rfs-paging swapoff` tries again").into()),
            };
        }
    };
    println!(
        "ready: {} of swap on {} until SIGTERM, Ctrl-C or `rfs-paging swapoff`",
        byte_size::show(area.size()),
        area.device().display()
    );
    loop {
        for signal in signals.wait() {
            let ended = area.mount_ended();
            if signal == SIGCHLD && ended.is_none() {
                continue;
            }
            match (area::undo(&folder), ended) {
                (Ok(()), None) => return Ok(()),
                (Ok(()), Some(status)) => {
                    return Err(format!("rfs-fuse ended ({status}), and with it the swap area").into());
                }
                // Pages may still be in the area, so it stays.
                (Err(error), _) => {
                    eprintln!("rfs-paging: {error}; the swap area stays");
                    fs::write(folder.join(FAILURE), error.to_string())?;
                }
            }
        }
    }
}

/// Ends all swap areas of `rfs-paging swapon`.
pub(crate) fn off() -> Result<(), Box<dyn Error>> {
    let areas = areas(Path::new(FOLDER))?;
    if areas.is_empty() {
        return Err("there is no swap area of rfs-paging swapon".into());
    }
    for (process, folder) in areas {
        if is_running(process) {
            stop(process, &folder)?;
            println!("process {process} has ended its swap area");
        } else {
            println!("process {process} is gone and has left a swap area");
            area::undo(&folder)?;
        }
    }
    Ok(())
}

/// Lets a process end its area, and waits for that.
fn stop(process: u32, folder: &Path) -> Result<(), Box<dyn Error>> {
    let failure = folder.join(FAILURE);
    fs::remove_file(&failure).ok();
    let pid = rustix::process::Pid::from_raw(i32::try_from(process)?).ok_or("not a process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    while folder.exists() {
        if let Ok(reason) = fs::read_to_string(&failure) {
            return Err(format!("process {process}: {reason}; the swap area stays").into());
        }
        if !is_running(process) {
            return area::undo(folder).map_err(Into::into);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Returns the folders of all areas, with the numbers of their processes.
fn areas(root: &Path) -> std::io::Result<Vec<(u32, PathBuf)>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut areas = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("swap-"));
        if let Some(process) = number.and_then(|number| number.parse().ok()) {
            areas.push((process, entry.path()));
        }
    }
    areas.sort_unstable();
    Ok(areas)
}

/// Returns true if a process with this number is an rfs-paging.
fn is_running(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim() == "rfs-paging")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_areas_have_the_number_of_a_process() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(areas(&root.path().join("none")).expect("no error").is_empty());
        for name in ["swap-12", "swap-7", "swap-x", "other"] {
            fs::create_dir(root.path().join(name)).expect("a folder");
        }
        let found: Vec<u32> =
            areas(root.path()).expect("no error").into_iter().map(|(process, _)| process).collect();
        assert_eq!(found, [7, 12]);
        assert!(!is_running(1));
    }
}
