//! Fuzzes the decoders with arbitrary bytes: `cargo +nightly fuzz run decode`.
#![no_main]

#[path = "../entry.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::check(bytes));
