//! Tells allocations of the program from those of libc and the loader, by the caller's address.
//!
//! Only the program and the libraries that it is linked with count as the program. Libraries that
//! come later may be parts of libc or of the pager, such as `libnss_*` and `libibverbs`. To ask the
//! loader for them in `malloc` would take its lock.
//!
//! # Concurrency
//! The list of libraries is made once, when the program starts.

use std::{
    ffi::{CStr, c_int, c_void},
    ops::Range,
    sync::OnceLock,
};

/// Beginnings of the names of files whose allocations stay local: the loader, libc, libraries that
/// threads of the pager use, and this library.
const LOCAL: [&str; 12] = [
    "ld-",
    "ld.",
    "libc.",
    "libc-",
    "libpthread",
    "libdl.",
    "libresolv",
    "libnss_",
    "libgcc_s",
    "librfs_paging_preload",
    "libibverbs",
    "libmlx",
];

/// Code of the program and of its other libraries, in the order of addresses.
static PROGRAM: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// The caller of an allocation function.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Caller(pub(crate) usize);

impl Caller {
    /// Returns true if the caller is the program, or a library that only the program uses.
    pub(crate) fn is_program(self) -> bool {
        // Without a list, or without an address, an allocation stays local.
        PROGRAM.get().is_some_and(|code| {
            let after = code.partition_point(|range| range.start <= self.0);
            after > 0 && code[after - 1].contains(&self.0)
        })
    }
}

/// Makes the list.
pub(crate) fn find_libraries() {
    let mut found: Vec<Range<usize>> = Vec::new();
    // SAFETY: The callback gets the address of `found`, which lives longer.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut found).cast()) };
    found.sort_unstable_by_key(|range| range.start);
    PROGRAM.set(found).ok();
}

/// Appends the code of the program, or of a library, unless its allocations stay local.
unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: The loader passes valid information, and the argument of `find_libraries`.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<Range<usize>>>()) };
    if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: The name is a C string.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy();
    if is_local(&name) {
        return 0;
    }
    // SAFETY: The library has that many headers there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let code = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    for header in code.filter(|header| header.p_flags & libc::PF_X != 0) {
        let start = info.dlpi_addr as usize + header.p_vaddr as usize;
        found.push(start..start + header.p_memsz as usize);
    }
    0
}

/// Returns true if the file of a library is one of [`LOCAL`].
fn is_local(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    LOCAL.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_and_the_loader_are_local_and_programs_are_not() {
        for path in ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/x/libmlx5.so.1"] {
            assert!(is_local(path), "{path}");
        }
        for path in
            ["", "/usr/bin/redis-server", "/lib/libcrypt.so.1", "/lib/libstdc++.so.6", "linux-vdso.so.1"]
        {
            assert!(!is_local(path), "{path}");
        }
        find_libraries();
        let of_libc = Caller(libc::getpid as *const () as usize);
        let of_program = Caller(find_libraries as *const () as usize);
        assert!(!of_libc.is_program() && of_program.is_program() && !Caller(0).is_program());
        // Code that the loader did not know at the start, as that of a library that comes later.
        let later = Box::new(0_u8);
        assert!(!Caller(&raw const *later as usize).is_program());
    }
}
