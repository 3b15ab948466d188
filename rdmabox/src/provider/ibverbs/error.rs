//! Errors between the program, libibverbs and the kernel.

use std::io;

/// Failure to find or query RDMA devices.
///
/// If [`is_absence`](Self::is_absence) returns true, this machine has no RDMA support. Otherwise
/// an existing part does not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IbverbsError {
    /// The C library is not installed, or cannot be loaded.
    #[error(
        "{name} cannot be loaded ({reason}); it is the RDMA verbs library: on Debian, install the packages \
         libibverbs1 and ibverbs-providers"
    )]
    LibraryMissing {
        /// Name of the file.
        name: String,
        /// Message of the dynamic loader.
        reason: String,
    },
    /// The C library lacks a function: it is another library, or too old.
    #[error(
        "{name} has no function {symbol}: it is no usable RDMA verbs library; on Debian, install the packages \
         libibverbs1 and ibverbs-providers"
    )]
    SymbolMissing {
        /// Name of the loaded file.
        name: String,
        /// Name of the missing function.
        symbol: &'static str,
    },
    /// The kernel offers no verbs to user space.
    #[error(
        "the kernel offers no RDMA verbs (no usable /sys/class/infiniband_verbs): it has no RDMA support, or the \
         module ib_uverbs is not loaded"
    )]
    NoKernelSupport,
    /// The kernel has devices, but libibverbs can use none of them.
    #[error(
        "the kernel has RDMA devices ({}) and libibverbs can use none of them: it has no driver for them (on Debian, \
         install the package ibverbs-providers), or there are no device files in /dev/infiniband (as in a container \
         that was not given them)",
        devices.join(", ")
    )]
    Unusable {
        /// Names of the kernel's devices.
        devices: Vec<String>,
    },
    /// The devices could not be listed.
    #[error("RDMA devices cannot be listed: {0}")]
    List(#[source] io::Error),
    /// A device could not be opened. The library tries several ways and returns the error of the
    /// last: a file without access permission may be reported as missing.
    #[error(
        "{device} cannot be opened: {source}; the last attempt of several gave this error, so see first whether this \
         user may read and write the device's file in /dev/infiniband"
    )]
    Open {
        /// Name of the device.
        device: String,
        /// Error of the system.
        source: io::Error,
    },
    /// An open device does not answer.
    #[error("{device}: {call}: {source}")]
    Query {
        /// Name of the device.
        device: String,
        /// The call that failed.
        call: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl IbverbsError {
    /// Returns true if the machine has no RDMA support: no library, or no support in the kernel.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, IbverbsError::LibraryMissing { .. } | IbverbsError::NoKernelSupport)
    }
}
