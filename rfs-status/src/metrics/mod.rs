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

/// Returns whether metrics in the text format have a name, or a histogram with this part. For tests
/// of files that name metrics.
pub fn has(metrics: &str, name: &str) -> bool {
    let part_of_histogram = |end| {
        let base = name.strip_suffix(end);
        base.is_some_and(|base| metrics.contains(&format!("# TYPE {base} histogram\n")))
    };
    metrics.contains(&format!("# TYPE {name} "))
        || ["_bucket", "_sum", "_count"].into_iter().any(part_of_histogram)
}
