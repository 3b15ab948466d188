//! Tests of mounts, and of clients over a faulty device: one program, so that it is linked once.
//!
//! A module is a topic, and a test is named by its path: `cache::recalls::names_come_and_go`.
//! Each test must stand other tests beside it in its process, as `cargo test` runs them. nextest
//! gives each test its own process.

mod common;

/// Bytes of files.
mod data {
    mod append;
    mod batching;
    mod bytes;
    mod checksum;
    mod direct;
    mod exerciser;
    mod files;
    mod reads;
    mod registry;
    mod space;
    mod stores;
    mod writes;
}

/// Names, kinds and attributes of files.
mod names {
    mod births;
    mod handles;
    mod limits;
    mod overlayfs;
    mod races;
    mod small_files;
    mod special_files;
    mod tree;
    mod unlinked_files;
    mod unnamed;
    mod whiteouts;
    mod xattr;
}

/// Caches of a mount, and the view of other mounts.
mod cache {
    mod access_times;
    mod bounds;
    mod coherence;
    mod eviction;
    mod exclusive_use;
    mod idle_mount;
    mod listings;
    mod native_mount;
    mod open_files;
    mod recalls;
    mod two_mounts;
    mod writeback;
}

/// The program: options in a file, log, status and traces, and mounts that another program has
/// made.
mod program {
    mod configuration;
    mod dev_fd;
    mod log;
    mod status;
    mod trace;
}

/// File locks.
mod locking {
    mod locks;
    mod waits;
}

/// Users, keys, TLS and exports.
mod access {
    mod actors;
    mod dump;
    mod exports;
    mod keys;
    mod local_users;
    mod owner_changes;
    mod squash;
    mod tls;
    mod users;
}

/// Sessions that fail, end or reconnect.
mod sessions {
    mod faults;
    mod fencing;
    mod inherited_inodes;
    mod invalid_replies;
    mod killed_mount;
    mod reconnect;
    mod takeover;
    mod upgrades;
}

/// The program, and the operations that a mount supports.
mod mount {
    mod affinity;
    mod failure;
    mod io_uring;
    mod lost_memory;
    mod lost_server;
    mod mount8;
    mod mount_errors;
    mod private_server;
    mod program;
    mod swap_memory;
    mod unsupported;
}
