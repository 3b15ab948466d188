//! Listings of directories.

use std::{
    ffi::{CString, c_char},
    os::unix::ffi::OsStrExt,
    ptr,
};

use parking_lot::Mutex;
use rfs_native::Entries;

use crate::{
    mount::rfs_mount,
    stat::rfs_stat_t,
    status::{Failure, answer_done, handle, path, store, store_handle, take},
};

/// A listing in progress.
#[allow(non_camel_case_types)]
pub struct rfs_dir(Mutex<Listing>);

struct Listing {
    entries: Entries,
    /// The name that the last call has returned.
    name: CString,
}

/// An entry of a directory.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rfs_entry {
    /// Name, valid until the next call with the directory. NULL at the end.
    pub name: *const c_char,
    /// Attributes. Those of a symbolic link are its own.
    pub stat: rfs_stat_t,
}

/// Begins to list a directory. Stores the listing in `out`, and rfs_closedir() ends it.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_opendir(
    mount: *const rfs_mount,
    name: *const c_char,
    out: *mut *mut rfs_dir,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name) = unsafe { (handle(mount)?, path(name)?) };
        let entries = mount.0.open_dir(name)?.entries()?;
        let listing = Listing { entries, name: CString::default() };
        // SAFETY: the caller vouches for the pointer.
        unsafe { store_handle(out, rfs_dir(Mutex::new(listing))) }
    })
}

/// Returns the next entry in `out`, without "." and "..". At the end its name is NULL.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_readdir(dir: *const rfs_dir, out: *mut rfs_entry) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointer.
        let mut listing = unsafe { handle(dir) }?.0.lock();
        let mut found = rfs_entry { name: ptr::null(), stat: NOTHING };
        if let Some(entry) = listing.entries.next().transpose()? {
            let no_text = |_| Failure::new(libc::EPROTO, "readdir: a name with a NUL");
            listing.name = CString::new(entry.name().as_bytes()).map_err(no_text)?;
            found = rfs_entry { name: listing.name.as_ptr(), stat: entry.stat().into() };
        }
        // SAFETY: the caller vouches for the pointer.
        unsafe { store(out, found) }
    })
}

/// Ends a listing. NULL is permitted.
///
/// # Safety
/// The listing is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_closedir(dir: *mut rfs_dir) {
    // SAFETY: the caller vouches for the pointer.
    drop(unsafe { take(dir) });
}

/// Attributes of no inode.
const NOTHING: rfs_stat_t = rfs_stat_t {
    ino: 0,
    size: 0,
    blocks: 0,
    atime_ns: 0,
    mtime_ns: 0,
    ctime_ns: 0,
    mode: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
};
