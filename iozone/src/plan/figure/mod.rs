//! A figure of the RDMAbox paper that needs files: Fig. 12, IOzone on file systems over several
//! runtimes.
//!
//! All systems are rfs, with the switches of their `profiles`. As in Section VI-B there is one
//! client, one server and one file, and FUSE requests have at most 128 KiB. The kernel caches no
//! pages, so each read reaches the server.

mod profiles;
mod shape;
mod table;

use std::path::Path;

use clap::Args;

use self::profiles::PROFILES;
use super::{
    IOZONE_RECORDS, require,
    run::{chart, report::Report},
};
use crate::{
    Result,
    cli::{Common, Kind, Switches, among, name_of},
    engine::{self, EngineKind, job::Job, meter::Instruments},
    harness::{self, Entrant, Plan, Start},
    interrupt::Interrupt,
    machine,
    report::{Setting, files},
    size,
    target::{self, Setup, Side},
};

/// The kernel lists the RDMA devices here.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// Options of the plan.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The figure of the paper: 12.
    #[arg(long, value_name = "NUMBER", required = true, value_parser = figure)]
    pub figure: u32,

    /// Providers to measure, in this order [default: tcp, and rdma if the machine has a device].
    #[arg(
        long,
        value_parser = among([Kind::Shm, Kind::Tcp, Kind::Rdma]),
        value_delimiter = ',',
        value_name = "LIST"
    )]
    pub providers: Vec<Kind>,

    /// Mount the server at this address (tcp:host:port, rdma:host:port) instead of starting one;
    /// once for each provider.
    #[arg(long, value_name = "ADDRESS")]
    pub connect: Vec<String>,

    /// Record sizes: numbers of bytes, or of powers of 1024 [default: 4k,64k,128k,1m].
    #[arg(long, value_delimiter = ',', value_parser = size::parse_nonzero, value_name = "LIST")]
    pub record_sizes: Vec<u64>,

    /// File size [default: 256m].
    #[arg(long, value_parser = size::parse_nonzero, value_name = "SIZE")]
    pub file_size: Option<u64>,

    /// Number of concurrent processes, each with its own file; the paper has one.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,

    /// Measuring engine.
    #[arg(long, value_enum, default_value_t = EngineKind::Auto)]
    pub engine: EngineKind,

    /// Options of every plan.
    #[command(flatten)]
    pub common: Common,
}

/// Parses the number of a figure, and names the command that measures another one.
fn figure(text: &str) -> std::result::Result<u32, String> {
    match text {
        "12" => Ok(12),
        "1" | "2" | "5" | "6" | "7" | "8" | "9" => {
            Err(format!("run \"rdmabox-bench experiment fig{text} --device model:cx3\" for it"))
        }
        "10" | "11" => Err(format!("run \"ci/benchmarks/paging-figures fig{text}\" for it")),
        _ => Err("of the paper's figures, only Fig. 12 measures files".into()),
    }
}

impl Options {
    fn records(&self) -> Vec<u64> {
        IOZONE_RECORDS.of(&self.record_sizes, self.common.quick)
    }

    fn file_size(&self) -> u64 {
        self.common.usual(self.file_size, 256 * size::MIB, 32 * size::MIB)
    }

    fn providers(&self) -> Vec<Kind> {
        if !self.providers.is_empty() {
            return super::unique(&self.providers);
        }
        let devices = Path::new(RDMA_DEVICES).read_dir();
        let device = devices.is_ok_and(|mut devices| devices.next().is_some());
        [Kind::Tcp].into_iter().chain(device.then_some(Kind::Rdma)).collect()
    }

