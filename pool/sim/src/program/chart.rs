//! The chart of growth: rates over the number of stores, both in powers of ten.

use std::{error::Error, path::Path};

use plotters::prelude::*;
use pool_sim::growth::Growth;

/// Draws the rates in MB/s, beside the rate of the links.
pub(crate) fn growth(path: &Path, points: &[Growth], link: f64) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (720, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let most = points.iter().map(|point| f64::from(point.stores)).fold(1.0, f64::max);
    let least_rate = points.iter().map(|point| point.rate / 1e6).fold(link, f64::min).max(0.001);
    let mut chart = ChartBuilder::on(&root)
        .caption("Bandwidth of a simulated pool", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(72)
        .build_cartesian_2d(
            (1.0..most.max(2.0) * 1.1).log_scale(),
            (least_rate * 0.8..most * link * 1.2).log_scale(),
        )?;
    chart.configure_mesh().x_desc("stores").y_desc("MB/s").draw()?;
    let ideal = [1.0, most].map(|stores| (stores, stores * link));
    chart
        .draw_series(LineSeries::new(ideal, RGBColor(170, 170, 170)))?
        .label("all links")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], RGBColor(170, 170, 170)));
    let rates: Vec<(f64, f64)> =
        points.iter().map(|point| (f64::from(point.stores), point.rate / 1e6)).collect();
    chart
        .draw_series(LineSeries::new(rates.iter().copied(), BLUE.stroke_width(2)).point_size(3))?
        .label("all clients together")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], BLUE));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
