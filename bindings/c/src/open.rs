//! Opening of files.

use std::ffi::c_char;

use rfs_native::OpenOptions;

use crate::{
    file::rfs_file,
    mount::rfs_mount,
    status::{Failure, answer_done, handle, path, store_handle},
};

/// Returns the options of open(2) flags.
fn options_of(flags: i32, mode: u32) -> Result<OpenOptions, Failure> {
    let has = |flag: i32| flags & flag == flag;
    if flags & libc::O_TMPFILE & !libc::O_DIRECTORY != 0 {
        return Err(Failure::new(libc::EOPNOTSUPP, "open: there are no files without a name"));
    }
    if has(libc::O_DIRECTORY) || has(libc::O_PATH) {
        return Err(Failure::new(libc::EINVAL, "open: use rfs_opendir for a directory"));
    }
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Failure::new(libc::EINVAL, "open: O_RDONLY, O_WRONLY or O_RDWR")),
    };
    let mut options = OpenOptions::new();
    options.read(read).write(write).append(write && has(libc::O_APPEND)).truncate(has(libc::O_TRUNC));
    options.create(has(libc::O_CREAT)).create_new(has(libc::O_CREAT | libc::O_EXCL));
    options.follow(!has(libc::O_NOFOLLOW)).count_reads(!has(libc::O_NOATIME)).mode(mode);
    Ok(options)
}

/// Opens a regular file with flags of open(2). `mode` is that of a new file. Stores the file in
/// `out`, and rfs_close() closes it.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_open(
    mount: *const rfs_mount,
    name: *const c_char,
    flags: i32,
    mode: u32,
    out: *mut *mut rfs_file,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name) = unsafe { (handle(mount)?, path(name)?) };
        let file = options_of(flags, mode)?.open(&mount.0, name)?;
        // SAFETY: the caller vouches for the pointer.
        unsafe { store_handle(out, rfs_file(file)) }
    })
}
