//! Tables for terminals, which are also Markdown. No I/O, no locks, no clock.

use comfy_table::{Cell, CellAlignment, Table, presets::ASCII_MARKDOWN};

use crate::sample::Latency;

/// Returns a table with this heading.
pub fn table<T: ToString>(heading: impl IntoIterator<Item = T>) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(heading.into_iter().map(right));
    table
}

/// Returns a right-aligned cell, for numbers.
pub fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Formats a number with a few digits, or a dash.
pub fn figure(value: Option<f64>) -> String {
    match value {
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
        None => "-".into(),
    }
}

/// Formats a ratio, or a dash.
pub fn times(ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) if ratio < 100.0 => format!("{ratio:.2}x"),
        Some(ratio) => format!("{ratio:.0}x"),
        None => "-".into(),
    }
}

/// Formats the percentiles of a latency, or a dash.
pub fn latency(latency: Option<Latency>) -> String {
    latency.map_or_else(
        || "-".into(),
        |latency| [latency.p50, latency.p99, latency.p999].map(|us| figure(Some(us))).join(" / "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_figures_are_short() {
        assert_eq!(
            (times(Some(0.456)), times(Some(140.4)), times(None)),
            ("0.46x".into(), "140x".into(), "-".into())
        );
        assert_eq!((figure(Some(9.94)), figure(Some(2251.4))), ("9.9".into(), "2251".into()));
        assert_eq!(figure(None), "-");
    }
}
