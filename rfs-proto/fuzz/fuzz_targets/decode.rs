//! `cargo +nightly fuzz run decode`: the decoders against any bytes.
#![no_main]

#[path = "../entry.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::check(bytes));
