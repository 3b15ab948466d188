//! Tables in Markdown. No I/O, no locks, no clock.

use comfy_table::{Cell, CellAlignment, Table, presets::ASCII_MARKDOWN};
use pool_sim::{addition::Addition, calibration::Compared, growth::Growth, nodes::Most};

fn table(heading: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(heading.iter().map(right));
    table
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Returns the table of growth.
pub(crate) fn growth(points: &[Growth]) -> String {
    let mut table = table(&[
        "stores",
        "clients",
        "MB/s",
        "of the links",
        "max/mean sent",
        "max/mean stored",
        "client: sessions, queue pairs, threads",
        "store: sessions, queue pairs, threads",
    ]);
    let most = |most: &Most| format!("{}, {}, {}", most.sessions, most.queue_pairs, most.threads);
    for point in points {
        table.add_row([
            right(point.stores),
            right(point.clients),
            right(format!("{:.0}", point.rate / 1e6)),
            right(format!("{:.0} %", point.share * 100.0)),
            right(format!("{:.2}", point.sent_imbalance)),
            right(format!("{:.2}", point.used_imbalance)),
            right(most(&point.client)),
            right(most(&point.store)),
        ]);
    }
    table.to_string()
}

/// Returns the table of added stores.
pub(crate) fn added(rows: &[Addition]) -> String {
    let mut table = table(&[
        "stores",
        "added",
        "data",
        "moved by `pool add`",
        "max/mean stored",
        "after as much new data",
        "ideal move",
        "move to the mean",
        "move if placed anew",
    ]);
    for row in rows {
        let share = |bytes: u64| format!("{:.1} %", 100.0 * bytes as f64 / row.bytes as f64);
        table.add_row([
            right(row.stores),
            right(row.added),
            right(byte_size::show(row.bytes)),
            // The server adds the space of a store, and moves nothing.
            right("0"),
            right(format!("{:.2}", row.imbalance)),
            right(format!("{:.2}", row.imbalance_later)),
            right(share(row.ideal)),
            right(share(row.level)),
            right(share(row.anew)),
        ]);
    }
    table.to_string()
}

/// Returns the table of measured and predicted rates.
pub(crate) fn compared(rows: &[Compared]) -> String {
    let mut table =
        table(&["case", "requests", "stores", "MiB/s measured", "MiB/s of the model", "difference", "close"]);
    for row in rows {
        table.add_row([
            Cell::new(&row.case),
            Cell::new(&row.pattern),
            right(row.stores),
            right(format!("{:.0}", row.measured)),
            right(format!("{:.0}", row.predicted)),
            right(format!("{:+.0} %", row.error() * 100.0)),
            Cell::new(if row.is_close() { "yes" } else { "no" }),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a share of the wrong sum.
    #[test]
    fn moves_are_shares_of_the_data() {
        let row = Addition {
            stores: 10,
            added: 1,
            bytes: 1 << 30,
            ideal: 1 << 27,
            level: 1 << 28,
            anew: 1 << 29,
            imbalance: 1.1,
            imbalance_later: 1.05,
        };
        let text = added(&[row]);
        assert!(text.contains("| 1 GiB |") && text.contains("12.5 %") && text.contains("50.0 %"), "{text}");
    }

    #[test]
    fn a_difference_has_its_sign() {
        let row = |predicted| Compared {
            case: "one_file".into(),
            pattern: "read".into(),
            stores: 2,
            measured: 100.0,
            predicted,
        };
        let text = compared(&[row(90.0), row(130.0)]);
        assert!(text.contains("-10 % | yes") && text.contains("+30 % | no"), "{text}");
    }
}
