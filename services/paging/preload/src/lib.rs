//! A library for `LD_PRELOAD` that places large allocations of a program under a remote pager.
//!
//! It takes over the allocation functions of libc. Anonymous mappings and allocations from a
//! minimum size on become memory of a [`RemotePager`](rfs_paging::RemotePager). So do smaller
//! allocations of the program if the settings say so. All others stay with libc and the kernel.
//! `rfs-paging run` sets the environment variables that configure it (module `settings`). Without
//! these variables the library changes nothing.
//!
//! # Concurrency
//! Any thread of the program calls the functions. One lock guards the table of paged memory
//! (module `state`). Threads of the pager never take it.

pub mod calls;
pub mod heap;
mod regions;
mod settings;
mod small;
mod start;
mod state;
mod sys;
pub mod threads;
