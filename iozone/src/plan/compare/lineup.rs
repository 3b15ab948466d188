//! Selects the targets of a comparison, their names and their jobs.

use std::slice;

use super::{Extent, Group, Options};
use crate::{
    Result,
    cli::{Kind, Switches},
    engine::job::Job,
    harness::{Entrant, sorted},
    plan, size,
    target::{self, Setup, Side},
};

/// Suffix of the names of mounts without kernel caching.
pub const UNCACHED: &str = "-none";

/// Suffix of the names of mounts that also cache writes.
pub const WRITEBACK: &str = "-writeback";

/// Kernel caching of a target, derived from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Caches reads, and writes that go through to the file system.
    Pages,
    /// No caching.
    Nothing,
    /// Caches writes and delays them.
    Writes,
}

impl CacheMode {
    /// Returns the caching of the target with this name.
    pub fn of(name: &str) -> CacheMode {
        match () {
            () if name.ends_with(UNCACHED) => CacheMode::Nothing,
            () if name.ends_with(WRITEBACK) => CacheMode::Writes,
            () => CacheMode::Pages,
        }
    }
}

/// Prefix of the names of rfs without its optimizations.
pub const PLAIN: &str = "tcp-plain";

/// rfs without its optimizations: each request is posted separately, on one queue pair. Where the
/// runtime adapts by itself, two fixed settings are compared. Each entry has a name suffix, a
/// title, and the arguments of `rfs-fuse`.
pub const PLAINS: [(&str, &str, &[&str]); 4] = [
    ("-dyn-event", "dynMR, completions by events", &["--pre-mr-threshold", "0", "--polling", "event"]),
    ("-dyn-busy", "dynMR, busy polling", &["--pre-mr-threshold", "0", "--polling", "busy"]),
    ("-pre-event", "preMR, completions by events", &["--pre-mr-threshold", "1m", "--polling", "event"]),
    ("-pre-busy", "preMR, busy polling", &["--pre-mr-threshold", "1m", "--polling", "busy"]),
];

/// Arguments of `rfs-fuse` for all of [`PLAINS`].
const PLAIN_ARGS: [&str; 4] = ["--batch", "single", "--queue-pairs", "1"];

/// rfs with one optimization disabled. Each entry has a name behind `tcp-`, a description, and the
/// arguments of `rfs-fuse`.
pub const ABLATIONS: [(&str, &str, &[&str]); 6] = [
    ("single", "no merging and no chaining of requests", &["--batch", "single"]),
    ("1qp", "one queue pair", &["--queue-pairs", "1"]),
    ("event", "completions by events, no polling", &["--polling", "event"]),
    ("dynmr", "every buffer registered, none copied", &["--pre-mr-threshold", "0"]),
    ("1thread", "one thread serves the kernel", &["--threads", "1"]),
    ("nofollow", "threads stay on the core where they are", &["--no-follow"]),
];

/// IOzone's record sizes for targets that are compared with rfs only.
const LARGE: [u64; 2] = [128 * size::KIB, size::MIB];

