//! Command line of `rfs-paging`. It parses options and starts nothing.
//!
//! # Concurrency
//! Plain values.

use std::{ffi::OsString, ops::RangeInclusive, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use rdmabox::Address;
use service_program::LogOptions;

use crate::{
    Redundancy, Switches,
    logic::{PAGE, layout::CHUNK},
    nbd::NbdAddress,
    options::MIN_BUDGET_PAGES,
};

/// Bounds of options that are sizes. The library has the same for its own options.
const LOCAL: RangeInclusive<u64> = MIN_BUDGET_PAGES * PAGE as u64..=u64::MAX;
const LENT: RangeInclusive<u64> = CHUNK as u64..=u64::MAX;
const READ_AHEAD: RangeInclusive<u64> = PAGE as u64..=CHUNK as u64;
const MIN_SIZE: RangeInclusive<u64> = 64 << 10..=u64::MAX;
/// Each of 52 lengths of small blocks needs 1 MiB of address space.
const SMALL: RangeInclusive<u64> = 64 << 20..=u64::MAX;
/// A header and a few pages; page numbers of 32 bits.
const SWAP: RangeInclusive<u64> = 64 << 10..=1 << 44;

/// Lends memory to pagers, shows the lent memory, and runs programs with paged memory.
#[derive(Debug, Parser)]
#[command(name = "rfs-paging", version)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub log: LogOptions,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lends memory of this machine until SIGTERM or Ctrl-C.
    ///
    /// Prints the addresses, one per line, and then a line that begins with "ready:". A network
    /// address needs keys. Every pager with a key can read and write all of the lent memory.
    Lend {
        /// Bytes to lend, such as 512m or 4g, at least 1m; rounded down to MiB
        #[arg(long, value_name = "SIZE", value_parser = size_in(LENT))]
        memory: u64,
        /// Address to listen at, such as 10.0.0.7:7450 or unix:/run/lend.sock; repeatable
        #[arg(long, value_name = "ADDRESS", required = true)]
        listen: Vec<Address>,
        /// File with a key of pagers, repeatable: a name, a space, and a secret in hexadecimal
        /// digits, with mode 600. `rfs-server --new-key NAME` makes one
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
        /// Lend to every program that reaches a network address, and to every user of this machine
        #[arg(long, conflicts_with = "key")]
        allow_without_keys: bool,
    },
    /// Shows the counters of all running pagers of this user, or how much memory a lender has lent.
    Status {
        /// Address of a lender; without it, the running pagers are shown
        address: Option<Address>,
        /// File with the key for the lender
        #[arg(long, value_name = "FILE", requires = "address")]
        key: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Runs a program whose large allocations are paged.
    Run(RunOptions),
    /// Adds swap space in the memory of an rfs-server, until SIGTERM, Ctrl-C or `swapoff`.
    ///
    /// Safe if programs are limited by memory cgroups. Not safe if this machine as a whole lacks
    /// memory: the mount then needs memory of the kernel to free memory.
    Swapon(SwapOptions),
    /// Ends all swap areas of `swapon`, also of processes that were killed.
    Swapoff,
    /// Serves memory of lenders as a block device, over NBD, until SIGTERM or Ctrl-C.
    ///
    /// The bytes end with this process. Prints a line that begins with "ready:".
    Nbd(NbdOptions),
}

/// Options of a pager: its local memory, and its lenders.
#[derive(Clone, Debug, Args)]
pub struct PagerArgs {
    /// Local memory for pages, such as 256m, at least 128k
    #[arg(long, value_name = "SIZE", value_parser = size_in(LOCAL))]
    pub local: u64,
    /// Address of a lender; repeatable
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub server: Vec<Address>,
    /// Protection from the loss of lenders: "none", "mirror", or such as "4+2" for a code of 4
    /// pages and 2 parity pages, at 6 lenders
    #[arg(long, value_name = "KIND", default_value_t = Redundancy::None)]
    pub redundancy: Redundancy,
    /// Lenders that get each page: 1 is the same as "--redundancy none", 2 as "--redundancy mirror"
    #[arg(long, value_name = "N", value_parser = parse_copies, conflicts_with = "redundancy")]
    pub copies: Option<Redundancy>,
    /// File with the key for the lenders
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Switches of the runtime, such as batch=single,queue-pairs=1. There are provider, batch,
    /// queue-pairs, window, window-scope, pre-mr-threshold, polling and, in builds with the feature
    /// "model", card
    #[arg(long, value_name = "LIST", default_value_t = Switches::default(), hide_default_value = true)]
    pub switches: Switches,
}

impl PagerArgs {
    /// Returns the redundancy that `--copies` or `--redundancy` says.
    pub fn redundancy(&self) -> Redundancy {
        self.copies.unwrap_or(self.redundancy)
    }
}

/// Returns a parser of sizes in a range. Its errors say which size to give.
fn size_in(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| match byte_size::parse_nonzero(text) {
        Ok(size) if size < *range.start() => Err(format!(
            "{} is too little: give at least {}",
            byte_size::show(size),
            byte_size::show(*range.start())
        )),
        Ok(size) if size > *range.end() => Err(format!(
            "{} is too much: give at most {}",
            byte_size::show(size),
            byte_size::show(*range.end())
        )),
        Ok(size) => Ok(size),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a number of copies.
fn parse_copies(text: &str) -> Result<Redundancy, &'static str> {
    match text {
        "1" => Ok(Redundancy::None),
        "2" => Ok(Redundancy::Mirror),
        _ => {
            Err("1 or 2 copies are possible; --redundancy has codes, which survive the loss of more lenders")
        }
    }
}

/// Options of `rfs-paging nbd`.
#[derive(Clone, Debug, Parser)]
pub struct NbdOptions {
    /// Size of the block device, such as 8g. Blocks of zeros take no memory of lenders
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero)]
    pub size: u64,
    /// Local memory and lenders.
    #[command(flatten)]
    pub pager: PagerArgs,
    /// Where clients connect: unix:/PATH, which only this user may use, or a loopback address
    #[arg(long, value_name = "ADDRESS")]
    pub listen: NbdAddress,
    /// Name of the export
    #[arg(long, value_name = "NAME", default_value = "rfs-paging")]
    pub name: String,
}

