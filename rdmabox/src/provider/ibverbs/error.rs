//! What can go wrong between the program, libibverbs and the kernel.

use std::io;

/// RDMA devices could not be found or read.
///
/// Those for which [`is_absence`](Self::is_absence) holds say that this machine offers no RDMA; the others
/// say that something which is there does not work.
#[derive(Debug, thiserror::Error)]
pub enum IbverbsError {
    /// The C library is not installed, or cannot be loaded.
    #[error(
        "{name} cannot be loaded ({reason}); it is the RDMA verbs library: on Debian, install the packages \
         libibverbs1 and ibverbs-providers"
    )]
    LibraryMissing {
        /// The file that was asked for.
        name: String,
        /// What the dynamic loader said.
        reason: String,
    },
    /// The C library is there and lacks a function: it is another library, or far too old.
    #[error(
        "{name} has no function {symbol}: it is no usable RDMA verbs library; on Debian, install the packages \
         libibverbs1 and ibverbs-providers"
    )]
    SymbolMissing {
        /// The file that was loaded.
        name: String,
        /// The function that it lacks.
        symbol: &'static str,
    },
    /// The kernel offers no verbs to user space.
    #[error(
        "the kernel offers no RDMA verbs (no usable /sys/class/infiniband_verbs): it has no RDMA support, or the \
         module ib_uverbs is not loaded"
    )]
    NoKernelSupport,
    /// The kernel has devices, and libibverbs can use none of them.
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
    /// One device could not be opened. The library tries more than one way and gives the error of the last: a
    /// file that may not be opened can read as one that does not exist.
    #[error(
        "{device} cannot be opened: {source}; the last attempt of several gave this error, so see first whether this \
         user may read and write the device's file in /dev/infiniband"
    )]
    Open {
        /// Its name.
        device: String,
        /// What the system said.
        source: io::Error,
    },
    /// One device is open and does not answer.
    #[error("{device}: {call}: {source}")]
    Query {
        /// Its name.
        device: String,
        /// The call that failed.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl IbverbsError {
    /// Whether the machine simply offers no RDMA: no library, or no support in the kernel.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, IbverbsError::LibraryMissing { .. } | IbverbsError::NoKernelSupport)
    }
}