/// Returns the targets for these options, in the order of the tables. Targets without jobs are left
/// out.
pub fn entrants(options: &Options) -> Result<Vec<Entrant<Job>>> {
    let extent = options.extent();
    let setup = Setup {
        server_memory: size::server_memory(extent.size, 1),
        files: extent.size,
        ..Setup::at(&options.common.places)?
    };
    let jobs = Jobs::new(options, &extent);
    let mut all = Vec::new();
    if options.providers.contains(&Kind::Shm) {
        all.extend(mounts(Kind::Shm, &setup, &jobs, &jobs.uncached)?);
    }
    // Variants are compared with unmodified rfs on TCP.
    if options.providers.contains(&Kind::Tcp) || !jobs.variants.is_empty() {
        all.extend(mounts(Kind::Tcp, &setup, &jobs, &jobs.uncached_and_variants)?);
    }
    if options.wants(Group::Null) {
        all.extend(mounts(Kind::Null, &setup, &jobs, &jobs.uncached)?);
    }
    for (group, kind, jobs) in [
        (Group::Tmpfs, Kind::Tmpfs, &jobs.besides),
        (Group::Glusterfs, Kind::Glusterfs, &jobs.peers),
        (Group::Moosefs, Kind::Moosefs, &jobs.peers),
        (Group::Sshfs, Kind::Sshfs, &jobs.peers),
    ] {
        if options.wants(group) {
            all.extend(plan::entrants(&[kind], &setup, jobs)?);
        }
    }
    if options.wants(Group::Plain) {
        for (name, title, args) in PLAINS {
            let title = format!("one request at a time, one queue pair, {title}");
            let args = [&PLAIN_ARGS, args].concat();
            all.extend(variant(format!("{PLAIN}{name}"), &title, &args, &setup, &jobs)?);
        }
    }
    if options.wants(Group::Ablation) {
        for (name, title, args) in ABLATIONS {
            all.extend(variant(format!("tcp-{name}"), title, args, &setup, &jobs)?);
        }
    }
    all.retain(|entrant| !entrant.tests.is_empty());
    Ok(all)
}

/// Returns the mounts of a provider with each kind of caching.
fn mounts(kind: Kind, setup: &Setup, jobs: &Jobs, uncached: &[Job]) -> Result<Vec<Entrant<Job>>> {
    let none = Switches { direct_io: true, ..Switches::default() };
    let writes = Switches { cache: Some("writeback".into()), ..Switches::default() };
    let mut all = Vec::new();
    for (suffix, what, switches, jobs) in [
        ("", "", Switches::default(), &*jobs.kept),
        (UNCACHED, ", --cache none", none, uncached),
        (WRITEBACK, ", --cache writeback", writes, &*jobs.writeback),
    ] {
        if let Some(target) = target::of(kind, &Setup { switches, ..setup.clone() })? {
            let mut entrant = Entrant::new(target, jobs.to_vec());
            entrant.name.push_str(suffix);
            entrant.title.push_str(what);
            all.push(entrant);
        }
    }
    Ok(all)
}

/// Returns rfs over TCP with these arguments.
fn variant(
    name: String,
    title: &str,
    args: &[&str],
    setup: &Setup,
    jobs: &Jobs,
) -> Result<Option<Entrant<Job>>> {
    let extra = args.iter().map(|arg| (*arg).to_owned()).collect();
    let switches = Switches { direct_io: true, extra, ..Switches::default() };
    let target = target::of(Kind::Tcp, &Setup { switches, ..setup.clone() })?;
    let title = format!("rfs over TCP, --cache none, {title}");
    let variant = |target| Entrant { name, title, side: Side::Variant, tests: jobs.variants.clone(), target };
    Ok(target.map(variant))
}

/// Removes jobs that need fio, and targets without remaining jobs.
pub fn without_fio(entrants: &mut Vec<Entrant<Job>>) {
    for entrant in entrants.iter_mut() {
        entrant.tests.retain(|job| job.accesses().is_empty());
    }
    entrants.retain(|entrant| !entrant.tests.is_empty());
}

/// Jobs per kind of target.
struct Jobs {
    kept: Vec<Job>,
    uncached: Vec<Job>,
    writeback: Vec<Job>,
    peers: Vec<Job>,
    /// Jobs of targets that are compared with all mounts.
    besides: Vec<Job>,
    variants: Vec<Job>,
    uncached_and_variants: Vec<Job>,
}

