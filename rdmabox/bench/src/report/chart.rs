//! Charts: one panel per metric. The first dimension is the x axis; every combination of the others
//! is a line. No I/O, no locks, no clock.
//!
//! The values of the x axis have equal distances and keep their given order. Every y axis begins at
//! zero.

use measure::colors::{self, Rgb};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{
    Report,
    metric::{Metric, show},
};
use crate::{Error, Result, sweep::matrix::describe};

const WIDTH: u32 = 1000;
const MARGIN: u32 = 24;
const HEAD: u32 = 98;
const LEGEND_ROW: u32 = 20;
const LEGEND_COLUMNS: u32 = 3;
const PANEL: u32 = 260;
const FONT: &str = "sans-serif";

/// One colour per line. Further lines repeat the colours with another marker.
const COLORS: [RGBColor; 7] = {
    let [a, b, c, d, e, f] = colors::STRONG;
    [rgb(a), rgb(b), rgb(c), rgb(d), rgb(e), rgb(f), rgb(colors::PALE[2])]
};
const INK: RGBColor = rgb(colors::INK);
const GREY: RGBColor = rgb(colors::GREY);
const LINE: RGBColor = rgb(colors::LINE);

const fn rgb(Rgb(red, green, blue): Rgb) -> RGBColor {
    RGBColor(red, green, blue)
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line: its name, and its measured points.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    points: Vec<(usize, f64)>,
}

/// Returns the chart of a report with at least one dimension.
pub fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|err| Error::Wrong(format!("the chart cannot be drawn: {err}")))?;
    Ok(text)
}

fn draw(report: &Report, text: &mut String) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let panels: Vec<Metric> = report
        .panels
        .iter()
        .copied()
        .filter(|metric| report.results.iter().any(|entry| entry.get(*metric).is_some()))
        .collect();
    let names: Vec<String> = series(report, Metric::OpsPerSecond).into_iter().map(|s| s.name).collect();
    let legend = (names.len() as u32).div_ceil(LEGEND_COLUMNS) * LEGEND_ROW;
    let head_height = HEAD + legend + 12;
    let height = head_height + panels.len() as u32 * PANEL;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(head_height);
    draw_head(&head, report, &names)?;
    for (area, metric) in body.split_evenly((panels.len().max(1), 1)).iter().zip(panels) {
        draw_panel(area, report, metric)?;
    }
    root.present()?;
    Ok(())
}

fn draw_head(
    area: &Canvas<'_>,
    report: &Report,
    names: &[String],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let left = MARGIN as i32;
    let style = |size: u32, color: &RGBColor| (FONT, size).into_font().color(color).into_text_style(area);
    area.draw(&Text::new(report.title.clone(), (left, 12), style(19, &INK)))?;
    if let Some(about) = &report.experiment {
        area.draw(&Text::new(about.what.clone(), (left, 36), style(13, &INK)))?;
    }
    let rounds =
        if report.rounds > 1 { format!(", medians of {} rounds", report.rounds) } else { String::new() };
    let line = format!("{}, commit {}{rounds}", report.machine.summary(), report.commit);
    area.draw(&Text::new(line, (left, 58), style(12, &GREY)))?;
    area.draw(&Text::new(report.caveat(), (left, 74), style(12, &GREY)))?;
    for (n, name) in names.iter().enumerate() {
        let (row, column) = (n as u32 / LEGEND_COLUMNS, n as u32 % LEGEND_COLUMNS);
        let x = (MARGIN + column * ((WIDTH - 2 * MARGIN) / LEGEND_COLUMNS)) as i32;
        let y = (HEAD + row * LEGEND_ROW + LEGEND_ROW / 2) as i32;
        area.draw(&PathElement::new([(x, y), (x + 22, y)], color(n).stroke_width(2)))?;
        area.draw(&marker(n, (x + 11, y)))?;
        let style = style(13, &INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(name.clone(), (x + 30, y), style))?;
    }
    Ok(())
}

