//! Mapped files.

use std::{ffi::c_void, fs::File, io, os::fd::AsRawFd, ptr::null_mut};

use nix::libc;
use rustix::{
    io::{Errno, read},
    mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap},
};

/// A mapping of the beginning of a file. Other processes may change the file meanwhile, so every
/// access copies bytes.
pub(crate) struct Mapping {
    base: *mut c_void,
    len: usize,
}

impl Mapping {
    /// Maps a file that is open to read and write.
    pub(crate) fn new(file: &File, len: usize) -> Mapping {
        Mapping::with(file, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    pub(crate) fn read_only(file: &File, len: usize) -> Mapping {
        Mapping::with(file, len, ProtFlags::READ, MapFlags::SHARED)
    }

    /// Maps a file privately: writes stay in this process.
    pub(crate) fn private(file: &File, len: usize) -> Mapping {
        Mapping::with(file, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }

    /// Maps as [`new`](Self::new), and returns the kernel's error.
    pub(crate) fn tried(file: &File, len: usize) -> Result<Mapping, Errno> {
        Mapping::map(file, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    fn with(file: &File, len: usize, access: ProtFlags, flags: MapFlags) -> Mapping {
        Mapping::map(file, len, access, flags).expect("mapped")
    }

    fn map(file: &File, len: usize, access: ProtFlags, flags: MapFlags) -> Result<Mapping, Errno> {
        // SAFETY: a new mapping without other references. The tests do not touch it behind the end
        // of the file.
        let base = unsafe { mmap(null_mut(), len, access, flags, file, 0) }?;
        Ok(Mapping { base, len })
    }

    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let byte = |at: usize| {
            // SAFETY: inside the mapping.
            unsafe { self.base.cast::<u8>().add(at).read_volatile() }
        };
        (at..at + len).map(byte).collect()
    }

    /// Returns a byte through the kernel: EFAULT instead of SIGBUS.
    pub(crate) fn probe(&self, at: usize) -> Result<u8, Errno> {
        assert!(at < self.len);
        let (reader, writer) = io::pipe().expect("a pipe");
        // SAFETY: inside the mapping. The kernel reads the byte, and returns an error if there is
        // none.
        let written = unsafe { libc::write(writer.as_raw_fd(), self.base.cast::<u8>().add(at).cast(), 1) };
        if written < 0 {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).expect("an error of the kernel's"));
        }
        let mut byte = [0];
        assert_eq!(read(&reader, &mut byte), Ok(1));
        Ok(byte[0])
    }

    /// Writes to the mapping, which must be writable.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: inside the mapping, and no reference points into it.
        unsafe { self.base.cast::<u8>().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn sync(&self) {
        // SAFETY: the range is the mapping.
        unsafe { msync(self.base, self.len, MsyncFlags::SYNC) }.expect("written back");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing uses the mapping after this.
        unsafe { munmap(self.base, self.len) }.expect("unmapped");
    }
}
