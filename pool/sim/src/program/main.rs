//! `rfs-pool-sim`: simulates a pool of many stores and clients.
//!
//! # Concurrency
//! One thread.

mod chart;
mod cli;
mod table;

use std::{
    error::Error,
    fs,
    io::{Write, stdout},
    process::ExitCode,
};

use clap::Parser;
use pool_sim::{
    addition::tenth,
    calibration::{Report, TOLERANCE, all_close},
    growth,
};

use crate::cli::Cli;

fn main() -> ExitCode {
    match perform(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rfs-pool-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints all tables. Returns false if the model is checked and differs from the processes.
fn perform(cli: &Cli) -> Result<bool, Box<dyn Error>> {
    let report = cli.measured.as_ref().map(|path| -> Result<Report, Box<dyn Error>> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()).into())
    });
    let report = report.transpose()?;
    let model = cli.model(report.as_ref())?;
    let mut out = stdout().lock();
    let mut is_close = true;
    if let Some(report) = &report {
        let rows = report.compare(cli.seed)?;
        is_close = !cli.check || all_close(&rows)?;
        writeln!(out, "## The model beside processes, within {:.0} %\n", TOLERANCE * 100.0)?;
        writeln!(out, "{}\n", table::compared(&rows))?;
    }
    writeln!(
        out,
        "## Growth\n\nfiles of {}, pieces of {}, {} requests of {}, {} in flight for each client; links of {} \
         MB/s; clients of {:.0} MB/s and {:.1} us for each request; seed {}\n",
        byte_size::show(cli.file),
        byte_size::show(cli.unit),
        if cli.random { "random" } else { "sequential" },
        byte_size::show(cli.request),
        cli.depth,
        cli.link,
        model.rates.client / 1e6,
        model.rates.overhead as f64 / 1000.0,
        cli.seed,
    )?;
    let at = |&stores: &u16| growth::at(&model, stores, cli.clients(stores), cli.each);
    let points = cli.stores.iter().map(at).collect::<Result<Vec<_>, _>>()?;
    writeln!(out, "{}\n", table::growth(&points))?;
    if let Some(path) = &cli.chart {
        chart::growth(path, &points, cli.link)?;
    }
    let add = |&stores: &u16| tenth(cli.placement, cli.unit, stores, cli.clients(stores), cli.file);
    let added = cli.stores.iter().filter(|stores| **stores >= 10).map(add).collect::<Result<Vec<_>, _>>()?;
    if !added.is_empty() {
        writeln!(out, "## A tenth more stores\n\n{}", table::added(&added))?;
    }
    Ok(is_close)
}