fn draw_panel(
    area: &Canvas<'_>,
    report: &Report,
    metric: Metric,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let labels = report.labels(0);
    let lines = series(report, metric);
    let top = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.08 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .margin_left(MARGIN)
        .margin_right(MARGIN)
        .margin_bottom(8)
        .caption(metric.meaning(), (FONT, 14).into_font().color(&INK))
        .x_label_area_size(34)
        .y_label_area_size(72)
        .build_cartesian_2d(-0.3..labels.len() as f64 - 0.7, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(LINE)
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        // Labels belong to whole numbers only.
        .x_labels(0)
        .y_labels(6)
        .y_label_formatter(&|value| show(Some(*value)))
        .y_label_style((FONT, 11).into_font().color(&GREY))
        .x_desc(report.dimensions.first().map_or("", String::as_str))
        .axis_desc_style((FONT, 12).into_font().color(&INK))
        .draw()?;
    for (n, label) in labels.iter().enumerate() {
        let style = (FONT, 11).into_font().color(&GREY).pos(Pos::new(HPos::Center, VPos::Top));
        let (x, y) = chart.backend_coord(&(n as f64, 0.0));
        area.draw(&Text::new((*label).to_owned(), area_relative(area, (x, y + 5)), style))?;
    }
    for (n, line) in lines.iter().enumerate() {
        let points = line.points.iter().map(|(x, y)| (*x as f64, *y));
        chart.draw_series(LineSeries::new(points.clone(), color(n).stroke_width(2)))?;
        for point in points {
            area.draw(&marker(n, area_relative(area, chart.backend_coord(&point))))?;
        }
    }
    Ok(())
}

/// Converts coordinates of the picture, as charts report them, to coordinates of a drawing area.
fn area_relative(area: &Canvas<'_>, (x, y): (i32, i32)) -> (i32, i32) {
    let (left, top) = area.get_base_pixel();
    (x - left, y - top)
}

fn color(series: usize) -> RGBColor {
    COLORS[series % COLORS.len()]
}

/// Returns a marker, filled for the first cycle of colours and hollow for the second.
fn marker(series: usize, at: (i32, i32)) -> Circle<(i32, i32), i32> {
    let filled = (series / COLORS.len()).is_multiple_of(2);
    Circle::new(at, 4, ShapeStyle { color: color(series).to_rgba(), filled, stroke_width: 2 })
}

/// Returns the lines of a metric, in the order of the results.
fn series(report: &Report, metric: Metric) -> Vec<Series> {
    let labels = report.labels(0);
    let mut lines: Vec<Series> = Vec::new();
    for entry in &report.results {
        let Some((x, rest)) = entry.coordinates.split_first() else { continue };
        let name = match rest {
            [] => entry.options.provider.to_string(),
            rest => describe(&report.dimensions[1..], rest),
        };
        let index = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            lines.push(Series { name, points: Vec::new() });
            lines.len() - 1
        });
        let place = labels.iter().position(|label| label == x);
        lines[index].points.extend(place.zip(entry.get(metric)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn a_line_per_combination_of_the_rest() {
        let report = example();
        let lines = series(&report, Metric::OpsPerSecond);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["single", "hybrid <b>"]);
        assert_eq!(lines[0].points, [(0, 2000.0), (1, 4000.0)]);
        // A metric without values has no points and no panel.
        assert!(series(&report, Metric::ServerCpu).iter().all(|line| line.points.is_empty()));
    }

    #[test]
    fn the_picture_is_well_formed_and_labelled() {
        let svg = svg(&example()).unwrap();
        measure::testing::assert_well_formed(&svg);
        // Two lines of two points each in two panels, and a marker each in the legend.
        assert_eq!(svg.matches("<circle").count(), 2 * 2 * 2 + 2);
        for says in ["hybrid &lt;b&gt;", "software provider", "commit 0123", Metric::P99.meaning()] {
            assert!(svg.contains(says), "{says}");
        }
    }
}
