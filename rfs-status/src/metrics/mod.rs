//! Metrics for Prometheus: names and values ([`Exposition`]), and the address that serves them
//! ([`Endpoint`]).
//!
//! Names follow Prometheus: base units in the name (`_bytes`, `_seconds`), counters end with
//! `_total`. A label has a bounded number of values.

mod endpoint;
mod exposition;
mod request;

pub use endpoint::{BoundEndpoint, Endpoint, EndpointError, parse_address};
pub use exposition::{Exposition, Row};

/// Returns the names in a text that begin with `prefix`, for tests of files that name metrics.
pub fn names<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(move |c| !is_name(c)).filter(move |word| word.starts_with(prefix))
}
