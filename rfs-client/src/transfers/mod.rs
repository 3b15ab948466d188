//! Reads and writes in flight.

pub(crate) mod coalescer;
pub(crate) mod in_flight;
pub(crate) mod write_retries;
