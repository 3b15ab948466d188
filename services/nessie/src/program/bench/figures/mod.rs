//! The experiments, each with a table.

mod hogs;
mod locality;
mod sizes;
mod zipf;

use std::{
    error::Error,
    io::{self, Write, stdout},
};

use comfy_table::{Table, presets::ASCII_MARKDOWN};

use crate::cli::{Cli, Figure};

/// Measures a figure, and prints its table.
pub(crate) fn run(figure: Figure, cli: &Cli) -> Result<(), Box<dyn Error>> {
    match figure {
        Figure::Sizes => sizes::run(cli),
        Figure::Hogs => hogs::hogs(cli),
        Figure::Compute => hogs::compute(cli),
        Figure::Locality => locality::locality(cli),
        Figure::Filter => locality::filter(cli),
        Figure::Zipf => zipf::run(cli),
    }
}

/// Prints the title of a table, and begins the table.
fn table(title: &str, header: &[&str]) -> io::Result<Table> {
    writeln!(stdout(), "\n{title}")?;
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(header.iter().copied());
    Ok(table)
}

/// Formats a rate as thousands of operations per second.
fn thousands(rate: f64) -> String {
    format!("{:.1}", rate / 1000.0)
}
