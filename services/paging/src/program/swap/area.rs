//! Makes a swap area step by step, and undoes the steps.
//!
//! # Concurrency
//! One thread. [`undo`] finds out which steps were made, so any process may call it.

use std::{
    ffi::CString,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use super::{
    error::{SwapError, os},
    header::{PAGE, header},
    loop_device,
    mount::{Mount, PAUSE},
    output::{say, warn},
};
use rfs_paging::cli::SwapOptions;

/// File in the folder of an area with the reason why the area could not be ended.
pub(super) const FAILURE: &str = "failure";
const MOUNT: &str = "mount";
/// `SWAP_FLAG_PREFER`: the flags have a priority.
const PREFER: i32 = 0x8000;
/// How long the last user of a loop device or of a mount may take to close it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A swap area in use.
#[derive(Debug)]
pub(super) struct Area {
    size: u64,
    device: PathBuf,
    mount: Mount,
}

/// Makes the folder of a new area. Nothing is left after an error.
///
/// Returns the lock that shows other processes that this one runs.
pub(super) fn begin(folder: &Path) -> Result<File, SwapError> {
    make_folder(folder.parent().unwrap_or(folder), true)?;
    make_folder(folder, false)?;
    match lock(folder) {
        Ok(Some(lock)) => Ok(lock),
        outcome => {
            fs::remove_dir(folder).ok();
            let error = outcome.err().unwrap_or_else(|| io::ErrorKind::WouldBlock.into());
            Err(os("lock", folder)(error))
        }
    }
}

/// Takes the lock of an area's folder. `None` if the process of the area runs.
pub(super) fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::open(folder)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Area {
    /// Makes an area in an empty `folder`, and prints each step. After an error or a stop the
    /// caller undoes the steps.
    pub(super) fn make(
        folder: &Path,
        options: &SwapOptions,
        is_stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Area, SwapError> {
        let size = options.size / PAGE as u64 * PAGE as u64;
        let first = header(size).ok_or(SwapError::Size(options.size))?;
        let point = folder.join(MOUNT);
        make_folder(&point, false)?;
        let mount = Mount::start(&point, options, is_stopped)?;
        say(format_args!(
            "mounted {} on {} (rfs-fuse {}, memory locked)",
            options.server,
            point.display(),
            mount.process()
        ));
        let path = point.join(file_name(folder));
        let file = reserve(&path, size, &first)?;
        say(format_args!("reserved {} in {}", byte_size::show(size), path.display()));
        let device =
            loop_device::attach(&file, PAGE as u32).map_err(os("attach a loop device to", &point))?;
        say(format_args!("attached {} with direct I/O", device.display()));
        if is_stopped() {
            return Err(SwapError::Stopped);
        }
        let priority = options.priority.map_or(0, |priority| PREFER | i32::from(priority));
        swapon(&device, priority).map_err(os("swapon", &device))?;
        Ok(Area { size, device, mount })
    }

    /// Returns the bytes of the area, with its header.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn device(&self) -> &Path {
        &self.device
    }

    /// Returns the status of the mount's process if it has ended.
    pub(super) fn mount_ended(&mut self) -> Option<ExitStatus> {
        self.mount.ended()
    }
}

/// Makes a folder that only root may use. It may be there already if `exists` is set.
fn make_folder(path: &Path, exists: bool) -> Result<(), SwapError> {
    DirBuilder::new().recursive(exists).mode(0o700).create(path).map_err(os("mkdir", path))
}

/// Says how to remove a file from a server.
fn how_to_remove(file: &str) -> String {
    format!("the file is {file}: mount the export with rfs-fuse, and remove it there")
}

/// Returns the name of an area's file. It has a random number, as the folder: the server may have
/// areas of other machines.
fn file_name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default();
    format!("rfs-paging-{}", name.to_string_lossy())
}

