//! Counts of carried calls, and of descriptors that were handed back with the reason.
//!
//! # Concurrency
//! Any thread. Calls are counted only if the report is on, so that threads share no memory else.

use std::{
    fmt::Write,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$item_doc])* $item,)* }

        impl $name {
            const NAMES: &[&str] = &[$($text),*];
        }
    };
}

named! {
    /// A call on a descriptor of a mount.
    Call {
        Read = "read",
        Write = "write",
        Pread = "pread",
        Pwrite = "pwrite",
        Readv = "readv",
        Writev = "writev",
        Preadv = "preadv",
        Pwritev = "pwritev",
        Lseek = "lseek",
        Fsync = "fsync",
        Fstat = "fstat",
        Ftruncate = "ftruncate",
        Sendfile = "sendfile",
    }
}

named! {
    /// Why the kernel has a descriptor, or its offset.
    Reason {
        /// The mount gives no access, or the server refuses the session.
        NoAccess = "no session with the server",
        /// The process runs as another user than when its session began.
        OtherUser = "the process has changed its user",
        NoName = "the file has no name any more, or cannot be opened",
        Mapped = "the file is mapped",
        Stream = "a stream uses the descriptor",
        Direct = "a plain system call uses the descriptor",
        Flags = "fcntl changed O_APPEND",
        Shared = "another process shares the offset",
        Lost = "the session was lost",
        Uring = "io_uring may use the offset",
        OldKernel = "the kernel does not number mounts uniquely",
        Closed = "the program closed descriptors of the library",
    }
}

/// Counters of the process.
#[derive(Debug)]
pub(crate) struct Counts {
    is_on: AtomicBool,
    carried: [AtomicU64; Call::NAMES.len()],
    kernel: [AtomicU64; Call::NAMES.len()],
    bytes: AtomicU64,
    opened: AtomicU64,
    reasons: [AtomicU64; Reason::NAMES.len()],
}

/// The counters.
pub(crate) static COUNTS: Counts = Counts::new();

impl Counts {
    const fn new() -> Counts {
        Counts {
            is_on: AtomicBool::new(false),
            carried: [const { AtomicU64::new(0) }; Call::NAMES.len()],
            kernel: [const { AtomicU64::new(0) }; Call::NAMES.len()],
            bytes: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            reasons: [const { AtomicU64::new(0) }; Reason::NAMES.len()],
        }
    }

    /// Turns the report on.
    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Counts a carried call that moved `bytes`.
    #[inline]
    pub(crate) fn carried(&self, call: Call, bytes: usize) {
        if self.is_on() {
            self.carried[call as usize].fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts a call on a known descriptor that the kernel does.
    pub(crate) fn left(&self, call: Call) {
        if self.is_on() {
            self.kernel[call as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a file that the library has opened.
    pub(crate) fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a descriptor, or its offset, that the kernel has from now on.
    pub(crate) fn handed_back(&self, reason: Reason) {
        self.reasons[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets all counts, in a child of `fork`.
    pub(crate) fn reset(&self) {
        let all = self.carried.iter().chain(&self.kernel).chain(&self.reasons);
        all.chain([&self.bytes, &self.opened]).for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Returns the report, or `None` if there is nothing to report.
    pub(crate) fn report(&self, process: u32) -> Option<String> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut out = String::new();
        for (at, name) in Call::NAMES.iter().enumerate() {
            let (carried, kernel) = (count(&self.carried[at]), count(&self.kernel[at]));
            if carried + kernel > 0 {
                // Writing to a string does not fail.
                writeln!(out, "  {name}: {carried} carried, {kernel} by the kernel").ok();
            }
        }
        for (at, reason) in Reason::NAMES.iter().enumerate() {
            let times = count(&self.reasons[at]);
            if times > 0 {
                writeln!(out, "  handed back: {times}: {reason}").ok();
            }
        }
        let (opened, bytes) = (count(&self.opened), count(&self.bytes));
        let head = format!("rfs-preload: process {process}: {opened} files opened, {bytes} bytes carried\n");
        (!out.is_empty() || opened > 0).then(|| head + &out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_calls_and_reasons() {
        let counts = Counts::new();
        counts.carried(Call::Read, 7);
        assert_eq!(counts.report(1), None, "counted without being on");
        counts.turn_on();
        counts.carried(Call::Pread, 4096);
        counts.left(Call::Pread);
        counts.opened();
        counts.handed_back(Reason::Mapped);
        let expected = "rfs-preload: process 1: 1 files opened, 4096 bytes carried\n  \
                        pread: 1 carried, 1 by the kernel\n  handed back: 1: the file is mapped\n";
        assert_eq!(counts.report(1).as_deref(), Some(expected));
        counts.reset();
        assert_eq!(counts.report(1), None);
    }
}
