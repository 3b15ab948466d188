//! Entry points for fuzz targets: decoders of a peer's data that are otherwise private (feature
//! `fuzzing`).
//!
//! Each decoder accepts any bytes and panics if a guarantee does not hold. Each has seeds, which
//! are the data of a correct peer.
//!
//! [`Intruder`] is a client that has a key and attacks its host.

mod intruder;

pub use self::intruder::{Intruder, RawStream, call_frame, read_frame, write_frame};
#[cfg(feature = "ibverbs")]
pub use crate::provider::ibverbs::fuzz::{endpoint, endpoint_seeds};
pub use crate::{
    rpc::fuzz::{call_header, call_header_seeds, call_slots, call_slots_seeds},
    session::fuzz::{answer, answer_seeds, preamble, preamble_seeds},
};
