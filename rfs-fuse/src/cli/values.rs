//! Values of options. No I/O, no locks, no clock.

use std::{fmt::Display, str::FromStr, time::Duration};

/// Caching in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    /// Names, attributes and pages, until the server recalls them.
    Auto,
    /// Nothing.
    None,
    /// As `Auto`, and written data.
    Writeback,
}

pub(super) fn cache(text: &str) -> Result<Cache, String> {
    match text {
        "auto" => Ok(Cache::Auto),
        "none" => Ok(Cache::None),
        "writeback" => Ok(Cache::Writeback),
        _ => Err("expected auto, none or writeback".into()),
    }
}

/// Whether requests of the kernel arrive over io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoUring {
    /// Over io_uring if the kernel offers it.
    Auto,
    /// Over io_uring. Without it, mounting fails.
    On,
    /// Over /dev/fuse.
    Off,
}

pub(super) fn io_uring(text: &str) -> Result<IoUring, String> {
    match text {
        "auto" => Ok(IoUring::Auto),
        "on" => Ok(IoUring::On),
        "off" => Ok(IoUring::Off),
        _ => Err("expected auto, on or off".into()),
    }
}

/// The fate of a mount once no session with its server can follow the lost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LostServer {
    /// Unmount, and end the program with a status of its own.
    End,
    /// Unmount, and mount the export that the server has now.
    Remount,
    /// Leave the mount in place. Every operation fails.
    Stay,
}

pub(super) fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}

pub(super) fn kernel_size(text: &str) -> Result<u32, String> {
    const LIMITS: std::ops::RangeInclusive<u64> = 4096..=16 << 20;
    let bytes = byte_size::parse(text).map_err(|e| e.to_string())?;
    u32::try_from(bytes)
        .ok()
        .filter(|_| LIMITS.contains(&bytes))
        .ok_or_else(|| "it has to be between 4K and 16M".into())
}

pub(super) fn subtype(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match text.chars().all(allowed) && (1..=64).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err("it consists of 1 to 64 letters, digits, dots, dashes and underscores".into()),
    }
}

/// Parses a number of seconds, with or without a fraction.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("invalid number of seconds {text:?}"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds <= 1e9 => Ok(duration),
        _ => Err("it has to be between 0 and a billion seconds".into()),
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let duration = timeout(text)?;
    if duration.is_zero() { Err("it has to be more than 0".into()) } else { Ok(duration) }
}
