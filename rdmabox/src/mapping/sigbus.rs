//! Keeps the process alive when pages of shared memory are lost (SIGBUS).
//!
//! An access to a page of a shared mapping fails with SIGBUS if the file was truncated, or if the
//! kernel cannot provide the page. The handler that [`survive`] installs maps a page of zeros
//! over the lost page, so that the access continues. It also reports a failure: the process must
//! stop using the memory.
//!
//! # Concurrency
//! The handler runs on the thread that accessed the page. It makes only async-signal-safe calls
//! and reads the list of mappings without a lock. It wakes the thread `rdmabox-lost`, which reports
//! the failure.

use std::{
    io, mem, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering},
    },
    thread,
};

use rustix::event::{EventfdFlags, eventfd};

use super::page::page_size;
use crate::failure;

/// Maximum number of watched mappings. Further mappings are not protected.
const MAX_MAPPINGS: usize = 4096;

/// Start and end address of a mapping; zero if the entry is free.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}

static RANGES: [Range; MAX_MAPPINGS] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; MAX_MAPPINGS];
/// Number of entries of `RANGES` that have ever been used.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicBool = AtomicBool::new(false);
/// Descriptor of the eventfd that wakes the reporting thread; -1 before `survive`.
static WAKE: AtomicI32 = AtomicI32::new(-1);
static PAGE: AtomicUsize = AtomicUsize::new(4096);
/// Disposition of SIGBUS before `survive`.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Returns true if a page of shared memory has been lost, and the process has [survived](survive)
/// that. The contents of shared memory are not trustworthy from then on. A request that returned
/// `Ok` may have stored its bytes in a page of this process alone.
pub fn is_lost() -> bool {
    LOST.load(Ordering::Acquire)
}

/// Keeps this process alive when a page of shared memory is lost, and reports the loss as a
/// failure ([`failure::watch`]). SIGBUS keeps its previous disposition until the first call.
///
/// A lost page becomes a private page of zeros of this process, in a host as well as in a client.
/// Requests on it return `Ok`, so check [`is_lost`]. To lose no page, a host calls
/// [`Memory::reserve`](crate::Memory::reserve):
/// [Memory that runs out](crate::guide#memory-that-runs-out).
///
/// # Errors
/// The error of creating the reporting thread or its descriptor, or of installing the handler.
pub fn survive() -> io::Result<()> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    PAGE.store(page_size(), Ordering::Relaxed);
    let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
    let heard = wake.try_clone()?;
    thread::Builder::new().name("rdmabox-lost".into()).spawn(move || {
        let mut count = [0; 8];
        while rustix::io::retry_on_intr(|| rustix::io::read(&heard, &mut count)).is_ok() {
            failure::report(
                "a page of shared memory is lost: its file was shortened, or its file system is full",
            );
        }
    })?;
    // The descriptor is never closed, because the handler may write to it at any time.
    WAKE.store(std::os::fd::IntoRawFd::into_raw_fd(wake), Ordering::Release);
    // SAFETY: both structures are plain data, for which zeros are valid, and outlive the calls. The
    // handler has the signature that SA_SIGINFO requires.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before);
        let _ = BEFORE.set(before);
        let mut action: libc::sigaction = mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Starts to watch a mapping.
pub(crate) fn add(start: usize, len: usize) {
    for (at, range) in RANGES.iter().enumerate() {
        let free = range.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed);
        if free.is_ok() {
            range.end.store(start + len, Ordering::Release);
            HIGHEST.fetch_max(at + 1, Ordering::AcqRel);
            return;
        }
    }
    log::debug!("shared mapping not watched for lost pages: limit of {MAX_MAPPINGS} mappings reached");
}

/// Stops watching a mapping that is about to be unmapped.
pub(crate) fn remove(start: usize) {
    let highest = HIGHEST.load(Ordering::Acquire);
    if let Some(range) = RANGES[..highest].iter().find(|r| r.start.load(Ordering::Acquire) == start) {
        range.end.store(0, Ordering::Release);
        range.start.store(0, Ordering::Release);
    }
}

fn is_watched(address: usize) -> bool {
    let highest = HIGHEST.load(Ordering::Acquire);
    RANGES[..highest].iter().any(|range| {
        let (start, end) = (range.start.load(Ordering::Acquire), range.end.load(Ordering::Acquire));
        start != 0 && (start..end).contains(&address)
    })
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure for the fault; errno's location belongs to this
    // thread.
    let (address, errno) = unsafe { ((*info).si_addr() as usize, *libc::__errno_location()) };
    if is_watched(address) && put_zeros(address) {
        LOST.store(true, Ordering::Release);
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes 8 bytes from a live array; write(2) is async-signal-safe.
        unsafe {
            libc::write(WAKE.load(Ordering::Acquire), one.as_ptr().cast(), one.len());
            *libc::__errno_location() = errno;
        }
        return;
    }
    // Restores the previous disposition; the access is repeated when the handler returns. SAFETY:
    // sigaction(2) is async-signal-safe, and the structures are valid.
    unsafe {
        match BEFORE.get() {
            Some(before) => libc::sigaction(signal, before, ptr::null_mut()),
            None => {
                let default: libc::sigaction = mem::zeroed();
                libc::sigaction(signal, &raw const default, ptr::null_mut())
            }
        };
    }
}

/// Maps a private page of zeros over a lost page. Returns true on success.
fn put_zeros(address: usize) -> bool {
    let page = PAGE.load(Ordering::Relaxed);
    let start = address / page * page;
    // SAFETY: the page belongs to a mapping of this crate, which is accessed by copies and atomics
    // only. It is still mapped, because the failed access borrows the mapping.
    let mapped = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::ExitStatusExt,
        process::{Command, Stdio},
        sync::mpsc,
    };

    use super::*;
    use crate::mapping::memory::Memory;

    const SURVIVES: &str = "RDMABOX_TEST_SURVIVES";

    /// Not a test: a child process that loses pages. With the variable set to "yes" it survives and
    /// exits with status 77.
    #[test]
    fn process_that_loses_pages() {
        let Some(survives) = std::env::var_os(SURVIVES) else { return };
        let (send, failures) = mpsc::channel();
        failure::watch(move |failure| send.send(failure.to_owned()).unwrap());
        if survives == "yes" {
            survive().unwrap();
            survive().unwrap();
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let memory = Memory::of_file(file.try_clone().unwrap()).unwrap();
        memory.write(0, b"there");
        assert!(!is_lost());
        file.set_len(4096).unwrap();
        // A read, a write across two pages, and an atomic.
        let mut bytes = [1; 8];
        memory.read(8192, &mut bytes);
        assert_eq!(bytes, [0; 8]);
        memory.write(5 * 4096 - 4, b"eight ch");
        assert_eq!(memory.load_u64(40 * 4096), 0);
        memory.read(0, &mut bytes);
        assert_eq!(&bytes[..5], b"there");
        assert!(is_lost());
        assert!(failures.recv().unwrap().contains("shared memory is lost"));
        drop(memory);
        std::process::exit(77);
    }

    fn run(survives: &str) -> std::process::ExitStatus {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "mapping::sigbus::tests::process_that_loses_pages"])
            .env(SURVIVES, survives)
            .stdout(Stdio::null())
            .status()
            .unwrap()
    }

    #[test]
    fn a_lost_page_is_reported_as_a_failure_without_a_signal() {
        assert_eq!(run("yes").code(), Some(77));
        assert_eq!(run("no").signal(), Some(libc::SIGBUS), "or there is nothing to survive");
    }
}
