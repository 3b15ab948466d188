//! userfaultfd(2) in missing and write-protect mode.
//!
//! The crate `userfaultfd` has neither protected copies (`UFFDIO_COPY_MODE_WP`) nor
//! `UFFDIO_POISON`, and needs libclang to build, so this module issues the requests itself.
//!
//! # Concurrency
//! [`Uffd`] has no state but its descriptor. The fault thread is its only reader.

use std::{
    ffi::c_void,
    fs::OpenOptions,
    io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
};

use linux_raw_sys::general::{
    UFFD_API, UFFD_EVENT_PAGEFAULT, UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_POISON,
    UFFD_FEATURE_THREAD_ID, UFFD_PAGEFAULT_FLAG_WP, UFFD_PAGEFAULT_FLAG_WRITE, UFFDIO, UFFDIO_COPY_MODE_WP,
    UFFDIO_REGISTER_MODE_MISSING, UFFDIO_REGISTER_MODE_WP, uffd_msg, uffdio_api, uffdio_copy, uffdio_poison,
    uffdio_range, uffdio_register, uffdio_writeprotect, uffdio_zeropage,
};
use rustix::{
    ioctl::{self, Ioctl, IoctlOutput, Opcode, Updater, opcode},
    mm::UserfaultfdFlags,
};

const GROUP: u8 = UFFDIO as u8;
const API: Opcode = opcode::read_write::<uffdio_api>(GROUP, 0x3f);
const REGISTER: Opcode = opcode::read_write::<uffdio_register>(GROUP, 0x00);
const UNREGISTER: Opcode = opcode::read::<uffdio_range>(GROUP, 0x01);
const WAKE: Opcode = opcode::read::<uffdio_range>(GROUP, 0x02);
const COPY: Opcode = opcode::read_write::<uffdio_copy>(GROUP, 0x03);
const ZEROPAGE: Opcode = opcode::read_write::<uffdio_zeropage>(GROUP, 0x04);
const WRITEPROTECT: Opcode = opcode::read_write::<uffdio_writeprotect>(GROUP, 0x06);
const POISON: Opcode = opcode::read_write::<uffdio_poison>(GROUP, 0x08);
/// Requests on `/dev/userfaultfd`.
const NEW: Opcode = opcode::none(0xAA, 0x00);

const WRITEPROTECT_MODE_WP: u64 = 1;
/// Events of one read.
const EVENTS: usize = 64;
const DEVICE: &str = "/dev/userfaultfd";

/// A fault that the kernel reports. The thread that caused it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Address of the access.
    pub(crate) address: usize,
    pub(crate) kind: FaultKind,
    /// The thread that caused it, if the kernel tells.
    pub(crate) thread: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// A load from a page that is not there.
    Load,
    /// A store to a page that is not there.
    Store,
    /// A store to a page that is protected.
    Protected,
}

/// A userfaultfd.
#[derive(Debug)]
pub(crate) struct Uffd {
    fd: OwnedFd,
    has_poison: bool,
}

/// `USERFAULTFD_IOC_NEW`: takes flags, and returns a descriptor.
struct NewUffd(u32);

// SAFETY: The request takes an integer and returns a descriptor, as `linux/userfaultfd.h` says.
unsafe impl Ioctl for NewUffd {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.0 as usize as *mut c_void
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: The request succeeded, so its result is a new descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

fn flags() -> UserfaultfdFlags {
    UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK
}

/// Opens a descriptor by the system call or, for users without that right, by the device.
fn new_fd() -> io::Result<OwnedFd> {
    // SAFETY: The descriptor is only used by this module, for regions of the pager.
    let by_call = unsafe { rustix::mm::userfaultfd(flags()) };
    let Err(refused) = by_call else { return Ok(by_call?) };
    let Ok(device) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
        return Err(refused.into());
    };
    // SAFETY: `NewUffd` describes the request.
    Ok(unsafe { ioctl::ioctl(&device, NewUffd(flags().bits()))? })
}

/// Performs the handshake, and returns the features that the kernel has.
fn handshake(fd: &OwnedFd, features: u64) -> io::Result<u64> {
    let mut api = uffdio_api { api: UFFD_API.into(), features, ioctls: 0 };
    // SAFETY: `UFFDIO_API` reads and writes a `uffdio_api`.
    unsafe { ioctl::ioctl(fd, Updater::<API, _>::new(&mut api))? };
    Ok(api.features)
}

