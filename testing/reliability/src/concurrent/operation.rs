//! Operations of programs on one small tree, and their outcomes.
//!
//! An [`Op`] names files by constant paths and open files by slots of the worker that performs
//! it. A slot may be empty: the operation then does nothing. So a program of operations is fixed
//! by its seed, not by the outcomes.

use std::{collections::BTreeSet, fmt};

/// Names of regular files only.
pub(crate) const FILES: [&str; 6] = ["a", "b", "c", "d/x", "d/y", "e/x"];
/// Names of directories only. The first one always exists.
pub(crate) const DIRS: [&str; 3] = [".", "d", "e"];
/// Slots for open files of one worker.
pub(crate) const SLOTS: u8 = 3;
/// Bytes that record locks are drawn from. The last one stands for all bytes behind it.
pub(crate) const LOCKED: usize = 12;

/// A path below the directory of the run.
pub(crate) type Path = &'static str;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct How {
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) direct: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
}

/// Mode of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Allocate,
    AllocateKeep,
    Punch,
    Zero,
    ZeroKeep,
}

/// Requested lock mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    Free,
    Shared,
    Exclusive,
}

/// How a name is given to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renaming {
    Replace,
    NoReplace,
    Exchange,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Open { slot: u8, path: Path, how: How },
    Close { slot: u8 },
    Write { slot: u8, at: u64, len: u64 },
    Read { slot: u8, at: u64, len: u64 },
    ReadName { path: Path, at: u64, len: u64 },
    Truncate { slot: u8, size: u64 },
    TruncateName { path: Path, size: u64 },
    Allocate { slot: u8, space: Space, at: u64, len: u64 },
    Copy { from: u8, to: u8, at: u64, target: u64, len: u64 },
    Stat { slot: u8 },
    StatName { path: Path },
    Seek { slot: u8, hole: bool, at: u64 },
    Chmod { path: Path, mode: u32 },
    Chown { path: Path, owner: u32 },
    SetAttribute { path: Path },
    GetAttribute { path: Path },
    Rename { from: Path, to: Path, how: Renaming },
    Link { from: Path, to: Path },
    Unlink { path: Path },
    Mkdir { path: Path },
    Rmdir { path: Path },
    List { path: Path },
    LockFile { slot: u8, lock: Lock },
    LockRange { slot: u8, lock: Lock, at: u8, len: u8 },
}

impl Op {
    /// Returns true for an operation that adds or removes names.
    pub(crate) fn changes_names(&self) -> bool {
        match self {
            Op::Open { how, .. } => how.create,
            Op::Rename { .. } | Op::Link { .. } | Op::Unlink { .. } | Op::Mkdir { .. } | Op::Rmdir { .. } => {
                true
            }
            _ => false,
        }
    }

    /// Returns true for an operation that changes anything on the server.
    fn is_change(&self) -> bool {
        match self {
            Op::Open { how, .. } => how.write || how.create,
            Op::Chmod { .. } | Op::Chown { .. } | Op::SetAttribute { .. } | Op::Allocate { .. } => true,
            _ => self.changes_names() || self.changes_size(),
        }
    }

    /// Returns true if the kernel may hold the lock of a directory over this operation. `is_long`:
    /// the operation took so long that its mount waits for none of its own changes.
    pub(crate) fn delays_drops(&self, directory: Path, is_long: bool) -> bool {
        let holds = |path: Path| path.split_once('/').map_or(".", |(up, _)| up) == directory;
        let held = match *self {
            Op::Rename { from, to, .. } => holds(from) || holds(to),
            Op::Link { to, .. } => holds(to),
            Op::Unlink { path } | Op::Mkdir { path } | Op::Rmdir { path } => holds(path),
            Op::Open { path, how, .. } => how.create && holds(path),
            Op::Chmod { path, .. } | Op::Chown { path, .. } | Op::SetAttribute { path } => path == directory,
            _ => false,
        };
        held || is_long && self.is_change()
    }

    /// Returns true for an operation that may change the size of a file.
    pub(crate) fn changes_size(&self) -> bool {
        match self {
            Op::Open { how, .. } => how.truncate,
            Op::Write { .. } | Op::Truncate { .. } | Op::TruncateName { .. } | Op::Copy { .. } => true,
            Op::Allocate { space, .. } => matches!(space, Space::Allocate | Space::Zero),
            _ => false,
        }
    }
}

/// Attributes of an object, from `stat`. `links` and `size` of a directory are zero here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) directory: bool,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    pub(crate) links: u64,
}

/// The outcome of an operation.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The slot was empty.
    Nothing,
    Done,
    Count(u64),
    Bytes(Vec<u8>),
    Attr(Attr),
    Names(BTreeSet<String>),
    Value(u64),
    /// The error's number.
    Failed(i32),
    /// The client was killed during the operation, which may or may not have taken effect.
    Unknown,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Nothing => write!(f, "nothing"),
            Outcome::Done => write!(f, "done"),
            Outcome::Count(count) => write!(f, "{count}"),
            Outcome::Bytes(bytes) => write!(f, "{}", Runs(bytes)),
            Outcome::Attr(attr) => write!(
                f,
                "{{{}size {}, mode {:o}, owner {}, links {}}}",
                if attr.directory { "directory, " } else { "" },
                attr.size,
                attr.mode,
                attr.owner,
                attr.links
            ),
            Outcome::Names(names) => write!(f, "{names:?}"),
            Outcome::Value(value) => write!(f, "value {value}"),
            Outcome::Failed(number) => write!(f, "{}", std::io::Error::from_raw_os_error(*number)),
            Outcome::Unknown => write!(f, "unknown, the client was killed"),
        }
    }
}

/// Returns the byte that write number `id` leaves at place `index` of its buffer: never zero.
pub(crate) fn byte(id: u64, index: u64) -> u8 {
    // A high half that names the write, a low half that moves with the place.
    let write = (id % 15 + 1) as u8;
    let mixed = (id / 15).wrapping_mul(7).wrapping_add(index).wrapping_add(index >> 9);
    write << 4 | (mixed % 16) as u8
}

/// Returns the buffer of write number `id`.
pub(crate) fn bytes(id: u64, len: u64) -> Vec<u8> {
    (0..len).map(|index| byte(id, index)).collect()
}

/// Shows bytes as runs of zeros and runs of bytes of one write.
pub(crate) struct Runs<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Runs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())?;
        let mut from = 0;
        for (shown, run) in self.0.chunk_by(|a, b| a >> 4 == b >> 4).enumerate() {
            if shown == 12 {
                return write!(f, " ...");
            }
            let to = from + run.len();
            match run[0] >> 4 {
                0 => write!(f, " {from}..{to}:zero")?,
                write => write!(f, " {from}..{to}:w{}", write - 1)?,
            }
            from = to;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_leaves_no_zero_and_differs_from_the_next_ones() {
        for id in 0..14 {
            assert!(bytes(id, 5000).iter().all(|&byte| byte != 0));
            assert!(bytes(id, 5000).iter().zip(bytes(id + 1, 5000)).all(|(a, b)| *a != b));
        }
        // Moved by a page or a byte it is not itself.
        assert!((0..64).any(|index| byte(3, index) != byte(3, index + 4096)));
        assert_ne!(byte(3, 5), byte(3, 6));
    }

    #[test]
    fn runs_are_shown_by_write() {
        let mut shown = vec![0; 10];
        shown.extend(bytes(4, 5));
        assert_eq!(Runs(&shown).to_string(), "15 bytes 0..10:zero 10..15:w4");
    }
}
