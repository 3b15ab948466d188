//! The command line.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};
use rdmabox::{Address, ProviderKind, RdmaOptions};

use crate::{
    Error, Result,
    load::{LoadArgs, OpKind, model::Model},
    sweep::settings::{self, Settings},
};

/// The dilation of a modelled card unless the command line has one.
const DILATION: u32 = 200;

/// Measures rdmabox in the shape of perftest: one-sided READs, WRITEs and compare-and-swaps,
/// calls, and the requests of a pager.
///
/// Client and server run on this machine by default. The server is a child process, so that
/// processor time and context switches of the client are its own. The output has throughput,
/// latency percentiles, processor time, context switches and the counters of the runtime. The
/// providers shm and tcp, and the device Soft-RoCE, are software. Their figures say nothing about
/// an RDMA card.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rdmabox-bench",
    version,
    disable_help_subcommand = true,
    after_long_help = "Examples:\n  \
        WRITEs of 4 KiB by 4 threads, each keeping 16 outstanding, through shared memory:\n      \
            rdmabox-bench write --size 4k --threads 4 --depth 16\n  \
        The latency of a single READ over TCP:\n      \
            rdmabox-bench read --provider tcp --size 8 --depth 1\n  \
        The effects of merging and chaining, three rounds of each, with a chart in results/:\n      \
            rdmabox-bench write --provider tcp --rounds 3 --sweep 'threads=1,2,4,8 mode=single,merge,doorbell,hybrid'\n  \
        Two machines (any program that reaches that address can use the memory):\n      \
            rdmabox-bench serve --memory 1g --listen 10.0.0.7:7450\n      \
            rdmabox-bench read --connect 10.0.0.7:7450 --threads 4\n  \
        A program with a quarter of its pages in local memory, on a modelled card:\n      \
            rdmabox-bench paging --load sys --local 25 --threads 32 --device model:cx3\n  \
        An experiment of the RDMAbox paper, and which ones there are:\n      \
            rdmabox-bench experiment fig6\n      \
            rdmabox-bench experiment list\n\n\
        `rdmabox-bench write --help` explains the options of a load. Sizes are numbers of bytes, or of powers of \
        1024: 64k, 1.5m, 4g. Exit status: 0 on success, 1 if something failed, \
        2 for an invalid command line, 128 and the signal after a signal."
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// One-sided READs
    Read(Bench),
    /// One-sided WRITEs
    Write(Bench),
    /// Compare-and-swaps of 8 bytes; every success is checked against the memory at the end
    Cas(Bench),
    /// Calls: a request that the server's code answers
    Send(Bench),
    /// READs and WRITEs of 4 KiB that a pager makes of queries: page-ins, for which threads wait,
    /// and write-outs of dirty pages in batches. Latencies are those of page-ins
    Paging(Bench),
    /// Serve clients on other machines until SIGTERM or Ctrl-C
    Serve(Serve),
    /// Repeat an experiment of the RDMAbox paper; "list" prints their names
    Experiment(Experiment),
    /// Print which counters each option changes, by a small load per value over TCP
    Options,
}

/// A measurement.
#[derive(Clone, Debug, Args)]
pub struct Bench {
    /// The load.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Options of the run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Run every combination, for example 'threads=1,2,4 mode=single,hybrid': a table, JSON and an
    /// SVG chart whose x axis is the first option
    #[arg(long, value_name = "OPTION=VALUES ...", help_heading = "Run")]
    pub sweep: Option<String>,
}

/// An experiment.
#[derive(Clone, Debug, Args)]
pub struct Experiment {
    /// fig1, fig2, fig5, fig6, fig7, fig8, fig9, table1, or list; with a modelled card also all,
    /// which writes paper.md as well
    pub name: String,
    /// Options that the experiment leaves open, or that override its own.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Options of the run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Run the loads of the modelled card over this provider as well, without the card, and show
    /// its values beside the model's
    #[arg(long, value_name = "PROVIDER", help_heading = "Run")]
    pub beside: Option<ProviderKind>,
    /// With a modelled card: fail if a shape of the paper does not hold. This file lists
    /// exceptions, as `NAME: quantity` in a line each
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub check: Option<PathBuf>,
    /// Run one short round, to check that the experiment works
    #[arg(long, help_heading = "Run")]
    pub quick: bool,
}

/// Options of a run and of its output.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    /// Repeat everything, combinations interleaved, and report medians [default: 1; for experiments
    /// 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// One request outstanding, by plain blocking calls: --submit blocking --depth 1
    #[arg(long, conflicts_with_all = ["submit", "depth"])]
    pub blocking: bool,

    /// Use the server at this address, unix:/path, tcp:host:port or rdma:host:port; repeat for
    /// several peers
    #[arg(long, value_name = "ADDRESS")]
    pub connect: Vec<Address>,

    /// Run servers as threads of this process instead of child processes
    #[arg(long, conflicts_with = "connect")]
    pub in_process: bool,

    /// Write the result as JSON into a file, or with "-" to standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Directory for the JSON and the chart of sweeps and experiments [default: results]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Nanoseconds of this machine for a nanosecond of a modelled card. A larger value repeats
    /// better and takes longer. --duration and --warmup are times of this machine. 0: the card only
    /// counts, and all times are this machine's [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub dilation: Option<u32>,

    /// The RDMA device of this process, and of servers that it starts.
    #[command(flatten)]
    pub rdma: RdmaArgs,
}

