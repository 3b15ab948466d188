//! Measures access without the kernel: the native API, and IOzone under `librfs_preload.so`, beside
//! the mounts and tmpfs.
//!
//! In every round all targets are running, but only one of them is measured at a time. The native
//! API has the access patterns of IOzone.

mod table;

use std::path::PathBuf;

use clap::Args;

use super::{
    IOZONE_RECORDS,
    run::{chart, report::Report},
};
use crate::{
    Result,
    cli::{Common, Kind, Switches, among},
    engine::{
        self, Engine, EngineKind,
        builtin::Native,
        job::{Column, Job, Reading},
        meter::Instruments,
    },
    harness::{self, Entrant, Meter, Outcome, Plan, Site, Start},
    interrupt::Interrupt,
    machine,
    report::{Setting, files},
    size,
    target::{self, Setup},
};

/// A way to the files of a server, by the suffix of its name.
const WAYS: [(&str, &str, bool); 4] = [
    ("-native", ", native API, no mount", false),
    ("-preload", ", IOzone under librfs_preload.so", false),
    ("-none", ", mount with --cache none", false),
    ("", ", mount", true),
];

/// Options of the plan.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Measure access without the kernel.
    #[arg(long)]
    pub native: bool,

    /// Providers to measure, in this order.
    #[arg(
        long,
        value_parser = among([Kind::Shm, Kind::Tcp]),
        value_delimiter = ',',
        default_value = "shm,tcp",
        value_name = "LIST"
    )]
    pub providers: Vec<Kind>,

    /// Record sizes: numbers of bytes, or of powers of 1024 [default: 4k,64k,128k,1m].
    #[arg(long, value_delimiter = ',', value_parser = size::parse_nonzero, value_name = "LIST")]
    pub record_sizes: Vec<u64>,

    /// File size [default: 256m].
    #[arg(long, value_parser = size::parse_nonzero, value_name = "SIZE")]
    pub file_size: Option<u64>,

    /// Measuring engine of the mounts.
    #[arg(long, value_enum, default_value_t = EngineKind::Auto)]
    pub engine: EngineKind,

    /// Options of every plan.
    #[command(flatten)]
    pub common: Common,
}

impl Options {
    fn records(&self) -> Vec<u64> {
        IOZONE_RECORDS.of(&self.record_sizes, self.common.quick)
    }

    fn file_size(&self) -> u64 {
        self.common.usual(self.file_size, 256 * size::MIB, 64 * size::MIB)
    }

    /// Returns all ways of each provider, then tmpfs.
    fn entrants(&self, tests: &[Job]) -> Result<Vec<Entrant<Job>>> {
        let size = self.file_size();
        let (server_memory, places) = (size::server_memory(size, 1), &self.common.places);
        let mut all = Vec::new();
        for &kind in &self.providers {
            for (suffix, title, keeps_pages) in WAYS {
                let switches = Switches {
                    direct_io: !keeps_pages,
                    extra: vec!["--preload".into()],
                    ..Switches::default()
                };
                let setup = Setup { switches, server_memory, files: size, ..Setup::at(places)? };
                all.extend(target::of(kind, &setup)?.map(|target| {
                    let mut entrant = Entrant::new(target, tests.to_vec());
                    entrant.name.push_str(suffix);
                    entrant.title.push_str(title);
                    entrant
                }));
            }
        }
        let setup = Setup { files: size, ..Setup::at(places)? };
        all.extend(super::entrants(&[Kind::Tmpfs], &setup, tests)?);
        Ok(all)
    }

    /// Runs the plan and reports its results.
    ///
    /// # Errors
    /// There is too little memory, or a program fails.
    pub fn perform(&self) -> Result<bool> {
        let interrupt = Interrupt::on_signals()?;
        let (records, file_size) = (self.records(), self.file_size());
        size::check(file_size, &records, 1, machine::memory_available())?;
        let tests: Vec<Job> = records.iter().copied().map(Job::Iozone).collect();
        let plan = Plan {
            entrants: self.entrants(&tests)?,
            tests,
            rounds: self.common.rounds(5),
            limit: self.common.round_limit(Some(60)),
            start: Start::EachTest,
        };
        let setting = Setting::now(&self.common.output);
        let ways = Ways {
            engine: engine::choose(self.engine)?,
            library: self.common.places.bin_dir()?.join("librfs_preload.so"),
            options: self,
        };
        let measured = harness::run(&plan, &ways, &interrupt)?;
        let extent = (file_size, records, 1);
        let report = Report::measured(setting, ways.engine.describe(), extent, &measured);
        println!("{}", table::render(&report, &self.names()));
        let stem = report.setting.stem("native");
        let texts = [("json", files::json(&report)?), ("svg", chart::svg(&report)), ("log", measured.log)];
        let texts = texts.map(|(extension, text)| (format!("{stem}.{extension}"), text));
        files::tell(&files::write(&self.common.output.dir(), texts.into())?);
        Ok(true)
    }

    /// Returns the names of the providers.
    fn names(&self) -> Vec<String> {
        super::unique(&self.providers).iter().map(crate::cli::name_of).collect()
    }
}

/// Measures each way with its engine.
struct Ways<'a> {
    /// Engine of the mounts.
    engine: Box<dyn Engine>,
    /// The preload library.
    library: PathBuf,
    options: &'a Options,
}

impl Meter for Ways<'_> {
    type Test = Job;
    type Column = Column;
    type Reading = Reading;

    fn describe(&self, job: Job) -> String {
        job.describe()
    }

    fn measure(&self, job: Job, site: &mut Site<'_>) -> Result<Outcome<Column, Reading>> {
        let native = site.running.server().filter(|_| site.name.ends_with("-native"));
        let native = native.map(|server| Native { server: server.to_owned() });
        let engine = native.as_ref().map_or(self.engine.as_ref(), |native| native as &dyn Engine);
        let limit = self.options.common.timeout(300);
        let instruments = Instruments {
            library: site.name.ends_with("-preload").then_some(&*self.library),
            ..Instruments::of_iozone(engine, self.options.file_size(), 1, limit)
        };
        instruments.measure(job, site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    #[test]
    fn each_provider_has_each_way_and_tmpfs_is_there_once() {
        let options = parse::<Options>(&["--native", "--bin-dir=/bin"]).unwrap();
        let entrants = options.entrants(&[Job::Iozone(4096)]).unwrap();
        let names: Vec<_> = entrants.iter().map(|entrant| entrant.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "shm-native",
                "shm-preload",
                "shm-none",
                "shm",
                "tcp-native",
                "tcp-preload",
                "tcp-none",
                "tcp",
                "tmpfs"
            ]
        );
        assert_eq!(options.names(), ["shm", "tcp"]);
        assert!(entrants[1].title.ends_with("IOzone under librfs_preload.so"));
    }
}
