//! An owned mapping of memory, private or shareable.
//!
//! Threads, processes and devices may access the bytes concurrently. So the bytes are accessed
//! only by volatile-like copies and by atomics, never as a slice. Racing copies may mix old and
//! new bytes, as with any remote memory, but do no other harm.
//!
//! # Concurrency
//! Any thread may call any method. `pages` has the use of the lock `pins`.

pub(super) mod pages;

use std::{
    alloc::{Layout, handle_alloc_error},
    ffi::CString,
    fmt,
    fs::{File, Metadata},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;

use super::{
    error::{MAX_NAME, MemoryError, os},
    first_writes::FirstWrites,
    landlock,
    page::page_size,
    sigbus,
};

/// Smallest mapping in bytes for which huge pages are requested.
pub(crate) const HUGE: usize = 2 << 20;
/// Smallest peer memory in bytes for which first writes are tracked.
const LARGE: usize = 16 << 20;

/// A mapping of memory. The drop unmaps it; outstanding requests keep it alive through their
/// region. Peers and devices may change the bytes at any time, so the mapping is never exposed as a
/// slice. A program reads and writes it by copies and by atomics.
///
/// | made by | exports to local clients | the bytes outlive |
/// |-|-|-|
/// | [`private`](Self::private) | no, only over TCP and RDMA | nothing |
/// | [`shared`](Self::shared) | yes | this process, while a client maps them |
/// | [`of_file`](Self::of_file) | yes | this process; the machine, if the file is on a disk |
///
/// ```
/// use rdmabox::Memory;
///
/// let memory = Memory::shared("readings", 4096)?;
/// memory.write(8, b"hello");
/// let mut back = [0; 5];
/// memory.read(8, &mut back);
/// assert_eq!(&back, b"hello");
/// assert_eq!(memory.load_u64(0), 0);
/// # Ok::<(), rdmabox::MemoryError>(())
/// ```
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
    /// Descriptor for peers that may write, if it is not a duplicate of `fd`.
    for_peers: Option<OwnedFd>,
    writable: bool,
    /// Number of pins. Held shared while pages are discarded.
    pins: RwLock<usize>,
    /// Tracker of first writes; present for large writable mappings of a peer's memory.
    pub(crate) first_writes: Option<FirstWrites>,
}

// SAFETY: the mapping is plain bytes without thread affinity. Access uses copies and atomics on
// raw pointers, so sharing it creates no Rust reference to mutable memory.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len).field("shareable", &self.fd.is_some()).finish()
    }
}

impl Memory {
    /// Maps zeroed anonymous private memory. It can be the local side of any request and a target
    /// for peers over a network, but not for peers that map it.
    ///
    /// The kernel provides each page at its first use, so a length that the machine does not have
    /// is no error here ([why](crate::guide#memory-that-runs-out)).
    ///
    /// # Errors
    /// [`MemoryError::InvalidLength`] for no bytes. [`MemoryError::Os`] if the address space of the
    /// process has no room for the mapping.
    pub fn private(len: usize) -> Result<Memory, MemoryError> {
        map(None, len, true)
    }

    /// Maps whole pages of zeroed private memory for `len` bytes. Aborts the process if memory is
    /// exhausted, as any allocation does.
    pub(crate) fn private_or_abort(len: usize) -> Memory {
        let len = len.next_multiple_of(page_size());
        Memory::private(len)
            .unwrap_or_else(|_| handle_alloc_error(Layout::array::<u8>(len).unwrap_or(Layout::new::<u8>())))
    }

