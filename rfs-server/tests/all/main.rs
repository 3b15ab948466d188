//! Tests of a server with real sessions, and of the program: one test program, so that it is linked
//! once.
//!
//! A module is a topic, and a test is named by its path: `sessions::keys::a_key_is_for_its_export`.
//! nextest gives each test its own process.

mod common;

/// Sessions: attaching, keys, exports, recalls, mounts that reconnect.
mod sessions {
    mod caching;
    mod exports;
    mod keys;
    mod mounts;
    mod providers;
    mod stores;
}

/// The memory of a server: its files, snapshots, checksums, reservation, limits and ownership.
mod memory {
    mod checksum;
    mod dump;
    mod limits;
    mod ownership;
    mod reserve;
    mod resize;
    mod restart;
    mod snapshots;
    mod truncation;
}

/// The program: options in a file, output, status, failed threads, TLS.
mod program {
    mod configuration;
    mod failure;
    mod output;
    mod pool;
    mod registry;
    mod status;
    mod tls;
}
