//! Asynchronous I/O of the kernel (libaio).

use std::{fs::File, io, os::fd::AsRawFd};

use nix::libc;

/// IOCB_CMD_PREAD and IOCB_CMD_PWRITE of linux/aio_abi.h.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// A context of asynchronous I/O (io_setup(2)).
pub(crate) struct Aio(libc::c_ulong);

impl Aio {
    /// Creates a context for `depth` concurrent requests.
    pub(crate) fn new(depth: usize) -> Aio {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        assert_eq!(made, 0, "io_setup: {}", io::Error::last_os_error());
        Aio(context)
    }

    /// Writes all of `bytes` concurrently, in chunks of `len` bytes. Returns when all writes are
    /// complete.
    pub(crate) fn write(&self, file: &File, bytes: &[u8], len: usize) {
        // SAFETY: the bytes outlive the call.
        unsafe { self.submit(PWRITE, file, (bytes.as_ptr() as u64, bytes.len()), len) };
    }

    /// Fills `bytes` concurrently, in chunks of `len` bytes. Returns when all reads are complete.
    pub(crate) fn read(&self, file: &File, bytes: &mut [u8], len: usize) {
        // SAFETY: the bytes outlive the call, and the caller has lent them exclusively.
        unsafe { self.submit(PREAD, file, (bytes.as_mut_ptr() as u64, bytes.len()), len) };
    }

    /// Makes a request for each chunk of the memory, and waits for all of them.
    ///
    /// # Safety
    /// The memory must be valid during the call, and not in use if it is read into.
    unsafe fn submit(&self, opcode: u16, file: &File, (memory, total): (u64, usize), len: usize) {
        let control = |at: usize| {
            // SAFETY: the structure consists of numbers.
            let mut control: libc::iocb = unsafe { std::mem::zeroed() };
            control.aio_lio_opcode = opcode;
            control.aio_fildes = file.as_raw_fd().cast_unsigned();
            control.aio_buf = memory + at as u64;
            control.aio_nbytes = len.min(total - at) as u64;
            control.aio_offset = at as i64;
            control
        };
        let mut controls: Vec<libc::iocb> = (0..total).step_by(len).map(control).collect();
        let mut pointers: Vec<*mut libc::iocb> = controls.iter_mut().map(std::ptr::from_mut).collect();
        let count = pointers.len();
        // SAFETY: the memory outlives the requests, because this function waits for them below.
        let started = unsafe { libc::syscall(libc::SYS_io_submit, self.0, count, pointers.as_mut_ptr()) };
        assert_eq!(started, count as i64, "io_submit: {}", io::Error::last_os_error());
        // Each event has four words; the third one is the result.
        let mut events = vec![[0_i64; 4]; count];
        let none = std::ptr::null::<libc::timespec>();
        let room = events.as_mut_ptr();
        // SAFETY: the buffer has room for that many events.
        let done = unsafe { libc::syscall(libc::SYS_io_getevents, self.0, count, count, room, none) };
        assert_eq!(done, count as i64, "io_getevents: {}", io::Error::last_os_error());
        assert!(events.iter().all(|event| event[2] == len as i64), "{events:?}");
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: no request is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
