//! Memory regions and their access rights.

use std::sync::Arc;

use bitflags::bitflags;

bitflags! {
    /// Access rights of a memory region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Local receives, READs and atomics may write to the region.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE to the region.
        const REMOTE_WRITE = 2;
        /// A peer may READ from the region.
        const REMOTE_READ = 4;
        /// A peer may run atomics on the region.
        const REMOTE_ATOMIC = 8;
    }
}

impl Access {
    /// Every right: all remote rights, and local writes.
    pub const REMOTE_ALL: Access = Access::all();
    /// Every remote right, without local writes.
    pub const REMOTE_ANY: Access =
        Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
}

/// Registered memory. Dropping the last handle deregisters the region; later requests that name
/// its keys are refused. The bytes stay mapped until every request that uses them has completed.
pub trait MemoryRegion: super::Sealed + Send + Sync + std::fmt::Debug {
    /// Returns the virtual address of the first byte in this process.
    fn addr(&self) -> u64;
    /// Returns the length in bytes.
    fn length(&self) -> u64;
    /// Returns the key for local scatter/gather elements.
    fn lkey(&self) -> u32;
    /// Returns the key that a peer uses.
    fn rkey(&self) -> u32;
    /// Returns the rights of the registration.
    fn access(&self) -> Access;

    /// Deregisters the region, and ends the requests of peers that use it. Takes the last handle.
    ///
    /// After the return no request of a peer accesses the bytes through this region, except by a
    /// peer that maps the memory: [`QueuePair::is_fenced`](super::QueuePair::is_fenced) tells when
    /// its requests are over. A request under way fails, and its queue pair moves to Err.
    ///
    /// Returns false if the device did not stop, and may still access the bytes.
    fn revoke(self: Arc<Self>) -> bool {
        drop(self);
        true
    }
}

/// A shared handle to a region.
pub type MrHandle = Arc<dyn MemoryRegion>;