impl Jobs {
    fn new(options: &Options, extent: &Extent) -> Self {
        let when = |wanted: bool, jobs: &[Job]| if wanted { jobs.to_vec() } else { Vec::new() };
        let iozone: Vec<Job> = extent.records.iter().map(|record| Job::Iozone(*record)).collect();
        let fio: Vec<Job> = extent.blocks.iter().map(|block| Job::Fio(*block)).collect();
        let fio = when(options.wants(Group::Fio), &fio);
        let (cached, uncached) = (options.wants(Group::Iozone), options.wants(Group::Uncached));
        let large: Vec<Job> = LARGE.iter().map(|record| Job::Iozone(*record)).collect();
        let large: Vec<Job> = iozone.iter().filter(|job| large.contains(job)).copied().collect();
        let variants = options.wants(Group::Plain) || options.wants(Group::Ablation);
        let sizes = sorted(extent.blocks.iter().chain(&LARGE).copied());
        let callers: Vec<Job> = sizes.into_iter().map(Job::Callers).collect();
        let callers = when(options.wants(Group::Fio), &callers);
        let variants = when(variants, &[when(cached || uncached, &large), fio.clone(), callers].concat());
        let together = |jobs: &[&[Job]]| sorted(jobs.concat());
        let writeback =
            when(options.wants(Group::Writeback), iozone.iter().min().map_or(&[][..], slice::from_ref));
        Self {
            kept: together(&[&when(cached, &iozone), &fio]),
            uncached: when(uncached, &iozone),
            peers: together(&[&when(cached, &iozone), &writeback, &fio]),
            besides: together(&[&when(cached || uncached, &iozone), &writeback, &fio]),
            uncached_and_variants: together(&[&when(uncached, &iozone), &variants]),
            variants,
            writeback,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    fn lineup(args: &[&str]) -> Vec<(String, usize)> {
        let options = parse(args).unwrap();
        entrants(&options).unwrap().into_iter().map(|entrant| (entrant.name, entrant.tests.len())).collect()
    }

    fn named(pairs: &[(&str, usize)]) -> Vec<(String, usize)> {
        pairs.iter().map(|(name, jobs)| ((*name).to_owned(), *jobs)).collect()
    }

    fn plain(jobs: usize) -> Vec<(String, usize)> {
        PLAINS.iter().map(|(name, ..)| (format!("{PLAIN}{name}"), jobs)).collect()
    }

    #[test]
    fn plain_changes_only_the_settings_in_its_title() {
        let changed: Vec<_> = PLAINS.iter().map(|(.., args)| [&PLAIN_ARGS, *args].concat()).collect();
        for args in changed {
            let options: Vec<_> = args.iter().step_by(2).copied().collect();
            assert_eq!(options, ["--batch", "--queue-pairs", "--pre-mr-threshold", "--polling"]);
        }
    }

    #[test]
    fn everything() {
        let all = lineup(&[]);
        assert_eq!(
            all[..13],
            named(&[
                ("shm", 6),
                ("shm-none", 4),
                ("shm-writeback", 1),
                ("tcp", 6),
                ("tcp-none", 9),
                ("tcp-writeback", 1),
                ("null", 6),
                ("null-none", 4),
                ("null-writeback", 1),
                ("tmpfs", 6),
                ("glusterfs", 6),
                ("moosefs", 6),
                ("sshfs", 6)
            ])
        );
        assert!(all[13..17].iter().all(|(name, jobs)| name.starts_with(PLAIN) && *jobs == 7), "{all:?}");
        assert_eq!(all.len(), 17 + ABLATIONS.len());
    }

    #[test]
    fn parts() {
        assert_eq!(lineup(&["--compare=null,iozone", "--providers=shm"]), named(&[("shm", 4), ("null", 4)]));
        assert_eq!(
            lineup(&["--compare=tmpfs,uncached", "--providers=shm"]),
            named(&[("shm-none", 4), ("tmpfs", 4)])
        );
        assert_eq!(
            lineup(&["--compare=null,glusterfs,writeback", "--providers=tcp"]),
            named(&[("tcp-writeback", 1), ("null-writeback", 1), ("glusterfs", 1)])
        );
        // Variants are on TCP and are compared with TCP without caching.
        assert_eq!(
            lineup(&["--compare=plain,fio", "--providers=shm"]),
            [named(&[("shm", 2), ("tcp", 2), ("tcp-none", 5)]), plain(5)].concat()
        );
        assert_eq!(
            lineup(&["--compare=plain,uncached", "--providers=tcp", "--record-sizes=4k,1m"]),
            [named(&[("tcp-none", 2)]), plain(1)].concat()
        );
    }
}
