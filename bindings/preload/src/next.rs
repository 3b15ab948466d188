//! The functions of libc behind the interposed ones.
//!
//! Each function is looked up once, in the libraries that follow this one. A function that no
//! library has fails with ENOSYS.
//!
//! # Concurrency
//! Any thread, also in a signal handler once a function was called before. No locks of its own.

use std::{
    ffi::{CStr, c_char, c_int, c_long, c_uint, c_void},
    mem::transmute,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use libc::{iovec, mode_t, msghdr, off_t, pid_t, rlimit, size_t, ssize_t, stat, timespec, timeval};

/// Number of descriptors that the library looks at. Higher ones are the kernel's.
pub(crate) const DESCRIPTORS: usize = 1 << 16;

/// A function of another library.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address of the function, or null.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The result of a function that fails.
pub(crate) trait Fails {
    const FAILED: Self;
}

impl Fails for c_int {
    const FAILED: c_int = -1;
}

impl Fails for i64 {
    const FAILED: i64 = -1;
}

impl Fails for isize {
    const FAILED: isize = -1;
}

impl Fails for () {
    const FAILED: () = ();
}

impl<T> Fails for *mut T {
    const FAILED: *mut T = ptr::null_mut();
}

/// Returns true if a number is an open descriptor.
pub(crate) fn is_open(fd: c_int) -> bool {
    // SAFETY: the call reads the flags of a number, which may be closed.
    unsafe { fcntl64(fd, libc::F_GETFD, 0) >= 0 }
}

/// Sets `errno` and returns the result of a function that fails.
pub(crate) fn fail<T: Fails>(errno: c_int) -> T {
    // SAFETY: the address is that of this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
    T::FAILED
}

/// Returns `errno` of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address is that of this thread's `errno`.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` back when it is dropped. Work of the library after the kernel's call must not
/// change the error number that the program sees.
#[derive(Debug)]
pub(crate) struct KeptErrno(c_int);

impl KeptErrno {
    pub(crate) fn new() -> KeptErrno {
        KeptErrno(errno())
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        fail::<()>(self.0);
    }
}

macro_rules! next {
    ($($(#[$attribute:meta])* $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        $(#[$attribute])*
        /// Calls the function with this name of the next library that has it. Fails with ENOSYS
        /// without one.
        ///
        /// # Safety
        /// As for the function of libc.
        #[inline]
        pub(crate) unsafe fn $name($($arg: $type),*) -> $out {
            static NEXT: Next = Next::new(
                // A literal without a NUL inside.
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );
            let found = NEXT.get();
            if found.is_null() {
                return fail(libc::ENOSYS);
            }
            // SAFETY: the libraries that have this name have this function.
            let function: unsafe extern "C-unwind" fn($($type),*) -> $out = unsafe { transmute(found) };
            // SAFETY: as the caller promises.
            unsafe { function($($arg),*) }
        }
    )*};
}

type Args = *const *const c_char;

next! {
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, new: c_int) -> c_int;
    dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int;
    ioctl(fd: c_int, request: usize, arg: usize) -> c_int;
    read(fd: c_int, out: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, data: *const c_void, len: size_t) -> ssize_t;
    pread64(fd: c_int, out: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    pwrite64(fd: c_int, data: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    preadv64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fsync(fd: c_int) -> c_int;
    fdatasync(fd: c_int) -> c_int;
    ftruncate64(fd: c_int, len: off_t) -> c_int;
    fstat64(fd: c_int, out: *mut stat) -> c_int;
    __fxstat64(version: c_int, fd: c_int, out: *mut stat) -> c_int;
    mmap64(
        address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void;
    sendfile64(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t;
    copy_file_range(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t;
    splice(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t;
    lockf64(fd: c_int, command: c_int, len: off_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut c_void;
    vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int;
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int;
    futimens(fd: c_int, times: *const timespec) -> c_int;
    futimes(fd: c_int, times: *const timeval) -> c_int;
    utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int;
    futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int;
    utimes(path: *const c_char, times: *const timeval) -> c_int;
    lutimes(path: *const c_char, times: *const timeval) -> c_int;
    utime(path: *const c_char, times: *const c_void) -> c_int;
    setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int;
    prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    execve(path: *const c_char, args: Args, environment: Args) -> c_int;
    execv(path: *const c_char, args: Args) -> c_int;
    execvp(path: *const c_char, args: Args) -> c_int;
    execvpe(path: *const c_char, args: Args, environment: Args) -> c_int;
    fexecve(fd: c_int, args: Args, environment: Args) -> c_int;
    execveat(dir: c_int, path: *const c_char, args: Args, environment: Args, flags: c_int) -> c_int;
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Args,
        environment: Args
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Args,
        environment: Args
    ) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
    #[expect(non_snake_case, reason = "the name is libc's")]
    _Fork() -> pid_t;
    syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> c_long;
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int;
    io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: size_t
    ) -> c_int;
}
