//! Carafe: graphs in RStore, with online exploration and a Pregel engine.
//!
//! A graph has a namespace for its vertices and one for its edges. A vertex is at a fixed place,
//! and says where its edges are. [`Explorer`] maps and reads one vertex at a time. [`page_rank`]
//! runs supersteps on partitions of equal weight, which send messages through mailboxes in RStore.
//!
//! # Concurrency
//! Each partition is a thread with a client of its own. Partitions share nothing but namespaces.

mod csr;
mod explorer;
mod layout;
mod mailbox;
mod partition;
mod pregel;
mod rank;
mod rmat;

pub use self::{
    csr::Csr,
    explorer::{Explorer, Path, Vertex},
    layout::GraphStore,
    pregel::{PageRankReport, page_rank},
    rank::{SCALE, page_rank_locally},
    rmat::rmat,
};
