//! The chart of the bandwidth over sizes.
//!
//! # Concurrency
//! One thread.

use std::{error::Error, path::Path};

use plotters::prelude::*;

/// Draws rates in MiB/s over sizes in bytes.
pub(super) fn bandwidth(path: &Path, points: &[(u64, f64)], chunk: u64) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (720, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (longest, most) = points
        .iter()
        .fold((0.0, 0.0), |(x, y): (f64, f64), (bytes, rate)| (x.max(mib(*bytes)), y.max(*rate)));
    let caption = format!("Bandwidth of one client, chunks of {}", byte_size::show(chunk));
    let mut chart = ChartBuilder::on(&root)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..longest * 1.02, 0.0..most * 1.1)?;
    chart.configure_mesh().x_desc("MiB").y_desc("MiB/s").draw()?;
    chart.draw_series(LineSeries::new(points.iter().map(|(bytes, rate)| (mib(*bytes), *rate)), &BLUE))?;
    root.present()?;
    Ok(())
}
