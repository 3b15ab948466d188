//! The size of an export of a running server, and the memory that is there for it.
//!
//! # Concurrency
//! Any thread. One change of an export's size at a time: `Space` has the lock.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rdmabox::memory::{MemoryBound, available_memory};
use rfs_proto::BLOCK;
use rustix::process::{Resource, getrlimit};

use super::super::{
    error::ResizeError,
    export_config::{ExportConfig, MIN_MEMORY},
};
use crate::space::{account::Space, alloc::range::Range};

/// Changes the size of an export.
#[derive(Clone, Debug)]
pub(in crate::server) struct ExportSize {
    pub(in crate::server) space: Arc<Space>,
    /// Memory is reserved before files get it.
    pub(in crate::server) reserves: bool,
    /// Directory of the memory objects, if the memory is in one.
    pub(in crate::server) memory_dir: Option<PathBuf>,
    /// An RDMA device has registered the memory.
    pub(in crate::server) is_pinned: bool,
}

impl ExportSize {
    /// Returns the largest size in bytes.
    pub(in crate::server) fn max(&self) -> u64 {
        self.space.bytes().len()
    }

    /// Changes the size of the server's own memory, rounded down to whole blocks. Returns the old
    /// and the new size.
    ///
    /// # Errors
    /// The size is unchanged.
    pub(in crate::server) fn resize(&self, size: u64) -> Result<(u64, u64), ResizeError> {
        let size = size / BLOCK * BLOCK;
        if size < MIN_MEMORY {
            return Err(ResizeError::TooLittle { asked: size });
        }
        if size > self.max() {
            return Err(ResizeError::BeyondMax { asked: size, max: self.max() });
        }
        if self.is_pinned && size != self.space.own_len() {
            return Err(ResizeError::Pinned);
        }
        let old = self.space.resize(size, |more| self.reserve(more))?;
        Ok((old, size))
    }

    /// Reserves memory that files are to have in addition.
    fn reserve(&self, more: &[Range]) -> Result<(), ResizeError> {
        let asked = more.iter().map(|range| range.len).sum();
        check_bounds(self.memory_dir.as_deref(), asked)
            .map_err(|bound| ResizeError::NotEnough { asked, bound })?;
        if !self.reserves {
            return Ok(());
        }
        more.iter()
            .try_for_each(|&range| self.space.reserve_range(range))
            .map_err(|source| ResizeError::Reserve { source })
    }
}

/// Changes the size of the export with a name. Returns the old and the new size.
///
/// # Errors
/// There is no such export, or its size is unchanged for another reason.
pub(in crate::server) fn resize_one<'a>(
    exports: impl Iterator<Item = (&'a str, &'a ExportSize)> + Clone,
    name: &str,
    size: u64,
) -> Result<(u64, u64), ResizeError> {
    let there = || exports.clone().map(|(name, _)| name.to_owned()).collect();
    match exports.clone().find(|(other, _)| *other == name) {
        Some((_, export)) => export.resize(size),
        None => Err(ResizeError::NoExport { name: name.to_owned(), there: there() }),
    }
}

/// Returns true if the exports of two configurations are the same but for their sizes.
pub(in crate::server) fn differ_in_sizes_only(asked: &[ExportConfig], wanted: &[ExportConfig]) -> bool {
    let without_size = |export: &ExportConfig| {
        let max = Some(export.arena_len());
        ExportConfig { memory: 0, max, ..export.clone() }
    };
    asked.iter().map(without_size).eq(wanted.iter().map(without_size))
}

/// Checks that there is memory: in the file system of a directory, or of the machine. The kernel
/// kills processes before it refuses memory.
///
/// # Errors
/// The tightest limit that is too low.
pub(in crate::server) fn check_bounds(directory: Option<&Path>, asked: u64) -> Result<(), MemoryBound> {
    let mut bounds = Vec::new();
    if let Some(path) = directory
        && let Ok(there) = rustix::fs::statvfs(path)
    {
        let bytes = there.f_bavail.saturating_mul(there.f_frsize);
        bounds.push(MemoryBound { bytes, what: format!("space in --memory-dir {}", path.display()) });
    }
    if directory.is_none_or(is_memory) {
        bounds.extend(available_memory());
    }
    let too_low = bounds.into_iter().filter(|bound| bound.bytes < asked);
    too_low.min_by_key(|bound| bound.bytes).map_or(Ok(()), Err)
}

/// Checks that this process may map so many bytes, which need not be there. Beyond the limit on
/// file sizes, the kernel would end the process.
///
/// # Errors
/// The limit that is too low.
pub(in crate::server) fn check_limits(bytes: u64) -> Result<(), MemoryBound> {
    let limits = [
        (Resource::Fsize, "the limit on file sizes (ulimit -f)"),
        (Resource::As, "the limit on address space (ulimit -v)"),
    ];
    for (resource, what) in limits {
        match getrlimit(resource).current {
            Some(limit) if limit < bytes => return Err(MemoryBound { bytes: limit, what: what.into() }),
            _ => {}
        }
    }
    Ok(())
}

/// Returns true if a file system keeps its files in memory.
pub(in crate::server) fn is_memory(path: &Path) -> bool {
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;
    let magics = [TMPFS_MAGIC, HUGETLBFS_MAGIC];
    rustix::fs::statfs(path).is_ok_and(|system| magics.contains(&system.f_type))
}
