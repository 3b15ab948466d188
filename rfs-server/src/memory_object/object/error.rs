//! Reasons why a memory object cannot be used.

use std::{
    io,
    path::{Path, PathBuf},
};

use rdmabox::MemoryError;

use crate::memory_object::{
    header::{HeaderError, Shape},
    log::LogError,
    ownership::OwnershipError,
};

/// Reason why a memory object cannot be used. The object is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A system call failed.
    #[error("{path}: {what}: {source}", path = .path.display())]
    Os {
        /// The file or directory.
        path: PathBuf,
        /// The call.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// Other users can change the file.
    #[error("{path}: {source}", path = .path.display())]
    Ownership {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: OwnershipError,
    },
    /// Another server uses the directory.
    #[error("{path}: another server uses this directory", path = .path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The object has another largest size or number of inodes, or differs in checksums.
    #[error(
        "{path}: made with other options: use --memory {arena} --inodes {}{} as before, or --memory SIZE --max-memory \
         {arena} with a smaller size (or the same of --export), or delete {path} (loses its files)",
        .there.inodes, checksums(.there), arena = .there.arena, path = .path.display()
    )]
    Shape {
        /// The directory of the object.
        path: PathBuf,
        /// The shape of the object.
        there: Shape,
        /// The shape that the options ask for.
        asked: Shape,
    },
    /// The state file has no valid header.
    #[error("{path}: {source}{}", step_of(source, path), path = .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: HeaderError,
    },
    /// The length of a file differs from the length that the header implies.
    #[error("{path}: it is damaged: {there} bytes, not {expected}{}", start_anew(path), path = .path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        there: u64,
        /// The length that the header implies.
        expected: u64,
    },
    /// The log cannot be read.
    #[error("{path}: {source}{}", start_anew(path), path = .path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: LogError,
    },
    /// A file cannot be mapped.
    #[error("{path}: {source}", path = .path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// Why.
        source: MemoryError,
    },
}

/// Returns the end of a message about a damaged file: the next step.
fn start_anew(path: &Path) -> String {
    let dir = path.parent().unwrap_or(path).display();
    format!(": move {dir} away to start empty, or from the newest snapshot (--persist)")
}

/// Returns the end of a message about a header.
fn step_of(source: &HeaderError, path: &Path) -> String {
    match source {
        HeaderError::Foreign | HeaderError::Damaged => start_anew(path),
        HeaderError::Version(_) => ": start a server of that version".into(),
    }
}

/// Returns the part of the error message about checksums.
fn checksums(shape: &Shape) -> &'static str {
    if shape.checked { " --checksum" } else { ", without --checksum," }
}

pub(super) fn os(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> ObjectError {
    move |source| ObjectError::Os { path: path.to_owned(), what, source }
}

pub(super) fn ownership(path: &Path) -> impl FnOnce(OwnershipError) -> ObjectError {
    move |source| ObjectError::Ownership { path: path.to_owned(), source }
}
