//! The chart: a panel for each row, with the rate over the number of stores. No I/O, no locks, no
//! clock.

use measure::colors::{GREY, STRONG};

use super::{
    report::{Report, Row},
    table,
};
use crate::report::svg::{self, dot, grid, line, polyline, scale, small_grey, text, thousands};
use crate::target::Pool;

const WIDTH: f64 = 1080.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 140.0;
const COLUMNS: usize = 4;
const PANEL: (f64, f64) = ((WIDTH - 2.0 * MARGIN) / COLUMNS as f64, 200.0);
/// Distance of the axes from the edges of a panel.
const INSET: (f64, f64) = (52.0, 44.0);
const PLOT: (f64, f64) = (PANEL.0 - INSET.0 - 14.0, 118.0);

/// Returns the chart of a report.
pub fn svg(report: &Report) -> String {
    let height = HEAD + PANEL.1 * report.rows.len().div_ceil(COLUMNS) as f64 + 20.0;
    let mut out = svg::begin(WIDTH, height);
    let title = "What several stores give";
    text(&mut out, MARGIN, 32.0, "start", "font-size=\"19\" font-weight=\"600\"", title);
    let grey = format!("fill=\"{GREY}\"");
    for (n, row) in table::head(report).lines().enumerate() {
        text(&mut out, MARGIN, 52.0 + 16.0 * n as f64, "start", &grey, row);
    }
    let note = "MiB/s over the number of stores. The grey line grows with the stores. Panels have scales of their \
                own.";
    text(&mut out, MARGIN, HEAD - 12.0, "start", &small_grey(), note);
    for (n, row) in report.rows.iter().enumerate() {
        let corner = (MARGIN + (n % COLUMNS) as f64 * PANEL.0, HEAD + (n / COLUMNS) as f64 * PANEL.1);
        draw(&mut out, row, corner);
    }
    svg::end(out)
}

fn draw(out: &mut String, row: &Row, (x, y): (f64, f64)) {
    let rates: Vec<(u64, f64)> =
        row.points.iter().map(|point| (point.stores, point.median.mib_per_s)).collect();
    let most = rates.iter().map(|(stores, _)| *stores).max().unwrap_or(1).max(1);
    let one = rates.iter().find(|(stores, _)| *stores == 1).map(|(_, rate)| *rate);
    let ideal = |stores: u64| one.map(|one| one * stores as f64);
    let largest = rates.iter().map(|(_, rate)| *rate).chain(ideal(most)).fold(0.0, f64::max);
    let (step, limit) = scale(largest);
    let (left, base) = (x + INSET.0, y + INSET.1 + PLOT.1);
    text(out, x + 6.0, y + 14.0, "start", "font-size=\"12\" font-weight=\"600\"", row.case.title());
    text(out, x + 6.0, y + 30.0, "start", &small_grey(), row.pattern.name());
    grid(out, (left, left + PLOT.0), (base, PLOT.1), (step, limit), 6.0);
    let at = |stores: u64, rate: f64| {
        (left + PLOT.0 * stores as f64 / (most as f64 + 0.4), base - rate / limit * PLOT.1)
    };
    if let Some((one, all)) = ideal(1).zip(ideal(most)) {
        line(out, at(1, one), at(most, all), GREY);
    }
    let points: Vec<_> = rates.iter().map(|(stores, rate)| at(*stores, *rate)).collect();
    polyline(out, &points, STRONG[0], 2.0);
    for (stores, rate) in rates {
        let (px, _) = at(stores, rate);
        text(out, px, base + 15.0, "middle", &small_grey(), &stores.to_string());
        let tip = format!(
            "{}, {}, {}: {} MiB/s",
            row.case.title(),
            row.pattern.name(),
            Pool::name_of(stores),
            thousands(rate)
        );
        dot(out, at(stores, rate), STRONG[0], &tip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::stores::report::tests::example;

    /// Catches a panel without its points, and text that is no XML.
    #[test]
    fn a_point_for_each_number_of_stores_in_each_panel() {
        let report = example();
        let svg = svg(&report);
        measure::testing::assert_well_formed(&svg);
        let points: usize = report.rows.iter().map(|row| row.points.len()).sum();
        assert_eq!(svg.matches("<circle").count(), points);
        assert_eq!(svg.matches("<polyline").count(), report.rows.len());
        assert!(svg.contains("<title>one file, sequential write, 4 stores: 346 MiB/s</title>"), "{svg}");
    }
}
