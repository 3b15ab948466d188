//! A loop device: a block device whose blocks are those of a file.
//!
//! The device reads and writes the file with direct I/O. Otherwise each block would have a second
//! copy in the page cache, and writing it would need memory when there is none.
//!
//! # Concurrency
//! [`attach`] may run in several processes: each gets a device of its own.

use std::{
    ffi::c_void,
    fs::{self, File, OpenOptions},
    io,
    os::fd::{AsRawFd, RawFd},
    path::{Path, PathBuf},
};

use rustix::ioctl::{self, Ioctl, IoctlOutput, NoArg, Opcode, Setter};

const CONFIGURE: Opcode = 0x4C0A;
const CLEAR: Opcode = 0x4C01;
const GET_FREE: Opcode = 0x4C82;
/// `LO_FLAGS_DIRECT_IO`.
const DIRECT_IO: u32 = 16;
const CONTROL: &str = "/dev/loop-control";
/// Attempts to get a device that another process does not take at the same time.
const ATTEMPTS: u32 = 16;

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Config {
    fn new(file: RawFd, block_size: u32) -> Config {
        let info = Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: DIRECT_IO,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        };
        Config { fd: file as u32, block_size, info, reserved: [0; 8] }
    }
}

/// `LOOP_CTL_GET_FREE`: returns the number of a device.
struct GetFree;

// SAFETY: The request has no argument and returns a number, as `linux/loop.h` says.
unsafe impl Ioctl for GetFree {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(number).map_err(|_| rustix::io::Errno::INVAL)
    }
}

/// Makes a block device of a file that was opened with O_DIRECT. Returns its path.
///
/// # Errors
/// Of the system calls; EOPNOTSUPP if the file does not take direct I/O. Nothing stays attached.
pub(super) fn attach(file: &File, block_size: u32) -> io::Result<PathBuf> {
    let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
    let mut attempt = 1;
    loop {
        // SAFETY: The request is one of the control device.
        let number = unsafe { ioctl::ioctl(&control, GetFree)? };
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        let config = Config::new(file.as_raw_fd(), block_size);
        // SAFETY: The request reads a `loop_config`, and `Config` has its layout.
        match unsafe { ioctl::ioctl(&device, Setter::<CONFIGURE, Config>::new(config)) } {
            Ok(()) if has_direct_io(number) => return Ok(path),
            Ok(()) => {
                detach(&path)?;
                return Err(io::ErrorKind::Unsupported.into());
            }
            Err(rustix::io::Errno::BUSY) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

fn has_direct_io(number: u32) -> bool {
    fs::read_to_string(format!("/sys/block/loop{number}/loop/dio")).is_ok_and(|flag| flag.trim() == "1")
}

/// Ends a loop device. The last user of the device has closed it, or will.
pub(super) fn detach(device: &Path) -> io::Result<()> {
    let device = File::open(device)?;
    // SAFETY: The request has no argument.
    unsafe { ioctl::ioctl(&device, NoArg::<CLEAR>::new()) }.map_err(io::Error::from)
}

/// Returns the loop devices whose files have a name. The folder of a file does not count, because
/// the kernel does not tell it after the end of the mount.
pub(super) fn devices_of(name: &str) -> io::Result<Vec<PathBuf>> {
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        if has_name(&file, name) {
            devices.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(devices)
}

/// Returns true if the file of a loop device has a name. The kernel marks deleted files.
fn has_name(file: &str, name: &str) -> bool {
    let path = file.trim_end();
    let path = path.strip_suffix("(deleted)").unwrap_or(path).trim_end();
    Path::new(path).file_name().is_some_and(|last| last == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_lengths_of_the_kernel() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }

    #[test]
    fn a_device_is_found_by_the_name_of_its_file() {
        for file in ["/run/x/mount/swap-1\n", "/swap-1\n", "/swap-1 (deleted)\n"] {
            assert!(has_name(file, "swap-1"), "{file}");
        }
        for file in ["", "\n", "/swap-1/other\n", "/swap-11\n"] {
            assert!(!has_name(file, "swap-1"), "{file:?}");
        }
        assert!(devices_of("no file has this name").expect("a list").is_empty());
    }
}