impl Uffd {
    /// Opens a userfaultfd that reports stores to protected pages.
    ///
    /// # Errors
    /// `PermissionDenied` if the process may not, `Unsupported` if the kernel is too old.
    pub(crate) fn open() -> io::Result<Uffd> {
        // Features can be set once for a descriptor, so a first one asks for them.
        let present = handshake(&new_fd()?, 0)?;
        let protection = u64::from(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
        if present & protection == 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel has no write-protect mode (5.7)",
            ));
        }
        let poison = present & u64::from(UFFD_FEATURE_POISON);
        let threads = present & u64::from(UFFD_FEATURE_THREAD_ID);
        let fd = new_fd()?;
        handshake(&fd, protection | poison | threads)?;
        Ok(Uffd { fd, has_poison: poison != 0 })
    }

    /// Returns true if [`poison`](Self::poison) works.
    pub(crate) fn has_poison(&self) -> bool {
        self.has_poison
    }

    /// Behaves as on a kernel without `UFFDIO_POISON`.
    #[cfg(test)]
    pub(crate) fn forget_poison(&mut self) {
        self.has_poison = false;
    }

    /// Returns a second descriptor, which shows whether faults wait.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Reports faults in a range from now on.
    pub(crate) fn register(&self, start: usize, len: usize) -> io::Result<()> {
        let mode = u64::from(UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
        let mut register = uffdio_register { range: range(start, len), mode, ioctls: 0 };
        // SAFETY: `UFFDIO_REGISTER` reads and writes a `uffdio_register`.
        unsafe { ioctl::ioctl(&self.fd, Updater::<REGISTER, _>::new(&mut register)) }.map_err(io::Error::from)
    }

    /// Reports no more faults in a range. Waiting threads go on.
    pub(crate) fn unregister(&self, start: usize, len: usize) -> io::Result<()> {
        let mut range = range(start, len);
        // SAFETY: `UFFDIO_UNREGISTER` reads a `uffdio_range`.
        unsafe { ioctl::ioctl(&self.fd, Updater::<UNREGISTER, _>::new(&mut range)) }.map_err(io::Error::from)
    }

    /// Lets threads that wait for a fault in a range try again.
    pub(crate) fn wake(&self, start: usize, len: usize) -> io::Result<()> {
        let mut range = range(start, len);
        // SAFETY: `UFFDIO_WAKE` reads a `uffdio_range`.
        unsafe { ioctl::ioctl(&self.fd, Updater::<WAKE, _>::new(&mut range)) }.map_err(io::Error::from)
    }

    /// Fills an absent page, protected or not, and wakes the threads that wait for it.
    pub(crate) fn copy(&self, page: usize, bytes: &[u8], protect: bool) -> io::Result<()> {
        let mode = if protect { u64::from(UFFDIO_COPY_MODE_WP) } else { 0 };
        repeat(|| {
            let (dst, src) = (page as u64, bytes.as_ptr() as u64);
            let mut copy = uffdio_copy { dst, src, len: bytes.len() as u64, mode, copy: 0 };
            // SAFETY: `UFFDIO_COPY` reads and writes a `uffdio_copy`. It fills absent pages only.
            unsafe { ioctl::ioctl(&self.fd, Updater::<COPY, _>::new(&mut copy)) }
        })
    }

    /// Fills an absent page with zeros, and wakes the threads that wait for it.
    pub(crate) fn zero(&self, page: usize, len: usize) -> io::Result<()> {
        repeat(|| {
            let mut zero = uffdio_zeropage { range: range(page, len), mode: 0, zeropage: 0 };
            // SAFETY: `UFFDIO_ZEROPAGE` reads and writes a `uffdio_zeropage`.
            unsafe { ioctl::ioctl(&self.fd, Updater::<ZEROPAGE, _>::new(&mut zero)) }
        })
    }

    /// Protects the present pages of a range. When it returns, each later store faults.
    pub(crate) fn protect(&self, start: usize, len: usize) -> io::Result<()> {
        self.set_protection(start, len, WRITEPROTECT_MODE_WP)
    }

    /// Lifts the protection of a range, and wakes the threads that wait for it.
    pub(crate) fn unprotect(&self, start: usize, len: usize) -> io::Result<()> {
        self.set_protection(start, len, 0)
    }

    fn set_protection(&self, start: usize, len: usize, mode: u64) -> io::Result<()> {
        repeat(|| {
            let mut protect = uffdio_writeprotect { range: range(start, len), mode };
            // SAFETY: `UFFDIO_WRITEPROTECT` reads a `uffdio_writeprotect`.
            unsafe { ioctl::ioctl(&self.fd, Updater::<WRITEPROTECT, _>::new(&mut protect)) }
        })
    }

    /// Makes accesses to an absent page raise SIGBUS, and wakes the threads that wait for it.
    pub(crate) fn poison(&self, page: usize, len: usize) -> io::Result<()> {
        repeat(|| {
            let mut poison = uffdio_poison { range: range(page, len), mode: 0, updated: 0 };
            // SAFETY: `UFFDIO_POISON` reads and writes a `uffdio_poison`.
            unsafe { ioctl::ioctl(&self.fd, Updater::<POISON, _>::new(&mut poison)) }
        })
    }

    /// Appends the faults that wait for an answer, at most 64 of them. Does not block.
    pub(crate) fn read_faults(&self, faults: &mut Vec<Fault>) -> io::Result<()> {
        let mut bytes = [0_u8; EVENTS * size_of::<uffd_msg>()];
        let len = match rustix::io::read(&self.fd, &mut bytes) {
            Ok(len) => len,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        faults.extend(bytes[..len].chunks_exact(size_of::<uffd_msg>()).filter_map(decode));
        Ok(())
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn range(start: usize, len: usize) -> uffdio_range {
    uffdio_range { start: start as u64, len: len as u64 }
}

/// Repeats a request while the address space is being changed by another thread.
fn repeat(mut request: impl FnMut() -> rustix::io::Result<()>) -> io::Result<()> {
    loop {
        match request() {
            Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
            other => return Ok(other?),
        }
    }
}

/// Decodes a message of the kernel: the event in the first byte, flags at 8, the address at 16, the
/// thread at 24.
fn decode(message: &[u8]) -> Option<Fault> {
    let word = |at: usize| Some(u64::from_ne_bytes(message.get(at..at + 8)?.try_into().ok()?));
    if u32::from(*message.first()?) != UFFD_EVENT_PAGEFAULT {
        return None;
    }
    let (flags, address) = (word(8)?, word(16)?);
    let kind = if flags & u64::from(UFFD_PAGEFAULT_FLAG_WP) != 0 {
        FaultKind::Protected
    } else if flags & u64::from(UFFD_PAGEFAULT_FLAG_WRITE) != 0 {
        FaultKind::Store
    } else {
        FaultKind::Load
    };
    // Without the feature the number is 0.
    let thread = Some(word(24)? as u32).filter(|thread| *thread != 0);
    Some(Fault { address: address as usize, kind, thread })
}
