//! An owned mapping of memory, private or shareable.
//!
//! Any number of threads, processes and devices may touch the bytes at once, so they are reached only by
//! volatile-like copies and atomics, never as a slice. Racing plain copies may mix old and new bytes, as with
//! any remote memory; they never do more harm than that.

use std::{
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

use super::{first_writes::FirstWrites, lost, restricted};

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The system has not that much.
    #[error("cannot lend {asked} bytes: {available} bytes are available")]
    NotEnough {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that the system could give.
        available: u64,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// The call that failed.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// A handle from a peer is not what it claims.
    #[error("a memory handle from the peer is unusable: {0}")]
    BadHandle(&'static str),
}

/// Pages of which the kernel is asked at a time whether they are resident.
pub(super) const RESIDENCY: usize = 256;

/// The least that huge pages are asked for.
pub(super) const HUGE: usize = 2 << 20;
/// Memory of a peer that is large enough for its first writes to matter.
const LARGE: usize = 16 << 20;

fn os(what: &'static str) -> MemoryError {
    MemoryError::Os { what, source: io::Error::last_os_error() }
}

/// A mapping. Unmapped when dropped; requests under way keep it alive through their region.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
    /// What peers get that may write, if it is not a copy of `fd`.
    for_peers: Option<OwnedFd>,
    writable: bool,
    /// Pins; read while pages are given back.
    pins: RwLock<usize>,
    /// In a mapping of a peer's memory that can be written.
    pub(super) first_writes: Option<FirstWrites>,
}

// SAFETY: the mapping is plain bytes without thread affinity; access goes through copies and atomics on raw
// pointers, so sharing it makes no Rust reference to mutable memory.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len).field("shareable", &self.fd.is_some()).finish()
    }
}

impl Memory {
    /// Anonymous private memory, zeroed. It can be the local side of any request and the target of peers over
    /// a network, but not of peers that map it.
    pub fn private(len: usize) -> Result<Memory, MemoryError> {
        map(None, len, true)
    }

    /// Shareable memory, zeroed: a sealed memfd called `name`, of a fixed size for good.
    pub fn shared(name: &str, len: usize) -> Result<Memory, MemoryError> {
        let name = CString::new(name).map_err(|_| MemoryError::BadHandle("name contains a NUL byte"))?;
        // SAFETY: name is a NUL-terminated string that lives over the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(os("memfd_create"));
        }
        // SAFETY: fd is a fresh descriptor that nobody else owns.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len as u64).map_err(|source| MemoryError::Os { what: "ftruncate", source })?;
        // Who gets a descriptor for reading could open the file again through /proc, for writing if its mode allows.
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

    /// Shareable memory over all of a file, whose bytes outlive the mapping and the process: a file of a
    /// tmpfs, or any other that can be mapped. A process that may write to the file could shorten it, and
    /// an access behind its end is SIGBUS: the file should be its owner's alone. Peers cannot shorten it by
    /// the descriptor that they get, where the kernel has Landlock with truncation (Linux 6.2).
    pub fn of_file(file: File) -> Result<Memory, MemoryError> {
        let len = file.metadata().map_err(|source| MemoryError::Os { what: "fstat", source })?.len();
        let len =
            usize::try_from(len).map_err(|_| MemoryError::BadHandle("longer than the address space"))?;
        let for_peers = restricted::reopen(file.as_fd());
        let mut memory = map(Some(file.into()), len, true)?;
        memory.for_peers = for_peers
            .inspect_err(|e| {
                log::warn!(
                    "a client of this host that maps the memory can shorten its file, which ends the server: \
                     this kernel does not restrict that (Landlock, Linux 6.2): {e}"
                );
            })
            .ok();
        Ok(memory)
    }

