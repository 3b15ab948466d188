//! Tables in Markdown, and medians for their rows.
//!
//! # Concurrency
//! Plain values.

use comfy_table::{Table, presets::ASCII_MARKDOWN};

/// Returns the median of times, of which there is at least one.
pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Makes a table with a header.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(header);
    table
}