/// Options of `rfs-paging swapon`.
#[derive(Clone, Debug, Parser)]
pub struct SwapOptions {
    /// Size of the area, such as 8g, which the server reserves at once; at least 64k
    #[arg(long, value_name = "SIZE", value_parser = size_in(SWAP))]
    pub size: u64,
    /// Address of the rfs-server
    #[arg(long, value_name = "ADDRESS")]
    pub server: Address,
    /// File with the key for the server
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Priority of the area, 0 to 32767: the kernel uses areas of higher priority first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i16).range(0..))]
    pub priority: Option<i16>,
    /// The program rfs-fuse, if it is not beside this program
    #[arg(long, value_name = "FILE")]
    pub fuse: Option<PathBuf>,
    /// More options for rfs-fuse, such as --export
    #[arg(last = true, value_name = "OPTIONS")]
    pub fuse_options: Vec<OsString>,
}

/// Options of `rfs-paging run`.
///
/// Paged are anonymous mappings and allocations of at least --min-size bytes, which the program
/// makes through libc. Other memory stays local. The program must be linked dynamically. Programs
/// that it starts are not paged.
#[derive(Clone, Debug, Parser)]
pub struct RunOptions {
    /// Local memory and lenders.
    #[command(flatten)]
    pub pager: PagerArgs,
    /// Longest block that sequential faults read, at most 1m; 4k reads nothing ahead
    #[arg(long, value_name = "SIZE", default_value = "128k", value_parser = size_in(READ_AHEAD))]
    pub read_ahead: u64,
    /// Leave the fault thread where the kernel puts it. By default it runs on the core of the
    /// thread that faults, while one thread causes the faults
    #[arg(long)]
    pub no_follow: bool,
    /// Length from which allocations are paged, at least 64k
    #[arg(long, value_name = "SIZE", default_value = "1m", value_parser = size_in(MIN_SIZE))]
    pub min_size: u64,
    /// Page small allocations as well, in this much address space, such as 64g, at least 64m
    #[arg(long, value_name = "SIZE", value_parser = size_in(SMALL))]
    pub small: Option<u64>,
    /// Print the counters on standard error when the program ends
    #[arg(long)]
    pub stats: bool,
    /// The preload library, if it is not beside this program
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use service_program::LogFormat;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let words = "rfs-paging run --local 256m --server unix:/x --server unix:/y --redundancy mirror \
                     --switches batch=single,polling=busy -- ls -l --stats";
        let cli = Cli::try_parse_from(words.split_whitespace()).expect("valid");
        let Command::Run(options) = cli.command else { panic!("{cli:?}") };
        assert_eq!((options.pager.local, options.pager.server.len(), options.stats), (256 << 20, 2, false));
        assert_eq!(options.pager.redundancy, Redundancy::Mirror);
        assert_eq!(options.pager.switches.to_string(), "batch=single,polling=busy");
        assert_eq!(options.program, ["ls", "-l", "--stats"]);
        assert_eq!(cli.log.log_format, LogFormat::Text);
        let words = "rfs-paging lend --memory 64m --listen unix:/x --log-format json";
        assert_eq!(
            Cli::try_parse_from(words.split_whitespace()).expect("valid").log.log_format,
            LogFormat::Json
        );
        // The words behind the program are its own.
        let words = "rfs-paging run --local 1m --server unix:/x -- prog --log-format json";
        let cli = Cli::try_parse_from(words.split_whitespace()).expect("valid");
        assert_eq!(cli.log.log_format, LogFormat::Text);
    }

    /// Catches a number of copies that is taken for another one, or that hides a redundancy.
    #[test]
    fn copies_are_a_form_of_redundancy() {
        let redundancy = |options: &str| {
            let words =
                format!("rfs-paging nbd --size 1m --local 1m --server unix:/x --listen unix:/y {options}");
            match Cli::try_parse_from(words.split_whitespace()).map(|cli| cli.command) {
                Ok(Command::Nbd(options)) => Ok(options.pager.redundancy()),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error.to_string()),
            }
        };
        assert_eq!(redundancy(""), Ok(Redundancy::None));
        assert_eq!(redundancy("--redundancy 4+2"), Ok(Redundancy::Coded { data: 4, parity: 2 }));
        assert_eq!(redundancy("--copies 1"), Ok(Redundancy::None));
        assert_eq!(redundancy("--copies 2"), Ok(Redundancy::Mirror));
        for wrong in ["0", "3", "-1", "two"] {
            let error = redundancy(&format!("--copies={wrong}")).expect_err(wrong);
            assert!(error.contains("1 or 2 copies are possible"), "{error}");
        }
        assert!(
            redundancy("--copies 2 --redundancy mirror").is_err_and(|error| error.contains("cannot be used"))
        );
    }
}