    /// Maps memory that a peer handed over. Nobody but those who could end this process anyway may be able to shorten it, which would turn a
    /// later access into SIGBUS: it is a memfd that is sealed against that, or a file that belongs to this user or to root and
    /// that nobody else may write to.
    pub fn from_peer(fd: OwnedFd, len: usize, writable: bool) -> Result<Memory, MemoryError> {
        let file = File::from(fd);
        let meta = file.metadata().map_err(|source| MemoryError::Os { what: "fstat", source })?;
        // SAFETY: plain fcntl on an open descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let sealed = seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        if !sealed && !is_of_friends(&meta) {
            return Err(MemoryError::BadHandle("not sealed against shrinking"));
        }
        let size = meta.len();
        if size < len as u64 {
            return Err(MemoryError::BadHandle("shorter than announced"));
        }
        let mut memory = map(Some(file.into()), len, writable)?;
        // Mostly the mapping is enough; a descriptor for each piece of memory of each peer would be many.
        let fd = memory.fd.take();
        if writable && len >= LARGE {
            memory.first_writes = fd.and_then(|fd| FirstWrites::new(fd.into(), len));
        }
        Ok(memory)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a mapping of no bytes (there is none).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte as a virtual address.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The descriptor to hand to a peer, if there is one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }

    /// A descriptor of its own for a peer, with or without the right to write.
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
        // Opened again, because a duplicate would carry the right to write along.
        File::open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
            .map(OwnedFd::from)
            .map_err(|source| MemoryError::Os { what: "open(/proc/self/fd)", source })
    }

    /// False for a read-only view of a peer's memory.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// If the range lies outside, or the mapping is read-only. Ranges from outside are checked by the caller.
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
    /// If the range lies outside.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: the range was checked, and an exclusive slice cannot overlap the mapping.
        unsafe { copy(self.base.as_ptr().add(offset), out.as_mut_ptr(), out.len()) }
    }

    /// Zeroes a range.
    ///
    /// # Panics
    /// If the range lies outside, or the mapping is read-only.
    pub fn zero(&self, offset: usize, len: usize) {
        assert!(self.writable, "write to a read-only mapping");
        self.check(offset, len);
        // SAFETY: the range was checked.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(offset), 0, len) }
    }

    /// Zeroes a range without making pages present that never were: those read as zero already.
    ///
    /// # Panics
    /// As [`zero`](Self::zero).
    pub fn zero_present(&self, offset: usize, len: usize) {
        let Some(fd) = &self.fd else { return self.zero(offset, len) };
        self.check(offset, len);
        let next_data = |from: usize| {
            // SAFETY: plain lseek; nobody uses this descriptor's file position.
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
                // What is not resident may be swapped out. Page by page: SEEK_HOLE would walk over everything that is present behind
                // the range, too.
                while at < stop {
                    let start = match next_data(at) {
                        Some(start) => start.min(stop),
                        // Nothing present behind `at`.
                        None if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => stop,
                        // A file system that cannot tell.
                        None => at,
                    };
                    let next = (start / page + 1).saturating_mul(page).min(stop);
                    self.zero(start, next - start);
                    at = next;
                }
            }
        }
    }

    /// For each page from the one of that number on, whether it is resident: 1, or 0. Where the kernel fails to say, none is; where this process
    /// may not know, as the file is another user's, it says that all are.
    pub(super) fn residency(&self, first: usize, out: &mut [u8]) {
        let page = page_size();
        // SAFETY: pages of this mapping, and a byte for each.
        let asked = unsafe {
            libc::mincore(self.base.as_ptr().add(first * page).cast(), out.len() * page, out.as_mut_ptr())
        };
        // The other bits are reserved.
        out.iter_mut().for_each(|byte| *byte = if asked == 0 { *byte & 1 } else { 0 });
    }

    /// Gives the pages wholly inside a range back to the system; they read as zero afterwards. Shareable memory only;
    /// the edges are zeroed by hand. Memory that is pinned keeps its pages: it is zeroed.
    pub fn discard(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.check(offset, len);
        // Held until the pages are gone, so that none is pinned meanwhile.
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

    /// Makes pages of a range present and writable ahead of use. A failure is harmless: the first access does it.
    pub fn populate(&self, offset: usize, len: usize) {
        if let Err(e) = populate(self, offset, len) {
            log::debug!("{len} bytes of memory are not taken ahead of use: {e}");
        }
    }

    /// The aligned 8-byte word at `offset`, for atomic use by any thread, process or device.
    ///
    /// # Panics
    /// If the word lies outside, is not aligned, or the mapping is read-only.
    pub fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        assert!(self.writable, "atomic on a read-only mapping");
        self.check(offset, 8);
        assert_eq!(offset % 8, 0, "unaligned atomic");
        // SAFETY: in range, aligned (the base is page-aligned), valid for the life of the mapping; AtomicU64
        // allows concurrent modification.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Stores the aligned 8-byte word at `offset`, behind everything that this thread has written before.
    ///
    /// # Panics
    /// As [`atomic_u64`](Self::atomic_u64).
    #[inline]
    pub(crate) fn store_u64(&self, offset: usize, word: u64) {
        self.atomic_u64(offset).store(word, Ordering::Release);
    }

    /// Loads the aligned 8-byte word at `offset`. Works on read-only mappings.
    ///
    /// # Panics
    /// If the word lies outside or is not aligned.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        let [word] = self.load_words(offset);
        word
    }

    /// Loads the aligned 8-byte words from `offset` on, one after the other. Works on read-only mappings.
    ///
    /// # Panics
    /// If one lies outside or is not aligned.
    #[inline]
    pub(crate) fn load_words<const N: usize>(&self, offset: usize) -> [u64; N] {
        self.check(offset, 8 * N);
        assert_eq!(offset % 8, 0, "unaligned load");
        // SAFETY: in range and aligned; they are only loaded: a read-only mapping is enough for that.
        let word = |i| unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset + 8 * i).cast()) };
        std::array::from_fn(|i| word(i).load(Ordering::Acquire))
    }

    /// The bytes of a range for one system call to read from (a reply to the kernel, a socket write), without a
    /// copy.
    ///
    /// # Safety
    /// The slice may only be handed to a system call that reads it: other processes may be changing the bytes,
    /// so that Rust code must neither look at them nor keep the slice.
    pub unsafe fn as_syscall_slice(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len);
        // SAFETY: in range and mapped; the caller keeps Rust code from looking at the bytes.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }

    /// Pointer to `offset`, for providers.
    pub(crate) fn ptr(&self, offset: usize) -> *mut u8 {
        self.check(offset, 0);
        // SAFETY: in range or one past the end.
        unsafe { self.base.as_ptr().add(offset) }
    }

    #[inline]
    pub(super) fn check(&self, offset: usize, len: usize) {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            self.outside(offset, len);
        }
    }

    #[cold]
    fn outside(&self, offset: usize, len: usize) -> ! {
        panic!("range {offset}+{len} outside a mapping of {} bytes", self.len);
    }
}

