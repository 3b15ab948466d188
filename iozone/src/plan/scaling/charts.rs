//! A chart per series: a column of panels per pattern, with its rate and its latencies; memory
//! below. No I/O, no locks, no clock.
//!
//! Loads have equal distances, in the given order. Every panel has its own scale from zero.

use measure::colors::{GREY, Rgb};

use super::{reading::Reading, report::Scaling, series::Series, table};
use crate::{
    load::Pattern,
    report::svg::{self, colors, dot, polyline, scale, small_grey, text, thousands},
    size::MIB,
};

const WIDTH: f64 = 1080.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 96.0;
const LEGEND_ROW: f64 = 18.0;
const PANEL: (f64, f64) = ((WIDTH - 2.0 * MARGIN) / 3.0, 190.0);
/// Distance of the axes from the edges of a panel.
const INSET: (f64, f64) = (62.0, 26.0);
const PLOT: (f64, f64) = (PANEL.0 - INSET.0 - 16.0, 124.0);
const FOOT: f64 = 28.0;

/// Extracts the value of a panel from a reading.
type Figure = fn(&Reading) -> f64;

/// A panel: its title, its pattern, and the value that it shows.
struct Panel {
    title: String,
    pattern: Pattern,
    of: Figure,
}

/// Returns the chart of a series.
pub fn svg(scaling: &Scaling, series: Series) -> String {
    let panels = panels(series);
    let top = HEAD + LEGEND_ROW * scaling.targets.len() as f64 + 10.0;
    let height = top + PANEL.1 * panels.len().div_ceil(3) as f64 + FOOT;
    let mut out = svg::begin(WIDTH, height);
    let title = format!("How rfs scales: {}", series.title());
    text(&mut out, MARGIN, 32.0, "start", "font-size=\"19\" font-weight=\"600\"", &title);
    let grey = format!("fill=\"{GREY}\"");
    for (n, row) in table::head(scaling).lines().enumerate() {
        text(&mut out, MARGIN, 52.0 + 16.0 * n as f64, "start", &grey, row);
    }
    let colors = colors(&scaling.targets);
    for (n, (info, color)) in scaling.targets.iter().zip(&colors).enumerate() {
        let y = HEAD + n as f64 * LEGEND_ROW;
        svg::legend(&mut out, (MARGIN, y), *color, info);
    }
    for (n, panel) in panels.iter().enumerate() {
        let corner = (MARGIN + (n % 3) as f64 * PANEL.0, top + (n / 3) as f64 * PANEL.1);
        draw(&mut out, scaling, series, panel, corner, &colors);
    }
    let note = "Every panel has a scale of its own, from zero. Latencies are those of single requests. Memory is that after the load.";
    text(&mut out, MARGIN, height - 12.0, "start", &small_grey(), note);
    svg::end(out)
}

/// Returns the panels row by row: rates, three latencies, memory.
fn panels(series: Series) -> Vec<Panel> {
    let patterns = series.patterns();
    let last = patterns[2];
    let rows: [(&str, Figure); 4] = [
        ("", |reading| reading.rate),
        ("p50, us", |reading| reading.latency.p50),
        ("p99, us", |reading| reading.latency.p99),
        ("p99.9, us", |reading| reading.latency.p999),
    ];
    let figures = rows.into_iter().flat_map(|(what, of)| {
        patterns.into_iter().map(move |pattern| {
            let what = if what.is_empty() { pattern.unit() } else { what };
            Panel { title: format!("{}: {what}", pattern.name()), pattern, of }
        })
    });
    let memory: [(&str, Figure); 3] = [
        ("memory of the clients, MiB", |reading| mib(reading.resident.client.own)),
        ("memory of the server, MiB", |reading| mib(reading.resident.servers.own)),
        ("lent by the server, MiB", |reading| mib(reading.resident.servers.shared)),
    ];
    let memory = memory.into_iter().map(|(title, of)| Panel { title: title.to_owned(), pattern: last, of });
    figures.chain(memory).collect()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn draw(
    out: &mut String,
    scaling: &Scaling,
    series: Series,
    panel: &Panel,
    (x, y): (f64, f64),
    colors: &[Rgb],
) {
    let loads = scaling.loads(series);
    let value = |name: &str, load| scaling.median(series, panel.pattern, name, load).map(panel.of);
    let all =
        scaling.targets.iter().flat_map(|info| loads.iter().filter_map(|load| value(&info.name, *load)));
    let (step, limit) = scale(all.fold(0.0, f64::max));
    let (left, base) = (x + INSET.0, y + INSET.1 + PLOT.1);
    text(out, x + 8.0, y + 14.0, "start", "font-size=\"13\" font-weight=\"600\"", &panel.title);
    svg::grid(out, (left, left + PLOT.0), (base, PLOT.1), (step, limit), 6.0);
    let place = |n: usize| left + (n as f64 + 0.5) * PLOT.0 / loads.len().max(1) as f64;
    for (n, load) in loads.iter().enumerate() {
        text(out, place(n), base + 15.0, "middle", &small_grey(), &short(series, *load));
    }
    for (info, color) in scaling.targets.iter().zip(colors) {
        let there =
            loads.iter().enumerate().filter_map(|(n, load)| Some((n, *load, value(&info.name, *load)?)));
        let points: Vec<_> = there.collect();
        let at = |n: usize, value: f64| (place(n), base - value / limit * PLOT.1);
        polyline(out, &points.iter().map(|(n, _, value)| at(*n, *value)).collect::<Vec<_>>(), *color, 2.0);
        for (n, load, value) in points {
            let tip =
                format!("{}, {}: {} at {}", info.name, panel.title, thousands(value), series.show(load));
            dot(out, at(n, value), *color, &tip);
        }
    }
}

/// Formats a load in few characters.
fn short(series: Series, load: u64) -> String {
    match (series, load) {
        (Series::Count, 1_000_000..) if load.is_multiple_of(1_000_000) => format!("{}M", load / 1_000_000),
        (Series::Count, 1000..) if load.is_multiple_of(1000) => format!("{}k", load / 1000),
        _ => series.show(load),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scaling::report::tests::example;

    #[test]
    fn a_point_per_target_and_load_in_every_panel() {
        let svg = svg(&example(), Series::Threads);
        measure::testing::assert_well_formed(&svg);
        // Fifteen panels, each with two lines of three points.
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (30, 90));
        for says in [
            "How rfs scales: threads on one file",
            "about &lt;shm&gt;",
            "<title>null, uncached read: MiB/s: 800 at 4</title>",
            "<title>shm, memory of the server, MiB: 7 at 1</title>",
            "p99.9, us",
        ] {
            assert!(svg.contains(says), "{says}: {svg}");
        }
    }

    #[test]
    fn heights_are_proportional() {
        let svg = svg(&example(), Series::Count);
        let height = |tip: &str| -> f64 {
            let row = svg.lines().find(|row| row.contains(tip)).unwrap();
            row.split_once("cy=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap()
        };
        let [least, middle, most] =
            ["shm, stat: files/s: 100 at 1<", "shm, stat: files/s: 400 at", "null, stat: files/s: 800 at"]
                .map(height);
        assert!(((least - most) / (middle - most) - 1.75).abs() < 0.02, "{least} {middle} {most}");
    }

    #[test]
    fn axes_are_short() {
        let counts = [1, 100, 10_000, 1_000_000, 1500].map(|count| short(Series::Count, count));
        assert_eq!(counts, ["1", "100", "10k", "1M", "1,500"]);
        assert_eq!(short(Series::Size, 8 << 30), "8 GiB");
    }
}