impl RunArgs {
    /// Returns the modelled card, if one is selected.
    pub fn model(&self) -> Result<Option<Model>> {
        let device = self.rdma.device.as_deref();
        let dilation = self.dilation.unwrap_or(DILATION);
        let model = device.map_or(Ok(None), |device| Model::of_device(device, dilation))?;
        if model.is_none() && self.dilation.is_some() {
            return Err(Error::usage("--dilation is for a modelled card: give --device model:cx3 as well"));
        }
        Ok(model)
    }
}

/// The choice of an RDMA device.
#[derive(Clone, Debug, Args)]
pub struct RdmaArgs {
    /// RDMA device for rdma, such as mlx5_0 or rxe0 [default: the first with an active port]. Or
    /// model:CARD, a modelled card over shm or tcp: CARD is cx3, or the path of a file of constants
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the RDMA device, counted from 1 [default: the first active one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub port: Option<u8>,

    /// Entry of the port's GID table [default: that of the network address over which the peers
    /// find each other, else one of RoCE v2]
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,
}

impl RdmaArgs {
    /// Returns the options of the runtime.
    pub fn options(&self) -> RdmaOptions {
        let mut options = RdmaOptions::default();
        options.device = self.device.clone().filter(|device| !device.starts_with("model:"));
        (options.port, options.gid_index) = (self.port, self.gid_index);
        options
    }
}

/// Options of a server.
#[derive(Clone, Debug, Args)]
pub struct Serve {
    /// Where to listen: unix:/path for clients on this machine (shm), tcp:host:port or
    /// rdma:host:port; may be repeated. Port 0 takes a free one [default: tcp:127.0.0.1:0 and a
    /// socket in the directory for temporary files]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<Address>,

    /// Memory that the server exports
    #[arg(long, value_name = "BYTES", default_value = "256m", value_parser = byte_size::parse_nonzero)]
    pub memory: u64,

    /// The RDMA device.
    #[command(flatten)]
    pub rdma: RdmaArgs,
}

/// A parsed command line.
#[derive(Debug)]
pub enum Request {
    /// A load or a sweep.
    Bench(OpKind, Settings, Bench),
    /// A server.
    Serve(Serve),
    /// An experiment.
    Experiment(Settings, Experiment),
    /// The table of options.
    Options,
}

impl Request {
    /// Parses a command line. Help and version are returned as `Err` with exit status 0.
    pub fn parse(
        args: impl IntoIterator<Item = std::ffi::OsString>,
    ) -> std::result::Result<Request, clap::Error> {
        let matches = Cli::command().try_get_matches_from(args)?;
        let cli = Cli::from_arg_matches(&matches)?;
        let given = |run: &RunArgs| {
            // The parser guarantees that there is a subcommand.
            let settings = matches.subcommand().map_or_else(Settings::default, |(_, m)| Settings::given(m));
            let short = if run.blocking { &[("submit", "blocking"), ("depth", "1")][..] } else { &[] };
            settings.with(&Settings::from_pairs(short.iter().copied()))
        };
        Ok(match cli.command {
            Command::Read(bench) => Request::Bench(OpKind::Read, given(&bench.run), bench),
            Command::Write(bench) => Request::Bench(OpKind::Write, given(&bench.run), bench),
            Command::Cas(bench) => Request::Bench(OpKind::Cas, given(&bench.run), bench),
            Command::Send(bench) => Request::Bench(OpKind::Send, given(&bench.run), bench),
            Command::Paging(bench) => Request::Bench(OpKind::Paging, given(&bench.run), bench),
            Command::Serve(serve) => Request::Serve(serve),
            Command::Experiment(experiment) => Request::Experiment(given(&experiment.run), experiment),
            Command::Options => Request::Options,
        })
    }

    /// Calls [`parse`](Self::parse) with the process's arguments. Prints help if requested. Turns
    /// an error into one line.
    pub fn from_command_line() -> Result<Option<Request>> {
        match Self::parse(std::env::args_os()) {
            Ok(request) => Ok(Some(request)),
            Err(err) if err.exit_code() == 0 => {
                // This is help or version output. A write error has no reader to report it to.
                let _ = err.print();
                Ok(None)
            }
            Err(err) if err.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                Err(Error::usage(
                    "no command given: read, write, cas, send, paging, serve, experiment or options; see --help",
                ))
            }
            Err(err) => Err(Error::usage(settings::one_line(&err))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> std::result::Result<Request, clap::Error> {
        Request::parse(line.split(' ').map(Into::into))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_given_options_are_settings() {
        let Ok(Request::Bench(op, settings, bench)) = parse("x cas --threads 2 --rounds 3 --words=9") else {
            panic!("no load");
        };
        assert_eq!((op, bench.run.rounds, bench.load.threads), (OpKind::Cas, Some(3), 2));
        assert_eq!(settings, Settings::from_pairs([("threads", "2"), ("words", "9")]));
    }

    #[test]
    fn blocking_is_short_for_two_options() {
        let Ok(Request::Bench(_, settings, _)) = parse("x read --blocking") else { panic!("no load") };
        assert_eq!(settings, Settings::from_pairs([("submit", "blocking"), ("depth", "1")]));
        assert!(parse("x read --blocking --depth 2").is_err());
    }

    #[test]
    fn invalid_options_are_refused() {
        for line in [
            "x",
            "x fly",
            "x read --threads 0",
            "x read --polling never",
            "x read --rounds 0",
            "x experiment",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
