//! The plain run: IOzone on rfs beside its ceilings.

pub mod chart;
pub mod report;
pub mod table;

use std::path::{Path, PathBuf};

use clap::Args;

use self::report::Report;
use super::{IOZONE_RECORDS, entrants};
use crate::{
    Result,
    cli::{Common, Kind, Switches, among},
    engine::{self, EngineKind, job::Job, meter::Instruments},
    harness::{self, Plan, Start},
    interrupt::Interrupt,
    machine,
    report::{Setting, files},
    size,
    target::Setup,
};

/// Options of the plain run.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Targets to measure, in this order.
    #[arg(
        long,
        value_parser = among([Kind::Shm, Kind::Tcp, Kind::Rdma, Kind::Null, Kind::Tmpfs]),
        value_delimiter = ',',
        default_value = "shm,tcp,null,tmpfs",
        value_name = "LIST"
    )]
    pub providers: Vec<Kind>,

    /// Mount the server at this address (unix:/path, tcp:host:port, rdma:host:port) instead of
    /// starting a server. Give it once for each of shm, tcp and rdma in the list of providers. The
    /// server needs twice the size of the files.
    #[arg(long, value_name = "ADDRESS")]
    pub connect: Vec<String>,

    /// Record sizes: numbers of bytes, or of powers of 1024 [default: 4k,64k,128k,1m].
    #[arg(long, value_delimiter = ',', value_parser = size::parse_nonzero, value_name = "LIST")]
    pub record_sizes: Vec<u64>,

    /// File size [default: an eighth of the available memory, at most 1g, rounded to a power of
    /// two].
    #[arg(long, value_parser = size::parse_nonzero, value_name = "SIZE")]
    pub file_size: Option<u64>,

    /// Number of concurrent processes, each with its own file; throughput is their sum.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,

    /// Measuring engine.
    #[arg(long, value_enum, default_value_t = EngineKind::Auto)]
    pub engine: EngineKind,

    /// Options of every plan.
    #[command(flatten)]
    pub common: Common,

    /// Options of the runtime and of the mount.
    #[command(flatten)]
    pub switches: Switches,
}

impl Options {
    /// Returns the record sizes to run.
    pub fn records(&self) -> Vec<u64> {
        IOZONE_RECORDS.of(&self.record_sizes, self.common.quick)
    }

    /// Returns the file size for a machine with `available` bytes of memory.
    pub fn file_size(&self, available: u64) -> u64 {
        let usual = size::default_file_size(available, self.threads);
        self.common.usual(self.file_size, usual, 64 * size::MIB)
    }

    fn plan(&self, records: &[u64], file_size: u64) -> Result<Plan<Job>> {
        let setup = Setup {
            switches: self.switches.clone(),
            server_memory: size::server_memory(file_size, self.threads),
            files: file_size.saturating_mul(u64::from(self.threads)),
            connect: self.connect.clone(),
            ..Setup::at(&self.common.places)?
        };
        let tests: Vec<Job> = records.iter().copied().map(Job::Iozone).collect();
        Ok(Plan {
            entrants: entrants(&self.providers, &setup, &tests)?,
            tests,
            rounds: self.common.rounds(1),
            limit: self.common.round_limit(None),
            start: Start::EachTest,
        })
    }

    /// Runs the plan and reports its results.
    pub fn perform(&self) -> Result<bool> {
        let interrupt = Interrupt::on_signals()?;
        let available = machine::memory_available();
        let (records, file_size) = (self.records(), self.file_size(available));
        size::check(file_size, &records, self.threads, available)?;
        let engine = engine::choose(self.engine)?;
        let plan = self.plan(&records, file_size)?;
        let setting = Setting::now(&self.common.output);
        eprintln!("{}, {} files", engine.describe(), size::show(file_size));
        let limit = self.common.timeout(600);
        let instruments = Instruments::of_iozone(engine.as_ref(), file_size, self.threads, limit);
        let measured = harness::run(&plan, &instruments, &interrupt)?;
        let extent = (file_size, records, self.threads);
        let report = Report {
            reads_are_page_cache_hits: self.switches.keep_pages(),
            ..Report::measured(setting, engine.describe(), extent, &measured)
        };
        println!("{}", table::render(&report));
        let stem = report.setting.stem("iozone");
        files::tell(&write(&report, &measured.log, &self.common.output.dir(), &stem)?);
        Ok(true)
    }
}

/// Writes JSON, chart and log into a directory, which is created. The file names begin with `stem`.
/// Returns the paths in this order.
fn write(report: &Report, log: &str, dir: &Path, stem: &str) -> Result<Vec<PathBuf>> {
    let texts = [("json", files::json(report)?), ("svg", chart::svg(report)), ("log", log.to_owned())];
    files::write(dir, texts.map(|(extension, text)| (format!("{stem}.{extension}"), text)).into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{report::tests::example, *};
    use crate::cli::parse;

    #[test]
    fn files_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new/results");
        let written = write(&example(), "raw", &out, "run").unwrap();
        assert_eq!(written, ["run.json", "run.svg", "run.log"].map(|name| out.join(name)));
        assert!(fs::read_to_string(&written[1]).unwrap().starts_with("<svg "));
        assert_eq!(fs::read_to_string(&written[2]).unwrap(), "raw");
    }

    fn options(args: &[&str]) -> Options {
        parse(args).unwrap()
    }

    #[test]
    fn the_default_run() {
        let options = options(&[]);
        assert_eq!(options.providers, [Kind::Shm, Kind::Tcp, Kind::Null, Kind::Tmpfs]);
        assert_eq!(options.records(), [4096, 65536, 131_072, 1 << 20]);
        assert_eq!(options.file_size(64 << 30), 1 << 30);
        assert_eq!(options.switches, Switches::default());
    }

    #[test]
    fn given_options_override_quick() {
        assert_eq!(options(&["--quick"]).records(), [65536, 1 << 20]);
        assert_eq!(options(&["--quick"]).file_size(64 << 30), 64 << 20);
        let both = options(&["--quick", "--record-sizes", "4k,16k", "--file-size", "32m"]);
        assert_eq!((both.records(), both.file_size(0)), (vec![4096, 16384], 32 << 20));
    }

    #[test]
    fn targets_are_there_once_each_in_the_order_given() {
        let options = options(&["--providers=null,shm,null,tmpfs", "--bin-dir=/bin"]);
        let plan = options.plan(&[65536, 4096], 1 << 20).unwrap();
        let names: Vec<_> = plan.entrants.iter().map(|entrant| entrant.name.as_str()).collect();
        assert_eq!(names, ["null", "shm", "tmpfs"]);
        assert_eq!((plan.tests, plan.rounds), (vec![Job::Iozone(65536), Job::Iozone(4096)], 1));
    }

    #[test]
    fn invalid_options_are_refused() {
        // Missing servers are reported later, when the targets are made.
        assert_eq!(
            options(&["--connect", "rdma:h:1", "--connect", "tcp:h:2"]).connect,
            ["rdma:h:1", "tcp:h:2"]
        );
        for args in [["--rounds", "0"], ["--providers", "nfs"], ["--file-size", "x"], ["--threads", "0"]] {
            assert!(parse::<Options>(&args).is_err(), "{args:?}");
        }
    }
}
