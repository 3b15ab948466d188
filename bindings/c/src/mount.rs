//! Mounts.

use std::ffi::c_char;

use rfs_native::{Mount, MountOptions};

use crate::{
    options::rfs_options,
    status::{Failure, answer_done, handle, store, store_handle, take, text},
};

/// A session with a server.
#[allow(non_camel_case_types)]
pub struct rfs_mount(pub(crate) Mount);

/// Space of an export.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rfs_space {
    /// Size in bytes.
    pub bytes: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Maximum number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
}

/// Connects to a server: HOST:PORT, rdma:HOST:PORT, or the path of a Unix socket. `options` may be
/// NULL. Stores the mount in `out`.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_connect(
    address: *const c_char,
    options: *const rfs_options,
    out: *mut *mut rfs_mount,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (address, options) = unsafe { (text(address)?, options.as_ref()) };
        let no_text = |_| Failure::new(libc::EINVAL, "the address is no UTF-8");
        let options = options.map_or_else(MountOptions::default, rfs_options::get);
        let mount = Mount::connect(address.to_str().map_err(no_text)?, &options)?;
        // SAFETY: the caller vouches for the pointer.
        unsafe { store_handle(out, rfs_mount(mount)) }
    })
}

/// Frees a mount. The session ends when its last open file, directory and view are freed, too. NULL
/// is permitted.
///
/// # Safety
/// The mount is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_mount_free(mount: *mut rfs_mount) {
    // SAFETY: the caller vouches for the pointer.
    drop(unsafe { take(mount) });
}

/// Ends the session at once. All calls on the mount and its files fail with -EHOSTDOWN then. The
/// mount still has to be freed.
///
/// Returns 0.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_disconnect(mount: *const rfs_mount) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointer.
        unsafe { handle(mount) }?.0.disconnect();
        Ok(())
    })
}

/// Returns size and free space of the export in `out`.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_statfs(mount: *const rfs_mount, out: *mut rfs_space) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointer.
        let space = unsafe { handle(mount) }?.0.space()?;
        let rfs_native::Space { bytes, bytes_free, inodes, inodes_free } = space;
        // SAFETY: the caller vouches for the pointer.
        unsafe { store(out, rfs_space { bytes, bytes_free, inodes, inodes_free }) }
    })
}
