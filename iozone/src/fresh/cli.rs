//! Command line options.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::{
    Error, Result,
    cli::Switches,
    places::Places,
    scaling::data::Work,
    size::{GIB, MIB, parse_nonzero, show},
};

/// Measure the start of a server with much memory, and the cost of the first use of its memory.
///
/// Each round starts a server and a mount, and writes a file five times: first to unused memory,
/// while the server is still allocating in the background, then again to the same memory. Prints
/// seconds and throughput and checks them against requirements; leaves no process, mount or file
/// behind.
#[derive(Debug, Parser)]
#[command(name = "iozone/run", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Internal commands.
    #[command(subcommand)]
    pub command: Option<Internal>,
    /// The benchmark.
    #[command(flatten)]
    pub options: Options,
}

/// Internal commands of the program.
#[derive(Debug, Subcommand)]
pub enum Internal {
    /// Write a file and print how long it took.
    #[command(hide = true)]
    Data(Work),
}

/// A target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// rfs over shared memory.
    Shm,
    /// rfs over TCP on loopback.
    Tcp,
    /// A FUSE file system in the memory of its own process: the cost of the first use of memory on
    /// this machine.
    Null,
}

/// Options.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Measure servers that have just started.
    #[arg(long)]
    pub fresh: bool,

    /// Targets to measure, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm,tcp,null", value_name = "LIST")]
    pub providers: Vec<Provider>,

    /// Memory of the server.
    #[arg(long, default_value = "16g", value_name = "SIZE", value_parser = parse_nonzero)]
    pub memory: u64,

    /// Size of the file, in whole MiB.
    #[arg(long, default_value = "1g", value_name = "SIZE", value_parser = parse_nonzero)]
    pub size: u64,

    /// Repeat everything, in alternating order, and report medians.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Run a short test of everything: one round, 256 MiB of memory, a file of 64 MiB.
    #[arg(long)]
    pub quick: bool,

    /// Exit with status 1 if a requirement is not met.
    #[arg(long)]
    pub check: bool,

    /// Locations of programs and files.
    #[command(flatten)]
    pub places: Places,

    /// The source tree, for the commit in the output.
    #[arg(long, value_name = "DIR", hide = true, default_value = ".")]
    pub source: PathBuf,

    /// Time limit for one pass, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub timeout: u64,

    /// Options of the runtime and of the mount.
    #[command(flatten)]
    pub switches: Switches,
}

impl Options {
    /// Applies `--quick`. Returns an error if the measurement needs more than `available` bytes of
    /// memory.
    pub fn settled(self, available: u64) -> Result<Options> {
        let options = match self.quick {
            true => Options { memory: 256 * MIB, size: 64 * MIB, rounds: 1, ..self },
            false => self,
        };
        if !options.size.is_multiple_of(MIB) || options.size > options.memory / 2 {
            return Err(Error::Usage(format!(
                "--size {}: whole mebibytes are needed, and no more than half of --memory {}",
                show(options.size),
                show(options.memory)
            )));
        }
        // Includes a copy of the file in the page cache, and space for the programs.
        let peak = options.memory.saturating_add(options.size).saturating_add(GIB / 2);
        match peak <= available {
            true => Ok(options),
            false => Err(Error::Usage(format!(
                "a server of {} takes {} with all beside it, {} are available; give a smaller --memory",
                show(options.memory),
                show(peak),
                show(available)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn settled(args: &[&str], available: u64) -> Result<Options> {
        Cli::try_parse_from([&["x", "--fresh"], args].concat()).unwrap().options.settled(available)
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn measurements_that_exceed_the_memory_are_refused() {
        let all = settled(&[], 17 * GIB + GIB / 2).unwrap();
        assert_eq!((all.memory, all.size, all.rounds), (16 * GIB, GIB, 5));
        assert_eq!(all.providers, [Provider::Shm, Provider::Tcp, Provider::Null]);
        let quick = settled(&["--quick", "--providers", "tcp"], GIB).unwrap();
        assert_eq!((quick.memory, quick.size, quick.rounds), (256 * MIB, 64 * MIB, 1));
        let error = settled(&[], 17 * GIB).unwrap_err().to_string();
        assert_eq!(
            error,
            "a server of 16 GiB takes 17.5 GiB with all beside it, 17 GiB are available; give a smaller --memory"
        );
        for (memory, size) in [("2g", "1025m"), ("2g", "1000k")] {
            assert!(settled(&["--memory", memory, "--size", size], 64 * GIB).is_err(), "{size}");
        }
        assert!(settled(&["--memory", "2g", "--size", "1g"], 64 * GIB).is_ok());
    }
}