/// Makes the file of an area, with memory of the server for all of its bytes.
fn reserve(path: &Path, size: u64, first: &[u8; PAGE]) -> Result<File, SwapError> {
    let mut new = OpenOptions::new();
    let file =
        new.read(true).write(true).create_new(true).mode(0o600).open(path).map_err(os("create", path))?;
    // A write that finds no memory at the server would lose a page of a program.
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size)
        .map_err(|error| os("reserve space at the server for", path)(error.into()))?;
    file.write_all_at(first, 0).and_then(|()| file.sync_all()).map_err(os("write", path))?;
    let mut direct = OpenOptions::new();
    direct.read(true).write(true).custom_flags(libc::O_DIRECT).open(path).map_err(os("open", path))
}

/// Ends the area in a folder, or the part of it that was made, and prints each step.
///
/// # Errors
/// [`SwapError::Os`]. The parts that were not undone work as before, and another call may go on.
pub(super) fn undo(folder: &Path) -> Result<(), SwapError> {
    let file = file_name(folder);
    let devices = loop_device::devices_of(&file).map_err(os("list devices in", "/sys/block"))?;
    let had_device = !devices.is_empty();
    for device in devices {
        if is_swap(&device).map_err(os("read", "/proc/swaps"))? {
            swapoff(&device).map_err(os("swapoff", &device))?;
            say(format_args!("ended swapping to {}", device.display()));
        }
        loop_device::detach(&device).map_err(os("detach", &device))?;
        let is_there = || loop_device::devices_of(&file).is_ok_and(|left| left.contains(&device));
        wait_until(|| !is_there()).map_err(os("detach", &device))?;
        say(format_args!("detached {}", device.display()));
    }
    let (point, failure) = (folder.join(MOUNT), folder.join(FAILURE));
    let was_mounted = is_mounted(&point);
    if was_mounted {
        match fs::remove_file(point.join(&file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn(format_args!(
                    "the server may keep the file of the area: {error}; {}",
                    how_to_remove(&file)
                ));
            }
            _ => {}
        }
        let mut last = Ok(());
        // The kernel closes the file of a loop device a moment after its end.
        wait_until(|| {
            last = umount(&point);
            // rfs-fuse may have unmounted at the same time.
            if last.is_err() && !is_mounted(&point) {
                last = Ok(());
            }
            !matches!(&last, Err(error) if error.raw_os_error() == Some(libc::EBUSY))
        })
        .and(last)
        .map_err(os("umount", &point))?;
        say(format_args!("unmounted {}", point.display()));
    }
    if had_device && !was_mounted {
        warn(format_args!("the server keeps the file of the area; {}", how_to_remove(&file)));
    }
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    fs::remove_file(failure).ok();
    for path in [point.as_path(), folder] {
        match fs::remove_dir(path) {
            Err(error) if !absent(&error) => return Err(os("rmdir", path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Waits until a condition holds.
fn wait_until(mut holds: impl FnMut() -> bool) -> io::Result<()> {
    let begin = Instant::now();
    while !holds() {
        if begin.elapsed() > CLOSE_TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Returns true if a file system is mounted on a folder, also if its server is gone.
fn is_mounted(point: &Path) -> bool {
    let is_point = |line: &str| line.split(' ').nth(4).is_some_and(|path| Path::new(path) == point);
    fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| mounts.lines().any(is_point))
}

/// Returns true if a device is in use for swapping.
fn is_swap(device: &Path) -> io::Result<bool> {
    let swaps = fs::read_to_string("/proc/swaps")?;
    Ok(swaps.lines().any(|line| line.split_whitespace().next().is_some_and(|path| Path::new(path) == device)))
}

fn swapon(device: &Path, flags: i32) -> io::Result<()> {
    let path = CString::new(device.as_os_str().as_bytes())?;
    // SAFETY: The path is a C string.
    result(unsafe { libc::swapon(path.as_ptr(), flags) })
}

fn swapoff(device: &Path) -> io::Result<()> {
    let path = CString::new(device.as_os_str().as_bytes())?;
    loop {
        // SAFETY: As for `swapon`.
        match result(unsafe { libc::swapoff(path.as_ptr()) }) {
            // Each signal ends the call, and half of the pages may be back.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn umount(point: &Path) -> io::Result<()> {
    let path = CString::new(point.as_os_str().as_bytes())?;
    // SAFETY: As for `swapon`.
    result(unsafe { libc::umount2(path.as_ptr(), 0) })
}

fn result(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
