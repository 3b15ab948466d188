//! Memory regions and their access rights.

use std::sync::Arc;

use bitflags::bitflags;

bitflags! {
    /// What a memory region may be used for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// This side's receives, READs and atomics may write into it.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE into it.
        const REMOTE_WRITE = 2;
        /// A peer may READ from it.
        const REMOTE_READ = 4;
        /// A peer may run atomics on it.
        const REMOTE_ATOMIC = 8;
    }
}

impl Access {
    /// Everything a peer can be allowed, and local writes.
    pub const REMOTE_ALL: Access = Access::all();
    /// The rights of any kind that a peer can have.
    pub const REMOTE_ANY: Access =
        Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
}

/// Registered memory. Dropping the last handle deregisters it: later requests that name its keys are refused.
/// The bytes themselves stay mapped until every request that was using them is done.
pub trait MemoryRegion: Send + Sync + std::fmt::Debug {
    /// First byte, as a virtual address of this process.
    fn addr(&self) -> u64;
    /// Length in bytes.
    fn length(&self) -> u64;
    /// Key for this side's scatter/gather elements.
    fn lkey(&self) -> u32;
    /// Key to give to a peer.
    fn rkey(&self) -> u32;
    /// The rights it was registered with.
    fn access(&self) -> Access;
}

/// A shared handle to a region.
pub type MrHandle = Arc<dyn MemoryRegion>;
