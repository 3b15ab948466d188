//! rfs-fuse with an allocator that counts, for tests of the memory of a mount.
//!
//! Takes the options of rfs-fuse. RFS_ALLOCATIONS names a file of at least 24 bytes, into which the
//! allocator counts: allocations, bytes in use, and the maximum of the latter.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    env,
    fs::OpenOptions,
    process::ExitCode,
    ptr,
    sync::atomic::{AtomicI64, AtomicPtr, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Counters in the file, in its order.
struct Counters {
    allocations: AtomicI64,
    bytes: AtomicI64,
    peak: AtomicI64,
}

/// The mapped file. Null before it is mapped: nothing is counted then.
static COUNTERS: AtomicPtr<Counters> = AtomicPtr::new(ptr::null_mut());

struct Counting;

fn count(allocations: i64, bytes: i64) {
    // SAFETY: the pointer is null, or points to the file, which stays mapped.
    let Some(counters) = (unsafe { COUNTERS.load(Ordering::Acquire).as_ref() }) else { return };
    counters.allocations.fetch_add(allocations, Ordering::Relaxed);
    let now = counters.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
    counters.peak.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: all calls go to the system's allocator, with the same arguments. Counting allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    if let Some(path) = env::var_os("RFS_ALLOCATIONS") {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the file of the counters");
        let (len, rights) = (size_of::<Counters>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping.
        let place = unsafe { mmap(ptr::null_mut(), len, rights, MapFlags::SHARED, &file, 0) };
        COUNTERS.store(place.expect("mapped").cast(), Ordering::Release);
    }
    rfs_fuse::run::main(None)
}
