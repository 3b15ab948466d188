//! `rfs-paging swapon` and `swapoff`: a swap area in the memory of an rfs-server.
//!
//! The area is a file on a mount, and a loop device makes it a block device. Each area has a folder
//! in [`FOLDER`], with the mount point in it. The name of the folder has the number of the process
//! and a random number, and the process holds a lock of the folder. So another process can end an
//! area whose process was killed.
//!
//! # Concurrency
//! One thread. Signals are events, so none ends the process between two steps.

mod area;
mod error;
mod header;
mod loop_device;
mod mount;
mod output;

use std::{
    error::Error,
    fs, io,
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2},
    flag,
    iterator::Signals,
};

use self::{
    area::{Area, FAILURE},
    mount::PAUSE,
    output::{say, warn},
};
use rfs_paging::cli::SwapOptions;

/// Where the folders of areas are.
const FOLDER: &str = "/run/rfs-paging";
/// The first kernel that ends a program, and maps no random data, if a read from a swap area fails.
const KERNEL: (u32, u32) = (5, 19);

/// Makes a swap area, and keeps it until a signal comes or the mount ends.
pub(crate) fn on(options: &SwapOptions) -> Result<(), Box<dyn Error>> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can add swap areas: run it as root".into());
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    if version(&release).is_none_or(|version| version < KERNEL) {
        let release = release.trim();
        return Err(format!(
            "swap areas need Linux 5.19, and this is {release}: older kernels give programs random bytes if \
             the server fails"
        )
        .into());
    }
    // Their default effect would end the process, and leave the area.
    for signal in [SIGUSR1, SIGUSR2] {
        flag::register(signal, Arc::<AtomicBool>::default())?;
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD])?;
    // A process that is swapped out to its own area could not end the area.
    rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::FUTURE)?;
    let folder = Path::new(FOLDER).join(format!("swap-{}-{}", std::process::id(), random()?));
    let _lock = area::begin(&folder)?;
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
    say(format_args!(
        "ready: {} of swap on {} until SIGTERM, Ctrl-C or `rfs-paging swapoff`",
        byte_size::show(area.size()),
        area.device().display()
    ));
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
                    warn(format_args!("{error}; the swap area stays"));
                    fs::write(folder.join(FAILURE), error.to_string()).ok();
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
        match area::lock(&folder) {
            Ok(None) => {
                stop(process, &folder)?;
                say(format_args!("process {process} has ended its swap area"));
            }
            Ok(Some(_lock)) => {
                say(format_args!("process {process} is gone and has left a swap area"));
                area::undo(&folder)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot lock {}: {error}", folder.display()).into()),
        }
    }
    Ok(())
}

/// Lets a process end its area, and waits for that.
fn stop(process: u32, folder: &Path) -> Result<(), Box<dyn Error>> {
    let failure = folder.join(FAILURE);
    fs::remove_file(&failure).ok();
    if !is_here(process) {
        let folder = folder.display();
        return Err(format!("the process of {folder} runs in another container: run swapoff there").into());
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(process)?).ok_or("not a process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    while folder.exists() {
        if let Ok(reason) = fs::read_to_string(&failure) {
            return Err(format!("process {process}: {reason}; the swap area stays").into());
        }
        if let Ok(Some(_lock)) = area::lock(folder) {
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
        let numbers = name.to_str().and_then(|name| name.strip_prefix("swap-")?.split_once('-'));
        if let Some(process) = numbers.and_then(|(process, _)| process.parse().ok()) {
            areas.push((process, entry.path()));
        }
    }
    areas.sort_unstable();
    Ok(areas)
}

/// Returns a random number as text.
fn random() -> io::Result<String> {
    let mut bytes = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// Returns the first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.split(|digit: char| !digit.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns true if a process with this number is an rfs-paging. Processes of other containers have
/// other numbers here.
fn is_here(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim() == "rfs-paging")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_areas_have_the_number_of_a_process() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(areas(&root.path().join("none")).expect("no error").is_empty());
        for name in ["swap-12-00f0", "swap-7-1", "swap-5", "swap-x-1", "other"] {
            fs::create_dir(root.path().join(name)).expect("a folder");
        }
        let found: Vec<u32> =
            areas(root.path()).expect("no error").into_iter().map(|(process, _)| process).collect();
        assert_eq!(found, [7, 12]);
        assert!(!is_here(1));
    }

    #[test]
    fn a_folder_has_a_lock_as_long_as_its_process_runs() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("areas").join("swap-1-1");
        let lock = area::begin(&folder).expect("a folder");
        assert!(area::lock(&folder).expect("a folder").is_none());
        assert!(area::begin(&folder).is_err(), "the folder of another area");
        assert!(folder.exists());
        drop(lock);
        assert!(area::lock(&folder).expect("a folder").is_some());
    }

    #[test]
    fn releases_of_kernels_have_an_order() {
        for (release, is_new) in [
            ("6.18.44-x\n", true),
            ("5.19.0\n", true),
            ("5.19-rc1", true),
            ("5.18.9", false),
            ("4.20.1", false),
            ("", false),
        ] {
            assert_eq!(version(release).is_some_and(|version| version >= KERNEL), is_new, "{release}");
        }
    }
}