    /// Returns each profile on each provider.
    fn entrants(&self, providers: &[Kind], tests: &[Job]) -> Result<Vec<Entrant<Job>>> {
        let mut all = Vec::new();
        for &kind in providers {
            for profile in &PROFILES {
                let options = profile.switches.options().map(|(name, value)| [name, value]);
                let switches = Switches {
                    direct_io: true,
                    prefault: true,
                    max_write: Some("128k".into()),
                    extra: options.concat().into_iter().map(str::to_owned).collect(),
                    ..Switches::default()
                };
                let setup = Setup {
                    switches,
                    server_memory: size::server_memory(self.file_size(), self.threads),
                    files: self.file_size().saturating_mul(u64::from(self.threads)),
                    connect: self.connect.clone(),
                    ..Setup::at(&self.common.places)?
                };
                let Some(target) = target::of(kind, &setup)? else { continue };
                let title = profile.switches.describe();
                let name = shape::target(&name_of(&kind), profile);
                all.push(Entrant { name, title, side: Side::Variant, tests: tests.to_vec(), target });
            }
        }
        require(&all)?;
        Ok(all)
    }

    /// Runs the plan and reports its results. Returns false if a shape is to be checked and does
    /// not hold.
    ///
    /// # Errors
    /// There is too little memory, or a program fails.
    pub fn perform(&self) -> Result<bool> {
        let interrupt = Interrupt::on_signals()?;
        let (records, file_size) = (self.records(), self.file_size());
        size::check(file_size, &records, self.threads, machine::memory_available())?;
        let tests: Vec<Job> = records.iter().copied().map(Job::Iozone).collect();
        let providers = self.providers();
        let plan = Plan {
            entrants: self.entrants(&providers, &tests)?,
            tests,
            rounds: self.common.rounds(5),
            limit: self.common.round_limit(Some(60)),
            start: Start::EachTest,
        };
        let setting = Setting::now(&self.common.output);
        let engine = engine::choose(self.engine)?;
        let limit = self.common.timeout(300);
        let instruments = Instruments::of_iozone(engine.as_ref(), file_size, self.threads, limit);
        let measured = harness::run(&plan, &instruments, &interrupt)?;
        let extent = (file_size, records, self.threads);
        let report = Report::measured(setting, engine.describe(), extent, &measured);
        let names: Vec<String> = providers.iter().map(name_of).collect();
        println!("{}", table::render(&report, &names));
        files::tell(&files::write(&self.common.output.dir(), texts(&report, &names, measured.log)?)?);
        Ok(!self.common.check || shape::all_hold(&report, &names))
    }
}

/// Returns the files of a report: JSON, a chart per provider, and the log.
fn texts(report: &Report, providers: &[String], log: String) -> Result<Vec<(String, String)>> {
    let stem = report.setting.stem("fig12");
    let mut texts = vec![(format!("{stem}.json"), files::json(report)?), (format!("{stem}.log"), log)];
    for provider in providers {
        let title = format!("Fig. 12 by profiles of switches, over {provider}");
        let chart = chart::titled(&report.only(&format!("{provider}-")), &title);
        texts.push((format!("{stem}-{provider}.svg"), chart));
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    /// Catches a profile whose switches do not reach rfs-fuse.
    #[test]
    fn each_provider_has_each_profile() {
        let options =
            parse::<Options>(&["--figure=12", "--providers=tcp,rdma,tcp", "--bin-dir=/bin"]).unwrap();
        let providers = options.providers();
        let entrants = options.entrants(&providers, &[Job::Iozone(4096)]).unwrap();
        let names: Vec<_> = entrants.iter().map(|entrant| entrant.name.as_str()).collect();
        assert_eq!((names.len(), names[0], names[13]), (14, "tcp-rdmabox", "rdma-gluster"));
        assert_eq!(entrants[2].title, "doorbell, dynMR, event-batch, 4 QPs, no window");
    }

    #[test]
    fn other_figures_are_refused_with_their_command() {
        let refusal = |number| parse::<Options>(&["--figure", number]).unwrap_err().to_string();
        assert!(refusal("8").contains("rdmabox-bench experiment fig8"));
        assert!(refusal("11").contains("ci/benchmarks/paging-figures fig11"));
        assert!(refusal("13").contains("only Fig. 12"));
        assert!(parse::<Options>(&[]).is_err());
    }
}
