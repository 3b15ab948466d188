//! Tables and figures for people. No I/O, no locks, no clock.

use std::fmt;

use comfy_table::{CellAlignment, presets::NOTHING};

/// A table with aligned columns. Columns whose header begins with `>` are right-aligned.
#[derive(Clone, Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// Creates a table without rows.
    pub fn new(header: &[&'static str]) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_preset(NOTHING).set_header(header.iter().map(|title| title.trim_start_matches('>')));
        for (title, column) in header.iter().zip(table.column_iter_mut()) {
            column.set_padding((0, 2));
            if title.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Table(table)
    }

    /// Adds a row. Missing cells are empty. Control characters of cells are escaped, because a
    /// terminal would obey them.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells.into_iter().map(|cell| printable(&cell)));
    }

    /// Returns true if the table has no row.
    pub fn is_empty(&self) -> bool {
        self.0.row_count() == 0
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}

/// Returns a text without control characters, which a terminal would obey.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_debug().collect(),
        false => String::from(c),
    };
    text.chars().map(escaped).collect()
}

/// Formats a duration with one unit: `250 ms`, `12 s`, `5 min`, `3 h`, `2 d`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.0000995 => format!("{:.1} us", s * 1e6),
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.00995 => format!("{:.1} ms", s * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 119.5 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

/// Formats a rate: `0`, `0.25`, `12`, `31415`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if r <= 0.0 => "0".into(),
        r if r < 10.0 => format!("{r:.2}"),
        r => format!("{r:.0}"),
    }
}

/// Formats bytes per second: `1.5 MiB/s`.
pub fn byte_rate(per_second: f64) -> String {
    format!("{}/s", byte_size::show(per_second.max(0.0) as u64))
}

/// Formats a part as a percentage of a whole: `12 %`; `-` if there is no whole.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".into(),
        _ => format!("{:.0} %", part as f64 * 100.0 / whole as f64),
    }
}

/// Returns `yes` or `no`.
pub fn yes_no(is: bool) -> String {
    if is { "yes".into() } else { "no".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_control_characters_escaped() {
        let mut table = Table::new(&["export", ">used", "mount"]);
        assert!(table.is_empty());
        table.row(["a".into(), "1 GiB".into(), "/mnt/\u{1b}[31mx".into()]);
        table.row(["scratch".into(), "12 B".into()]);
        assert_eq!(
            table.to_string(),
            "export    used  mount\n\
             a        1 GiB  /mnt/\\u{1b}[31mx\n\
             scratch   12 B\n"
        );
    }

    #[test]
    fn figures_have_one_unit() {
        for (seconds, text) in [
            (0.0, "0.0 us"),
            (0.000_004_2, "4.2 us"),
            (0.000_42, "420 us"),
            (0.0042, "4.2 ms"),
            (0.42, "420 ms"),
            (0.9996, "1.0 s"),
            (42.0, "42 s"),
            (300.0, "5 min"),
            (7200.0, "2 h"),
            (864_000.0, "10 d"),
        ] {
            assert_eq!(duration(seconds), text);
        }
        assert_eq!(["0", "0.25", "31415"], [0.0, 0.25, 31_415.2].map(rate).each_ref().map(String::as_str));
        assert_eq!(
            (byte_rate(1536.0), percent(1, 4), percent(0, 0)),
            ("1.5 KiB/s".into(), "25 %".into(), "-".into())
        );
    }
}
