//! An owned mapping of memory, private or shareable.
//!
//! Threads, processes and devices may access the bytes concurrently. So the bytes are accessed
//! only by volatile-like copies and by atomics, never as a slice. Racing copies may mix old and
//! new bytes, as with any remote memory, but do no other harm.
//!
//! # Concurrency
//! Any thread may call any method. `pins` is held shared while pages are discarded and
//! exclusively while a pin is added or removed.

use std::{
    alloc::{Layout, handle_alloc_error},
    ffi::CString,
    fmt,
    fs::{File, Metadata},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;

use super::{
    error::{MemoryError, os},
    first_writes::FirstWrites,
    lost, restricted,
};

/// Maximum number of pages per `mincore` call.
pub(crate) const RESIDENCY: usize = 256;

/// Smallest mapping in bytes for which huge pages are requested.
pub(crate) const HUGE: usize = 2 << 20;
/// Smallest peer memory in bytes for which first writes are tracked.
const LARGE: usize = 16 << 20;

/// A mapping of memory. The drop unmaps it; outstanding requests keep it alive through their
/// region. Peers and devices may change the bytes at any time, so there is no slice of it: it is
/// read and written by copies and by atomics.
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

    /// Creates zeroed shareable memory: a memfd called `name` whose size is sealed.
    pub fn shared(name: &str, len: usize) -> Result<Memory, MemoryError> {
        let name = CString::new(name).map_err(|_| MemoryError::BadHandle("name contains a NUL byte"))?;
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
    pub fn of_file(file: File) -> Result<Memory, MemoryError> {
        let len = file.metadata().map_err(|source| MemoryError::Os { what: "fstat", source })?.len();
        let len =
            usize::try_from(len).map_err(|_| MemoryError::BadHandle("longer than the address space"))?;
        let for_peers = restricted::reopen(file.as_fd());
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
    /// descriptor must be a memfd that is sealed against shrinking, or a file of this user or root
    /// that no other user may write to.
    pub fn from_peer(fd: OwnedFd, len: usize, writable: bool) -> Result<Memory, MemoryError> {
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

    /// Zeroes a range without allocating pages that are not present: those read as zero already.
    ///
    /// # Panics
    /// See [`zero`](Self::zero).
    pub fn zero_present(&self, offset: usize, len: usize) {
        let Some(fd) = &self.fd else { return self.zero(offset, len) };
        self.check(offset, len);
        let next_data = |from: usize| {
            // SAFETY: plain lseek; no code uses this descriptor's file position.
            let found = unsafe { libc::lseek(fd.as_raw_fd(), from as libc::off_t, libc::SEEK_DATA) };
            usize::try_from(found).ok()
        };
        let (end, page) = (offset + len, page_size());
        let mut residency = [0; RESIDENCY];
        let mut at = offset;
        while at < end {
            let residency = &mut residency[..(end.div_ceil(page) - at / page).min(RESIDENCY)];
            self.residency(at / page, residency);
            for alike in residency.chunk_by(|a, b| a == b) {
                let stop = ((at / page + alike.len()) * page).min(end);
                if alike[0] != 0 {
                    self.zero(at, stop - at);
                    at = stop;
                }
                // A page that is not resident may be swapped out. The loop advances page by page,
                // because SEEK_HOLE would also scan every present page behind the range.
                while at < stop {
                    let start = match next_data(at) {
                        Some(start) => start.min(stop),
                        // No data behind `at`.
                        None if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => stop,
                        // The file system does not support SEEK_DATA.
                        None => at,
                    };
                    let next = (start / page + 1).saturating_mul(page).min(stop);
                    self.zero(start, next - start);
                    at = next;
                }
            }
        }
    }

    /// Writes 1 for each resident page and 0 for each other page, starting at page number `first`.
    /// If mincore fails, every page counts as not resident. If the file belongs to another user,
    /// the kernel reports every page as resident.
    pub(crate) fn residency(&self, first: usize, out: &mut [u8]) {
        let page = page_size();
        // SAFETY: the pages belong to this mapping, and `out` has a byte for each.
        let asked = unsafe {
            libc::mincore(self.base.as_ptr().add(first * page).cast(), out.len() * page, out.as_mut_ptr())
        };
        // The other bits are reserved.
        out.iter_mut().for_each(|byte| *byte = if asked == 0 { *byte & 1 } else { 0 });
    }

    /// Returns the pages that lie completely inside a range to the system; they read as zero
    /// afterwards. Partial pages at the ends are zeroed. Private or pinned memory keeps its pages
    /// and is zeroed.
    pub fn discard(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.check(offset, len);
        // Held until the pages are released, so that no page gets pinned in between.
        let pins = self.pins.read();
        let Some(fd) = self.fd.as_ref().filter(|_| *pins == 0) else {
            self.zero_present(offset, len);
            return Ok(());
        };
        let page = page_size();
        let (start, end) = (offset.next_multiple_of(page), (offset + len) / page * page);
        if start >= end {
            self.zero(offset, len);
            return Ok(());
        }
        self.zero(offset, start - offset);
        self.zero(end, offset + len - end);
        // SAFETY: plain fallocate on an open descriptor.
        let done = unsafe {
            libc::fallocate(
                fd.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                start as libc::off_t,
                (end - start) as libc::off_t,
            )
        };
        if done < 0 { Err(os("fallocate(PUNCH_HOLE)")) } else { Ok(()) }
    }

    /// Maps the pages of a range before their use. A failure is harmless, because the first access
    /// maps them.
    pub fn populate(&self, offset: usize, len: usize) {
        if let Err(e) = populate(self, offset, len) {
            log::debug!("populating {len} bytes of memory failed: {e}");
        }
    }

    /// Returns the aligned 8-byte word at `offset` for atomic access by any thread, process or
    /// device.
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

/// Keeps the pages of a memory in place for a device that uses their physical addresses. After a
/// page was discarded, the device and the processors would access different pages. The pin also
/// keeps the memory mapped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Memory>);

impl Pin {
    #[cfg_attr(not(feature = "ibverbs"), allow(dead_code))] // Software devices have no physical addresses.
    pub(crate) fn new(memory: &Arc<Memory>) -> Pin {
        *memory.pins.write() += 1;
        Pin(Arc::clone(memory))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        *self.0.pins.write() -= 1;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        lost::remove(self.base.as_ptr().addr());
        // SAFETY: `base` and `len` come from mmap, and no borrow can exist any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Maps the pages of a range, for writing if the mapping is writable.
///
/// # Errors
/// The error of madvise: the system has too little memory, or does not support the advice.
pub(crate) fn populate(memory: &Memory, offset: usize, len: usize) -> io::Result<()> {
    const MADV_POPULATE_READ: i32 = 22;
    const MADV_POPULATE_WRITE: i32 = 23;
    memory.check(offset, len);
    let page = page_size();
    let start = offset / page * page;
    let end = (offset + len).next_multiple_of(page).min(memory.len.next_multiple_of(page));
    let advice = if memory.writable { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    // SAFETY: the range lies inside this mapping; the advice changes no contents.
    match unsafe { libc::madvise(memory.base.as_ptr().add(start).cast(), end - start, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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

/// Returns true for a file that only this user or root can change.
fn is_trusted_owner(meta: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    meta.is_file() && (meta.uid() == 0 || meta.uid() == own) && meta.mode() & 0o022 == 0
}

fn map(fd: Option<OwnedFd>, len: usize, writable: bool) -> Result<Memory, MemoryError> {
    if len == 0 {
        return Err(MemoryError::BadHandle("no bytes to map"));
    }
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
        lost::add(base.as_ptr().addr(), len);
    }
    Ok(Memory { base, len, fd, for_peers: None, writable, pins: RwLock::new(0), first_writes: None })
}

/// Returns true for a file of a tmpfs, which includes a memfd. For a file on disk, huge pages
/// would also increase read-ahead.
fn is_memory(fd: &OwnedFd) -> bool {
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    rustix::fs::fstatfs(fd).is_ok_and(|system| system.f_type == TMPFS_MAGIC)
}

pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(memory: &Memory) -> u64 {
        use std::os::unix::fs::MetadataExt;
        File::from(memory.peer_fd(true).unwrap()).metadata().unwrap().blocks() * 512
    }

    /// Returns the kernel's flags of the mapping.
    fn flags(memory: &Memory) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", memory.addr());
        let mut of_it = maps.lines().skip_while(|line| !line.starts_with(&start));
        of_it.find_map(|line| line.strip_prefix("VmFlags: ")).unwrap().to_owned()
    }

    #[test]
    fn huge_pages_are_requested_for_large_shared_memory() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            eprintln!("not run: this kernel has no transparent huge pages");
            return;
        }
        let asks = |memory: &Memory| flags(memory).split(' ').any(|flag| flag == "hg");
        assert!(asks(&Memory::shared("test", HUGE).unwrap()));
        assert!(!asks(&Memory::shared("test", HUGE - page_size()).unwrap()));
        assert!(!asks(&Memory::private(2 * HUGE).unwrap()), "private buffers use small pages");
    }

    #[test]
    fn no_memory_is_part_of_a_core_dump() {
        let hidden = |memory: &Memory| flags(memory).split(' ').any(|flag| flag == "dd");
        let shared = Memory::shared("test", 2 * HUGE).unwrap();
        assert!(hidden(&shared));
        assert!(hidden(&Memory::private(4096).unwrap()));
        let view = Memory::from_peer(shared.peer_fd(true).unwrap(), 2 * HUGE, true).unwrap();
        assert!(hidden(&view));
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(hidden(&Memory::of_file(file).unwrap()));
    }

    #[test]
    fn zeroing_present_pages_allocates_no_pages() {
        let page = page_size();
        let memory = Memory::shared("test", 64 * page).unwrap();
        memory.write(3 * page, &vec![1; 2 * page]);
        memory.write(10 * page, &vec![1; page]);
        memory.write(20 * page, &[1]);
        let before = present(&memory);
        memory.zero_present(3 * page + 5, 10 * page);
        assert_eq!(present(&memory), before);
        let mut all = vec![0; 64 * page];
        memory.read(0, &mut all);
        let left: Vec<usize> = (0..all.len()).filter(|i| all[*i] != 0).collect();
        assert_eq!(left, [3 * page, 3 * page + 1, 3 * page + 2, 3 * page + 3, 3 * page + 4, 20 * page]);
        memory.zero_present(0, 64 * page);
        memory.read(0, &mut all);
        assert!(all.iter().all(|byte| *byte == 0));
        Memory::private(page).unwrap().zero_present(0, page);
        // More pages than one mincore call covers, with both ends inside pages.
        let pages = 3 * RESIDENCY;
        let memory = Memory::shared("test", pages * page).unwrap();
        let touched = [0, 1, RESIDENCY - 1, RESIDENCY, 2 * RESIDENCY + 7, pages - 1];
        for at in touched {
            memory.write(at * page, &vec![1; page]);
        }
        memory.zero_present(page - 1, (pages - 1) * page);
        assert_eq!(present(&memory), (touched.len() * page) as u64);
        let mut all = vec![0; pages * page];
        memory.read(0, &mut all);
        for (i, byte) in all.iter().enumerate() {
            assert_eq!(*byte == 1, i < page - 1 || i >= pages * page - 1, "byte {i}");
        }
    }

    #[test]
    fn discarded_pages_read_as_zero_and_return_to_the_system() {
        let page = page_size();
        let memory = Memory::shared("test", 8 * page).unwrap();
        memory.write(0, &vec![1; 8 * page]);
        memory.discard(page / 2, 3 * page).unwrap();
        assert_eq!(present(&memory), 6 * page as u64);
        let mut all = vec![0; 8 * page];
        memory.read(0, &mut all);
        for (i, byte) in all.iter().enumerate() {
            assert_eq!(*byte == 0, (page / 2..page / 2 + 3 * page).contains(&i), "byte {i}");
        }
    }

    #[test]
    fn pinned_memory_keeps_its_pages() {
        let page = page_size();
        let memory = Arc::new(Memory::shared("test", 8 * page).unwrap());
        memory.write(0, &vec![1; 4 * page]);
        let pins = [Pin::new(&memory), Pin::new(&memory)];
        for pin in pins {
            memory.discard(page, 2 * page).unwrap();
            assert_eq!(present(&memory), 4 * page as u64);
            // The read covers only present pages, because a read would allocate the others.
            let mut all = vec![0; 4 * page];
            memory.read(0, &mut all);
            assert!(
                all.iter().enumerate().all(|(i, byte)| *byte == u8::from(i / page == 0 || i / page == 3))
            );
            drop(pin);
        }
        memory.discard(page, 2 * page).unwrap();
        assert_eq!(present(&memory), 2 * page as u64);
    }

    #[test]
    fn bytes_of_a_file_outlive_the_mapping() {
        let file = tempfile::tempfile().unwrap();
        assert!(Memory::of_file(file.try_clone().unwrap()).is_err(), "no bytes");
        file.set_len(8192).unwrap();
        Memory::of_file(file.try_clone().unwrap()).unwrap().write(5000, b"kept");
        let again = Memory::of_file(file).unwrap();
        let mut bytes = [0; 4];
        again.read(5000, &mut bytes);
        assert_eq!((again.len(), &bytes), (8192, b"kept"));
        again.zero_present(0, 8192);
        again.read(5000, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn memory_that_a_peer_can_shrink_is_rejected() {
        let memory = Memory::shared("test", 4096).unwrap();
        let fd = memory.peer_fd(false).unwrap();
        assert!(Memory::from_peer(memory.peer_fd(true).unwrap(), 8192, true).is_err());
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &File::from(fd.try_clone().unwrap()).metadata().unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o400, "must not be reopened for writing");
        let view = Memory::from_peer(fd, 4096, false).unwrap();
        memory.write(7, b"x");
        let mut byte = [0];
        view.read(7, &mut byte);
        assert_eq!(byte, *b"x");
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let handed = || file.try_clone().unwrap().into();
        assert!(Memory::from_peer(handed(), 4096, false).is_ok(), "only the owner may write");
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o620)).unwrap();
        assert!(Memory::from_peer(handed(), 4096, false).is_err());
        assert!(Memory::from_peer(memory.peer_fd(false).unwrap(), 4096, true).is_err());
    }
}
