//! Ways in for fuzz targets: decoders of what a peer sends that are otherwise nobody's business outside of this crate.
//!
//! Each takes any bytes and panics if what it promises does not hold; each has seeds, which are what an honest peer sends. Only
//! in builds with the feature `fuzzing`.

#[cfg(feature = "ibverbs")]
pub use crate::provider::ibverbs::fuzz::{endpoint, endpoint_seeds};
pub use crate::{
    rpc::fuzz::{call_header, call_header_seeds, call_slots, call_slots_seeds},
    session::fuzz::{answer, answer_seeds, preamble, preamble_seeds},
};