/// Keeps the pages of a memory where they are, for a device that has their physical addresses: in a page that was given back
/// the device and the processors would each see bytes of their own. It keeps the memory mapped as well.
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
        // SAFETY: base and len are exactly what mmap gave, and nobody can hold a borrow any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Makes pages of a range present and writable.
///
/// # Errors
/// The system has too little memory, or does not know the advice.
pub(super) fn populate(memory: &Memory, offset: usize, len: usize) -> io::Result<()> {
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

/// Copies between memory that others may be changing at the same time.
///
/// # Safety
/// Both ranges are mapped for `len` bytes and do not overlap.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as this function's contract. A racing peer can mix old and new bytes, which is what remote memory
    // promises, too.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// True for a file that only this user or root can change.
fn is_of_friends(meta: &Metadata) -> bool {
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
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags | libc::MAP_NORESERVE, raw, 0) };
    if base == libc::MAP_FAILED {
        return Err(os("mmap"));
    }
    let Some(base) = NonNull::new(base.cast::<u8>()) else {
        return Err(MemoryError::BadHandle("mapped at address zero"));
    };
    if len >= HUGE && fd.as_ref().is_some_and(is_memory) {
        // Where the system gives huge pages to who asks for them. One that has none says so, and nothing is lost by that.
        // SAFETY: the range is the mapping that has just been made; the advice changes no contents.
        unsafe { libc::madvise(base.as_ptr().cast::<libc::c_void>(), len, libc::MADV_HUGEPAGE) };
    }
    // What files and requests have is no help after a crash, and not for every reader of a core dump. A
    // kernel that cannot do this dumps it.
    // SAFETY: the range is the mapping that has just been made; the advice changes no contents.
    unsafe { libc::madvise(base.as_ptr().cast::<libc::c_void>(), len, libc::MADV_DONTDUMP) };
    if fd.is_some() {
        lost::add(base.as_ptr().addr(), len);
    }
    Ok(Memory { base, len, fd, for_peers: None, writable, pins: RwLock::new(0), first_writes: None })
}

/// True for a memfd, or another file of a tmpfs: of a disk's, huge pages would be read ahead, too.
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

    /// What the kernel has noted of the mapping.
    fn flags(memory: &Memory) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", memory.addr());
        let mut of_it = maps.lines().skip_while(|line| !line.starts_with(&start));
        of_it.find_map(|line| line.strip_prefix("VmFlags: ")).unwrap().to_owned()
    }

    #[test]
    fn huge_pages_are_asked_for_where_memory_is_shared_and_long() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            eprintln!("not run: this kernel has no transparent huge pages");
            return;
        }
        let asks = |memory: &Memory| flags(memory).split(' ').any(|flag| flag == "hg");
        assert!(asks(&Memory::shared("test", HUGE).unwrap()));
        assert!(!asks(&Memory::shared("test", HUGE - page_size()).unwrap()));
        assert!(!asks(&Memory::private(2 * HUGE).unwrap()), "buffers are to be no larger than they are");
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
    fn zeroing_what_is_present_brings_nothing_in() {
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
        // More than the kernel is asked for at a time, with neither end at a page's.
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
    fn discarded_pages_read_as_zero_and_are_given_back() {
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
    fn pages_of_pinned_memory_stay_where_they_are() {
        let page = page_size();
        let memory = Arc::new(Memory::shared("test", 8 * page).unwrap());
        memory.write(0, &vec![1; 4 * page]);
        let pins = [Pin::new(&memory), Pin::new(&memory)];
        for pin in pins {
            memory.discard(page, 2 * page).unwrap();
            assert_eq!(present(&memory), 4 * page as u64);
            // Not those behind: a look would bring them in.
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
    fn only_memory_that_cannot_shrink_is_taken_from_a_peer() {
        let memory = Memory::shared("test", 4096).unwrap();
        let fd = memory.peer_fd(false).unwrap();
        assert!(Memory::from_peer(memory.peer_fd(true).unwrap(), 8192, true).is_err());
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &File::from(fd.try_clone().unwrap()).metadata().unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o400, "not to be opened again for writing");
        let view = Memory::from_peer(fd, 4096, false).unwrap();
        memory.write(7, b"x");
        let mut byte = [0];
        view.read(7, &mut byte);
        assert_eq!(byte, *b"x");
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let handed = || file.try_clone().unwrap().into();
        assert!(Memory::from_peer(handed(), 4096, false).is_ok(), "its owner's alone");
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o620)).unwrap();
        assert!(Memory::from_peer(handed(), 4096, false).is_err());
        assert!(Memory::from_peer(memory.peer_fd(false).unwrap(), 4096, true).is_err());
    }
}