    /// Creates zeroed shareable memory: a memfd called `name` whose size is sealed. The name is for
    /// people, in `/proc/PID/maps`. Several memories can have one name.
    ///
    /// The kernel provides each page at its first use, so a length that the machine does not have
    /// is no error here. Without a free page, the process that uses it is killed:
    /// [`reserve`](Self::reserve) takes all pages beforehand
    /// ([Memory that runs out](crate::guide#memory-that-runs-out)).
    ///
    /// # Errors
    /// [`MemoryError::InvalidLength`] for no bytes. [`MemoryError::InvalidName`] for a name of more
    /// than 249 bytes, or with a NUL byte. [`MemoryError::Os`] if the process has no descriptors or
    /// no address space left.
    pub fn shared(name: &str, len: usize) -> Result<Memory, MemoryError> {
        check_len(len as u64)?;
        let invalid = || MemoryError::InvalidName { name: name.into() };
        if name.len() > MAX_NAME {
            return Err(invalid());
        }
        let name = CString::new(name).map_err(|_| invalid())?;
        // SAFETY: `name` is a NUL-terminated string that outlives the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(os("memfd_create"));
        }
        // SAFETY: `fd` is a fresh descriptor that no other object owns.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len as u64).map_err(|source| MemoryError::Os { what: "ftruncate", source })?;
        // A peer with a read-only descriptor could reopen the file through /proc, for writing if
        // its mode allows.
        let read_only = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        file.set_permissions(read_only).map_err(|source| MemoryError::Os { what: "fchmod", source })?;
        // SAFETY: plain fcntl on an open descriptor.
        let sealed = unsafe {
            libc::fcntl(
                file.as_raw_fd(),
                libc::F_ADD_SEALS,
                libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL,
            )
        };
        if sealed < 0 {
            return Err(os("fcntl(F_ADD_SEALS)"));
        }
        map(Some(file.into()), len, true)
    }

    /// Maps a whole file as shareable memory. The bytes outlive the mapping and the process. The
    /// file is on a tmpfs or any other file system that supports shared mappings.
    ///
    /// A process that may write to the file could truncate it; an access beyond its end then raises
    /// SIGBUS. So only its owner should be able to write to the file. Peers cannot truncate it
    /// through their descriptor if the kernel has Landlock with truncation (Linux 6.2).
    ///
    /// A sparse file on a full file system raises SIGBUS as well, in the process that first uses a
    /// page. Over shared memory this is a local client, and over TCP the host. Call
    /// [`reserve`](Self::reserve) before you export the memory ([Memory that runs
    /// out](crate::guide#memory-that-runs-out)).
    ///
    /// # Errors
    /// [`MemoryError::InvalidLength`] for an empty file. [`MemoryError::Os`] if the file cannot be
    /// mapped for reading and writing.
    pub fn of_file(file: File) -> Result<Memory, MemoryError> {
        let len = file.metadata().map_err(|source| MemoryError::Os { what: "fstat", source })?.len();
        let len = check_len(len)?;
        let for_peers = landlock::reopen(file.as_fd());
        let mut memory = map(Some(file.into()), len, true)?;
        memory.for_peers = for_peers
            .inspect_err(|e| {
                log::warn!(
                    "a local client that maps the memory can truncate its file, which kills the server: \
                     the kernel cannot restrict truncation (Landlock, Linux 6.2): {e}"
                );
            })
            .ok();
        Ok(memory)
    }

    /// Maps memory that a peer passed. A truncation of the memory would turn a later access into
    /// SIGBUS. So only users that could kill this process anyway may be able to truncate it. The
    /// descriptor must be a memfd that is sealed against shrinking, or a file of this user or root.
    /// No other user may have the right to write to the file.
    ///
    /// # Errors
    /// [`MemoryError::BadHandle`] if the descriptor is not as announced, or `len` is zero.
    /// [`MemoryError::Os`] if it cannot be mapped.
    pub fn from_peer(fd: OwnedFd, len: usize, writable: bool) -> Result<Memory, MemoryError> {
        if len == 0 {
            return Err(MemoryError::BadHandle("no bytes to map"));
        }
        let file = File::from(fd);
        let meta = file.metadata().map_err(|source| MemoryError::Os { what: "fstat", source })?;
        // SAFETY: plain fcntl on an open descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let sealed = seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        if !sealed && !is_trusted_owner(&meta) {
            return Err(MemoryError::BadHandle("not sealed against shrinking"));
        }
        let size = meta.len();
        if size < len as u64 {
            return Err(MemoryError::BadHandle("shorter than announced"));
        }
        let mut memory = map(Some(file.into()), len, writable)?;
        // The mapping suffices in most cases. Keeping a descriptor per region and peer would use
        // too many.
        let fd = memory.fd.take();
        if writable && len >= LARGE {
            memory.first_writes = fd.and_then(|fd| FirstWrites::new(fd.into(), len));
        }
        Ok(memory)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the mapping has no bytes, which never happens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the virtual address of the first byte.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the descriptor of shareable memory, `None` for other memory.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }

    /// Returns a new descriptor for a peer, with write access if `writable`.
    pub(crate) fn peer_fd(&self, writable: bool) -> Result<OwnedFd, MemoryError> {
        let fd = self.fd.as_ref().ok_or(MemoryError::BadHandle("the memory is private"))?;
        if writable {
            return self
                .for_peers
                .as_ref()
                .unwrap_or(fd)
                .try_clone()
                .map_err(|source| MemoryError::Os { what: "dup", source });
        }
        // The file is opened again, because a duplicate would have write access.
        File::open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
            .map(OwnedFd::from)
            .map_err(|source| MemoryError::Os { what: "open(/proc/self/fd)", source })
    }

    /// Returns false for a read-only view of a peer's memory.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// If the range lies outside the mapping, or the mapping is read-only. Callers check untrusted
    /// ranges first.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(self.writable, "write to a read-only mapping");
        self.check(offset, data.len());
        // SAFETY: the range was checked, and a private slice cannot overlap the mapping.
        unsafe { copy(data.as_ptr(), self.base.as_ptr().add(offset), data.len()) }
    }

    /// Copies bytes from `offset` into `out`.
    ///
    /// # Panics
    /// If the range lies outside the mapping.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: the range was checked, and an exclusive slice cannot overlap the mapping.
        unsafe { copy(self.base.as_ptr().add(offset), out.as_mut_ptr(), out.len()) }
    }

    /// Zeroes a range.
    ///
    /// # Panics
    /// If the range lies outside the mapping, or the mapping is read-only.
    pub fn zero(&self, offset: usize, len: usize) {
        assert!(self.writable, "write to a read-only mapping");
        self.check(offset, len);
        // SAFETY: the range was checked.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(offset), 0, len) }
    }

    /// Returns the aligned 8-byte word at `offset` for atomic access by any thread, process or
    /// device.
    ///
    /// To see the bytes that a client published by a list or an atomic, load the word with
    /// [`Acquire`](Ordering::Acquire), then read the data. [`load_u64`](Self::load_u64) loads with
    /// `Acquire`. To publish data to clients, write the data, then store the word with
    /// [`Release`](Ordering::Release). A compare-and-swap or another change does both with
    /// [`AcqRel`](Ordering::AcqRel). A `Relaxed` access pairs with nothing. The atomics of clients
    /// are atomic with these if the scope is [`Global`](crate::verbs::AtomicScope::Global)
    /// ([`HostHandle::atomic_scope`](crate::HostHandle::atomic_scope)).
    ///
    /// # Panics
    /// If the word lies outside the mapping or is not aligned, or if the mapping is read-only.
    pub fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        assert!(self.writable, "atomic on a read-only mapping");
        self.check(offset, 8);
        assert_eq!(offset % 8, 0, "unaligned atomic");
        // SAFETY: in range, aligned (the base is page-aligned) and valid for the life of the
        // mapping. AtomicU64 allows concurrent modification.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Stores the aligned 8-byte word at `offset` with release order.
    ///
    /// # Panics
    /// See [`atomic_u64`](Self::atomic_u64).
    #[inline]
    pub(crate) fn store_u64(&self, offset: usize, word: u64) {
        self.atomic_u64(offset).store(word, Ordering::Release);
    }

    /// Loads the aligned 8-byte word at `offset`. Works on read-only mappings.
    ///
    /// # Panics
    /// If the word lies outside the mapping or is not aligned.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        let [word] = self.load_words(offset);
        word
    }

    /// Loads consecutive aligned 8-byte words in ascending order, starting at `offset`. Works on
    /// read-only mappings.
    ///
    /// # Panics
    /// If a word lies outside the mapping or is not aligned.
    #[inline]
    pub(crate) fn load_words<const N: usize>(&self, offset: usize) -> [u64; N] {
        self.check(offset, 8 * N);
        assert_eq!(offset % 8, 0, "unaligned load");
        // SAFETY: in range and aligned. The words are only loaded, for which a read-only mapping
        // suffices.
        let word = |i| unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset + 8 * i).cast()) };
        std::array::from_fn(|i| word(i).load(Ordering::Acquire))
    }

    /// Returns the bytes of a range as the source of a system call (a reply to the kernel, a socket
    /// write) without a copy.
    ///
    /// # Safety
    /// The caller may only pass the slice to a system call that reads it. Other processes may
    /// change the bytes, so Rust code must neither read nor keep the slice.
    pub unsafe fn as_syscall_slice(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len);
        // SAFETY: in range and mapped; the caller guarantees that no Rust code reads the bytes.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }

    /// Returns a pointer to `offset`, for providers.
    pub(crate) fn ptr(&self, offset: usize) -> *mut u8 {
        self.check(offset, 0);
        // SAFETY: in range or one past the end.
        unsafe { self.base.as_ptr().add(offset) }
    }

    #[inline]
    pub(crate) fn check(&self, offset: usize, len: usize) {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            self.outside(offset, len);
        }
    }

    #[cold]
    fn outside(&self, offset: usize, len: usize) -> ! {
        panic!("range {offset}+{len} outside a mapping of {} bytes", self.len);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        sigbus::remove(self.base.as_ptr().addr());
        // SAFETY: `base` and `len` come from mmap, and no borrow can exist any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Copies between memory that other threads, processes or devices may change concurrently.
///
/// # Safety
/// Both ranges are mapped for `len` bytes and do not overlap.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller keeps this function's contract. A racing peer can mix old and new bytes,
    // which remote memory allows.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Returns the length of a mapping if it is one.
fn check_len(len: u64) -> Result<usize, MemoryError> {
    match usize::try_from(len) {
        Ok(valid) if (1..=i64::MAX as usize).contains(&valid) => Ok(valid),
        _ => Err(MemoryError::InvalidLength { len }),
    }
}

/// Returns true for a file that only this user or root can change.
fn is_trusted_owner(meta: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    meta.is_file() && (meta.uid() == 0 || meta.uid() == own) && meta.mode() & 0o022 == 0
}

fn map(fd: Option<OwnedFd>, len: usize, writable: bool) -> Result<Memory, MemoryError> {
    check_len(len as u64)?;
    let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let (flags, raw) = match &fd {
        Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags | libc::MAP_NORESERVE, raw, 0) };
    if base == libc::MAP_FAILED {
        return Err(os("mmap"));
    }
    let Some(base) = NonNull::new(base.cast::<u8>()) else {
        return Err(MemoryError::BadHandle("mapped at address zero"));
    };
    if len >= HUGE && fd.as_ref().is_some_and(is_memory) {
        // Requests huge pages for systems that give them on request. On other systems the call
        // fails without harm. SAFETY: the range is the new mapping; the advice changes no contents.
        unsafe { libc::madvise(base.as_ptr().cast::<libc::c_void>(), len, libc::MADV_HUGEPAGE) };
    }
    // Excludes the memory from core dumps: file contents and requests do not help to debug a crash
    // and must not leak. A kernel without the option dumps them. SAFETY: the range is the new
    // mapping; the advice changes no contents.
    unsafe { libc::madvise(base.as_ptr().cast::<libc::c_void>(), len, libc::MADV_DONTDUMP) };
    if fd.is_some() {
        sigbus::add(base.as_ptr().addr(), len);
    }
    Ok(Memory { base, len, fd, for_peers: None, writable, pins: RwLock::new(0), first_writes: None })
}

/// Returns true for a file of a tmpfs, which includes a memfd. For a file on disk, huge pages
/// would also increase read-ahead.
fn is_memory(fd: &OwnedFd) -> bool {
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    rustix::fs::fstatfs(fd).is_ok_and(|system| system.f_type == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests;
