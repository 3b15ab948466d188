//! `librfs_preload.so`: programs as they are read and write files of an rfs mount without the
//! kernel.
//!
//! The kernel opens every file, and has its names and permissions. The library recognises
//! descriptors of a mount by the mount's number. After a few calls it opens the file by the number
//! of its inode in a session of its own (`rfs-native`). From then on it carries reads and writes.
//! Each call that the library does not carry is the kernel's, at the same offset.
//!
//! `docs/user/programs/preload.md` says which programs gain from it, and
//! `docs/design/mounts/preload.md` how it keeps offsets.
//!
//! # Concurrency
//! Any thread of the program calls the exported functions, also in signal handlers. The threads of
//! a session are inside the library for all their life, so their calls go to the kernel.

// The exported symbols are no items of a Rust interface.
#![allow(unreachable_pub)]
// Tests export no symbols.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the library takes the place of functions of Linux with 64 bits");

mod calls;
mod carry;
mod counts;
mod descriptor;
mod guard;
mod mounts;
mod next;
mod process;
mod session;
mod start;
mod trampoline;
