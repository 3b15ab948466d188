//! Registered regions of this side, and the peer's memory as this side maps it.

pub(crate) mod peer_memory;
mod regions;
mod shared_table;

pub(crate) use self::peer_memory::{Atomic, Executing, PeerMappings, PeerMemory, Refused};
pub(crate) use self::regions::{Piece, Region, Regions};
pub(crate) use self::shared_table::OwnTable;
