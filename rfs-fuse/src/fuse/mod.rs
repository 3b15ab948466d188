//! The FUSE adapter: translates kernel requests into client operations, and results into replies.
//!
//! A [`session`](Filesystem) receives requests over `/dev/fuse` or io_uring. Its threads run the
//! handlers concurrently. A handler blocks its session thread until the server replies; the
//! timeouts of the session with the server bound each wait. A blocked lock request occupies no
//! session thread (`locks`). The kernel checks permissions (`default_permissions`). `affinity`
//! moves session threads to the cores of their callers. Operations without a handler fail with
//! ENOSYS, after which the kernel stops sending them.

mod adapter;
mod affinity;
mod background;
mod convert;
mod descriptors;
mod kernel;
mod kernel_cache;
mod locks;
mod process;
mod session;
mod settings;

pub use adapter::Adapter;
pub use affinity::Placement;
pub(crate) use descriptors::clone_of;
pub use kernel::{Kernel, KernelLink};
pub use kernel_cache::losses::{Losses, UnreportedLosses};
pub use locks::{LockWait, LockWaits};
pub use session::*;
pub(crate) use session::{Trace, TraceError, parse_limit};
pub use settings::{FOREVER, IO_BLOCK, Settings};
