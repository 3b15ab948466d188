//! Command line. It parses options and starts nothing.

use std::path::PathBuf;

use clap::Parser;
use pool_sim::{
    calibration::{CalibrationError, Report},
    event::SECOND,
    model::{Model, Rates, Requests, Shape},
    nodes::PerSession,
    placement::Placement,
};

/// Simulate a pool of many stores and clients.
///
/// How does bandwidth grow to a thousand stores? Which node has how many queue pairs and threads?
/// Which data moves when stores are added? The program places files by the functions that the
/// server and RStore use, and simulates requests event by event. Each part of a request waits for
/// the link of its store, then for the machine of its client.
///
/// Constants come from options, or from a report of `iozone/run --scaling=stores` (--measured). The
/// model is then also compared with the measured processes.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-pool-sim",
    version,
    after_long_help = "Examples:\n  \
        Growth to 1000 stores with as many clients, with a chart:\n      \
            rfs-pool-sim --chart growth.svg\n  \
        The same for files that are shorter than the stores are many:\n      \
            rfs-pool-sim --file 64m\n  \
        One client that reads at random, 16 requests of 4 KiB at once:\n      \
            rfs-pool-sim --clients 1 --request 4k --depth 16 --random\n  \
        RStore's placement of chunks:\n      \
            rfs-pool-sim --placement turns --unit 64m --file 1g\n  \
        Constants of this machine, and the model beside its processes:\n      \
            iozone/run --scaling=stores\n      \
            rfs-pool-sim --measured results/stores-20260101-120000.json --check\n\n\
        Exit status: 0, or 1 if the report cannot be used or --check finds a difference of more than 20 %, 2 for \
        an invalid command line."
)]
pub(crate) struct Cli {
    /// Numbers of stores. The memory of the server is the first store
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,10,30,100,300,1000",
        value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub(crate) stores: Vec<u16>,

    /// Number of clients, each with a file [default: as many as stores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) clients: Option<u32>,

    /// Length of each file
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = byte_size::parse_nonzero)]
    pub(crate) file: u64,

    /// Length of a piece of a file
    #[arg(long, value_name = "SIZE", default_value = "256k", value_parser = byte_size::parse_nonzero)]
    pub(crate) unit: u64,

    /// Which stores have the pieces: stripe is the file system's rule, turns is RStore's
    #[arg(long, value_enum, value_name = "RULE", default_value = "stripe")]
    pub(crate) placement: Placement,

    /// Length of a request
    #[arg(long, value_name = "SIZE", default_value = "1m", value_parser = byte_size::parse_nonzero)]
    pub(crate) request: u64,

    /// Requests that each client has in flight
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) depth: u16,

    /// Random offsets; else the requests of a client follow each other
    #[arg(long)]
    pub(crate) random: bool,

    /// All clients begin with the first byte of their files at once. Otherwise each begins at a
    /// random offset, as if they had started at different times
    #[arg(long)]
    pub(crate) together: bool,

    /// Rate of each store's link in MB/s of data (10^6 bytes)
    #[arg(long, value_name = "MB/s", default_value_t = 100.0, value_parser = positive)]
    pub(crate) link: f64,

    /// Rate of each client's machine in MB/s. The default is that of uncached reads over TCP on
    /// loopback in iozone/scaling
    #[arg(long, value_name = "MB/s", default_value_t = 1793.0, value_parser = positive)]
    pub(crate) client_rate: f64,

    /// Microseconds of each request that depend on no size. The default is the median of reads of
    /// 4 KiB over TCP on loopback in iozone/scaling
    #[arg(long, value_name = "US", default_value_t = 23.4, value_parser = positive)]
    pub(crate) overhead: f64,

    /// The needs of each session at its two ends.
    #[command(flatten)]
    pub(crate) each: PerSession,

    /// Take --client-rate and --overhead from this report of `iozone/run --scaling=stores` (JSON),
    /// and compare the model with it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["client_rate", "overhead"])]
    pub(crate) measured: Option<PathBuf>,

    /// Fail if the model differs from a measured rate by more than 20 %
    #[arg(long, requires = "measured")]
    pub(crate) check: bool,

    /// Simulated seconds in which bytes are counted
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = positive)]
    pub(crate) seconds: f64,

    /// Seed of random offsets: equal seeds give equal results
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Write the chart of the growth to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1e9 => Ok(number),
        _ => Err("a number above 0 is needed, and at most 10^9".into()),
    }
}

impl Cli {
    /// Returns the model of one store and one client. A report has other constants.
    ///
    /// # Errors
    /// The report lacks a row.
    pub(crate) fn model(&self, report: Option<&Report>) -> Result<Model, CalibrationError> {
        let pattern = if self.random { "random_record_read" } else { "read" };
        let (overhead, client) = match report {
            Some(report) => {
                let constants = report.constants(pattern)?;
                (constants.overhead, constants.client)
            }
            None => ((self.overhead * 1000.0) as u64, self.client_rate * 1e6),
        };
        let warm_up = SECOND / 2;
        Ok(Model {
            rates: Rates { link: self.link * 1e6, burst: 0, client, clients_per_machine: 1, overhead },
            requests: Requests {
                bytes: self.request,
                depth: self.depth.into(),
                is_random: self.random,
                together: self.together,
            },
            shape: Shape {
                stores: 1,
                clients: 1,
                file: self.file,
                placement: self.placement,
                unit: self.unit,
            },
            warm_up,
            end: warm_up + (self.seconds * SECOND as f64) as u64,
            seed: self.seed,
        })
    }

    /// Returns the number of clients beside a number of stores.
    pub(crate) fn clients(&self, stores: u16) -> usize {
        self.clients.map_or(usize::from(stores), |clients| clients as usize)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Catches a rate or a time in the wrong unit.
    #[test]
    fn options_become_a_model() {
        let cli =
            Cli::try_parse_from(["x", "--link=50", "--overhead=10", "--seconds=1", "--clients=3"]).unwrap();
        let model = cli.model(None).unwrap();
        assert_eq!((model.rates.link, model.rates.overhead), (50e6, 10_000));
        assert_eq!((model.seconds(), model.shape.unit), (1.0, 256 << 10));
        assert_eq!((cli.clients(7), Cli::try_parse_from(["x"]).unwrap().clients(7)), (3, 7));
        for invalid in ["--link=0", "--link=x", "--seconds=-1", "--stores=0", "--file=0", "--check"] {
            assert!(Cli::try_parse_from(["x", invalid]).is_err(), "{invalid}");
        }
    }
}
