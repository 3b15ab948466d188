//! Errors and events of the pager.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, io, sync::Arc};

use rdmabox::{Address, ConnectError, RequestError};

/// Why a pager could not be made, or could not map memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagingError {
    /// An option is out of its range.
    #[error("{option} is {value}; allowed: {allowed}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// The range.
        allowed: &'static str,
    },
    /// A server could not be reached.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The server.
        address: Address,
        /// The reason.
        source: ConnectError,
    },
    /// A server is reachable, but does not lend memory.
    #[error("{address} does not lend memory to pagers: {source}")]
    NotALender {
        /// The server.
        address: Address,
        /// The reason.
        source: RequestError,
    },
    /// The kernel reports no page faults to this process.
    #[error(
        "userfaultfd is not available: {0}. The process needs the capability CAP_SYS_PTRACE, access to \
         /dev/userfaultfd, or the setting vm.unprivileged_userfaultfd=1; the kernel must be 5.7 or later"
    )]
    Userfaultfd(io::Error),
    /// The kernel refused memory or a thread.
    #[error("{what} failed: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The length of a mapping is zero or too large.
    #[error("cannot map {0} bytes")]
    Length(usize),
    /// The fault thread has ended.
    #[error("the pager has stopped")]
    Stopped,
}

/// A report of the pager while it runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PagerEvent {
    /// A server is lost. The pager uses it no more.
    ServerLost {
        /// The server.
        address: Address,
        /// The error of the request that failed.
        error: RequestError,
        /// Pages of which the other servers have no copy and no code. A load or store on such a
        /// page raises SIGBUS.
        lost_pages: u64,
        /// Servers that are left.
        servers_left: usize,
    },
    /// No server has room. Pages stay in local memory, beyond the budget, until one has.
    NoRoom {
        /// Resident pages now.
        resident: u64,
        /// The budget, in pages.
        budget: u64,
    },
    /// All pages have the redundancy again that the remaining servers allow: with enough of them,
    /// the redundancy of before the loss.
    Repaired {
        /// Chunks of 1 MiB that other servers got.
        chunks: u64,
    },
    /// The kernel refused to map or protect a page.
    PageFailed {
        /// Address of the page. A load or store on the page raises SIGBUS.
        address: usize,
        /// The reason.
        error: Arc<io::Error>,
    },
}

impl fmt::Display for PagerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PagerEvent::ServerLost { address, error, lost_pages, servers_left } => write!(
                f,
                "lender {address} is lost: {error}; {lost_pages} pages are lost with it, and {servers_left} \
                 lenders are left"
            ),
            PagerEvent::NoRoom { resident, budget } => {
                write!(f, "no lender has room: {resident} pages are in local memory, of a budget of {budget}")
            }
            PagerEvent::Repaired { chunks } => {
                write!(f, "all pages have their redundancy again: other lenders got {chunks} MiB")
            }
            PagerEvent::PageFailed { address, error } => {
                write!(f, "the page at {address:#x} is lost: {error}")
            }
        }
    }
}
