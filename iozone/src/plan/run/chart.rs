//! Charts: one panel per record size, with a group of bars per phase and a bar per target. No I/O,
//! no locks, no clock.
//!
//! Each panel has its own scale from zero. Numbers above the bars are MiB/s. A ceiling that would
//! dwarf all other bars is cut off visibly.

use measure::colors::{GREY, Rgb};

use super::report::Report;
use crate::{
    report::{
        REFERENCE, TargetInfo,
        svg::{self, colors, polyline, rect, scale, small_grey, text},
    },
    sample::{PAGE_CACHE_NOTE, Phase},
    size,
};

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const HEAD: f64 = 82.0;
const LEGEND_ROW: f64 = 18.0;
const PANEL: f64 = 250.0;
const PLOT: f64 = 168.0;
const FOOT: f64 = 43.0;

/// Returns the chart of a report.
pub fn svg(report: &Report) -> String {
    titled(report, "rfs: IOzone throughput by provider, beside its ceilings")
}

/// Returns the chart of a report with a title of its own.
pub fn titled(report: &Report, title: &str) -> String {
    let panels = report.record_sizes.len() as f64;
    let head_height = HEAD + LEGEND_ROW * report.targets.len().div_ceil(2) as f64 + 8.0;
    let height = head_height + panels * PANEL + FOOT;
    let mut out = svg::begin(WIDTH, height);
    head(&mut out, report, title);
    let colors = colors(&report.targets);
    for (n, &record) in report.record_sizes.iter().enumerate() {
        panel(&mut out, report, record, head_height + n as f64 * PANEL, &colors);
    }
    let note = "MiB/s, higher is better; flush time counts. Every panel has a scale of its own, from zero. \
                Bars with a zigzag go on beyond it: their number counts.";
    if report.reads_are_page_cache_hits {
        text(&mut out, LEFT, height - 27.0, "start", &small_grey(), PAGE_CACHE_NOTE);
    }
    text(&mut out, LEFT, height - 12.0, "start", &small_grey(), note);
    svg::end(out)
}

fn head(out: &mut String, report: &Report, title: &str) {
    text(out, LEFT, 30.0, "start", "font-size=\"19\" font-weight=\"600\"", title);
    let grey = &format!("fill=\"{GREY}\"");
    text(out, LEFT, 50.0, "start", grey, &format!("{}, commit {}", report.describe(), report.setting.commit));
    text(out, LEFT, 67.0, "start", grey, &report.setting.machine.summary());
    let column = (WIDTH - LEFT - RIGHT) / 2.0;
    for (n, (info, color)) in report.targets.iter().zip(colors(&report.targets)).enumerate() {
        let (x, y) = (LEFT + (n % 2) as f64 * column, HEAD + (n / 2) as f64 * LEGEND_ROW);
        svg::legend(out, (x, y), color, info);
    }
}

fn panel(out: &mut String, report: &Report, record: u64, top: f64, colors: &[Rgb]) {
    let value = |info: &TargetInfo, phase| report.mib_per_s(&info.name, record, phase);
    let largest = |chosen: &dyn Fn(&TargetInfo) -> bool| {
        let targets = report.targets.iter().filter(|info| chosen(info));
        targets.flat_map(|info| Phase::ALL.map(|phase| value(info, phase).unwrap_or(0.0))).fold(0.0, f64::max)
    };
    let (step, limit) = top_of(largest(&|info| !info.ceiling || info.name == REFERENCE), largest(&|_| true));
    let (base, right) = (top + 30.0 + PLOT, WIDTH - RIGHT);
    text(
        out,
        LEFT,
        top + 18.0,
        "start",
        "font-size=\"14\" font-weight=\"600\"",
        &format!("{} records, MiB/s", size::show(record)),
    );
    svg::grid(out, (LEFT, right), (base, PLOT), (step, limit), 8.0);
    let group = (right - LEFT) / Phase::ALL.len() as f64;
    let bars = report.targets.len().max(1) as f64;
    let bar = ((group - 24.0) / bars).min(44.0);
    for (n, phase) in Phase::ALL.into_iter().enumerate() {
        let middle = LEFT + (n as f64 + 0.5) * group;
        text(out, middle, base + 18.0, "middle", "", &phase.heading(report.reads_are_page_cache_hits));
        let start = middle - bar * bars / 2.0;
        for (m, info) in report.targets.iter().enumerate() {
            let Some(mib) = value(info, phase) else { continue };
            let height = (mib / limit).min(1.0) * PLOT;
            let x = start + m as f64 * bar;
            let ratio = report.ratio(&info.name, record, phase);
            let ratio = ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2}x of null"));
            let tip = format!("{}, {}: {mib:.0} MiB/s{ratio}", info.name, phase.name());
            rect(out, x + 1.0, base - height, bar - 2.0, height, colors[m], Some(&tip));
            if mib > limit {
                cut(out, x, base - height + 14.0, bar);
            }
            let font = (bar / 3.1).clamp(6.0, 10.0);
            let style = format!("font-size=\"{font:.1}\" fill=\"#4a4f57\"");
            text(out, x + bar / 2.0, base - height - 3.0, "middle", &style, &format!("{mib:.0}"));
        }
    }
}

/// Returns the scale of a panel. It covers the largest value, unless that is a ceiling far above
/// all other values.
fn top_of(matters: f64, all: f64) -> (f64, f64) {
    if matters > 0.0 && all > 1.6 * matters { scale(1.15 * matters) } else { scale(all) }
}

/// Draws a white zigzag across a bar.
fn cut(out: &mut String, x: f64, y: f64, width: f64) {
    let step = width / 4.0;
    let points: Vec<_> = (0..=4).map(|n| (x + f64::from(n) * step, y - f64::from(n % 2) * 6.0)).collect();
    polyline(out, &points, Rgb(255, 255, 255), 3.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::run::report::tests::example;

    #[test]
    fn a_bar_per_target_and_phase() {
        let svg = svg(&example());
        assert_eq!(svg.matches("<title>").count(), 18);
        assert!(svg.contains("<title>shm, write: 1000 MiB/s, 0.50x of null</title>"));
        assert!(svg.contains("about &lt;shm&gt;"));
        assert!(svg.contains("A CPU, 2 cores, 24 GiB, Linux 6.1.0, Debian 12"));
        assert!(svg.contains("commit 0123456789ab"));
    }

    #[test]
    fn elements_are_closed() {
        let svg = svg(&example());
        measure::testing::assert_well_formed(&svg);
    }

    #[test]
    fn bars_are_proportional() {
        let svg = svg(&example());
        let height = |tip: &str| -> f64 {
            let line = svg.lines().find(|line| line.contains(tip)).unwrap();
            let (_, rest) = line.split_once("height=\"").unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let (half, whole) = (height("null, read:"), height("tmpfs, read:"));
        assert!((half - 6000.0 / 15000.0 * PLOT).abs() < 0.1, "{half}");
        assert!((height("null, random write:") / half - 2.0).abs() < 0.01);
        // The bar is cut off and marked.
        assert_eq!(whole, PLOT);
        assert_eq!(svg.matches("<polyline").count(), 5);
    }

    #[test]
    fn ceilings_far_above_do_not_make_the_scale() {
        assert_eq!(top_of(9000.0, 10000.0), (2000.0, 10000.0));
        assert_eq!(top_of(0.0, 10000.0), (2000.0, 10000.0));
        assert_eq!(top_of(1000.0, 10000.0), (500.0, 1500.0));
    }
}
