//! Tables for terminals, which are also Markdown. No I/O, no locks, no clock.

use comfy_table::{Cell, Table};
use measure::statistics::median;

use super::{
    lineup::{CacheMode, PLAIN, UNCACHED},
    report::Comparison,
    requirements::Verdict,
};
use crate::{
    engine::job::{Column, Metric},
    harness::{TargetInfo, usage::Idle},
    report::{
        markdown::{figure, latency, right, table, times},
        show_rounds,
    },
    sample::PAGE_CACHE_NOTE,
    size,
    target::Side,
};

/// Returns the complete output of a comparison.
pub fn render(comparison: &Comparison) -> String {
    let parts = [
        head(comparison),
        throughput(comparison),
        ours(comparison),
        latencies(comparison),
        processor(comparison),
        variants(comparison),
        idle(comparison),
        verdicts(comparison),
        foot(comparison),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n\n") + "\n"
}

fn head(comparison: &Comparison) -> String {
    let programs = comparison.programs.join(", ");
    let (size, rounds) = (size::show(comparison.size), show_rounds(comparison.rounds));
    comparison.setting.head(&format!("{programs}; {size} file, {rounds}")) + &note(comparison)
}

/// Returns the explanation of marked columns, if there are any.
fn note(comparison: &Comparison) -> String {
    let reads = |column: &Column| column.pattern.heading(true) != column.pattern.name();
    let marked = comparison.targets.iter().any(keeps_pages) && comparison.columns().iter().any(reads);
    if marked { format!("\n{PAGE_CACHE_NOTE}") } else { String::new() }
}

/// Returns true if the kernel caches pages of a target, so that IOzone's reads are page cache hits.
fn keeps_pages(info: &TargetInfo) -> bool {
    info.side != Side::Variant && !is(info, CacheMode::Nothing)
}

/// Tables with a row per column, for targets of some sides. Rows without values are omitted.
struct Rows<'a> {
    comparison: &'a Comparison,
    targets: Vec<&'a TargetInfo>,
    columns: Vec<Column>,
}

impl<'a> Rows<'a> {
    fn new(comparison: &'a Comparison, metric: Metric, chosen: impl Fn(&TargetInfo) -> bool) -> Self {
        let has =
            |info: &&TargetInfo, column: Column| comparison.median(&info.name, column, metric).is_some();
        let all = comparison.columns();
        let targets: Vec<&TargetInfo> = comparison
            .targets
            .iter()
            .filter(|info| chosen(info) && all.iter().any(|column| has(info, *column)))
            .collect();
        let columns =
            all.into_iter().filter(|column| targets.iter().any(|info| has(info, *column))).collect();
        Self { comparison, targets, columns }
    }

    fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    fn names(&self) -> Vec<&'a str> {
        self.targets.iter().map(|info| info.name.as_str()).collect()
    }

    /// Returns a table with a row per column; `cells` returns the other cells of the row.
    fn table(&self, heading: &[&str], cells: impl Fn(Column) -> Vec<String>) -> Table {
        let mut table = table([&["size", ""], heading].concat());
        let mut last = None;
        let keeps_pages = self.targets.iter().any(|info| keeps_pages(info));
        for &column in &self.columns {
            let size = if last == Some(column.size) { String::new() } else { size::show(column.size) };
            last = Some(column.size);
            table.add_row(
                [size, column.pattern.heading(keeps_pages)].into_iter().chain(cells(column)).map(right),
            );
        }
        table
    }

    fn each(&self, cell: impl Fn(&str) -> String) -> Vec<String> {
        self.targets.iter().map(|info| cell(&info.name)).collect()
    }

    fn median(&self, name: &str, column: Column, metric: Metric) -> Option<f64> {
        self.comparison.median(name, column, metric)
    }
}

/// Returns true if a target has this kind of caching.
fn is(info: &TargetInfo, keeps: CacheMode) -> bool {
    CacheMode::of(&info.name) == keeps
}

/// Returns the throughput of all targets except variants, in separate tables per kind of caching.
fn throughput(comparison: &Comparison) -> String {
    let part = |title: &str, chosen: &dyn Fn(&TargetInfo) -> bool| {
        let rows = Rows::new(comparison, Metric::Throughput, chosen);
        let cell = |column: Column| rows.each(|name| figure(rows.median(name, column, Metric::Throughput)));
        (!rows.is_empty()).then(|| format!("{title}\n\n{}", rows.table(&rows.names(), cell)))
    };
    let kept = |info: &TargetInfo| info.side != Side::Variant && is(info, CacheMode::Pages);
    let parts = [
        part("MiB/s; flush time counts", &kept),
        part("MiB/s, with --cache none", &|info| is(info, CacheMode::Nothing)),
        part("MiB/s, with --cache writeback", &|info| is(info, CacheMode::Writes)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}

/// Returns a table for each rfs target: its values, and its ratios to all others.
fn ours(comparison: &Comparison) -> String {
    let of_side = |side| move |info: &&TargetInfo| info.side == side;
    let tables = comparison.targets.iter().filter(of_side(Side::Ours)).filter_map(|info| {
        let rows = Rows::new(comparison, Metric::Throughput, |other| other.name == info.name);
        let beside: Vec<&str> = comparison
            .targets
            .iter()
            .filter(|other| match other.side {
                Side::Ceiling => is(other, CacheMode::of(&info.name)) || other.name == "tmpfs",
                Side::Peer => !is(info, CacheMode::Nothing),
                Side::Ours | Side::Variant => false,
            })
            .map(|other| other.name.as_str())
            .filter(|name| {
                let ratio = |column: &Column| comparison.ratio(&info.name, name, *column, Metric::Throughput);
                rows.columns.iter().any(|column| ratio(column).is_some())
            })
            .collect();
        if beside.is_empty() {
            return None;
        }
        let heading: Vec<String> = beside.iter().map(|name| format!("/ {name}")).collect();
        let heading: Vec<&str> =
            ["MiB/s", "spread"].into_iter().chain(heading.iter().map(String::as_str)).collect();
        let cells = |column: Column| {
            let ratios = beside
                .iter()
                .map(|name| times(comparison.ratio(&info.name, name, column, Metric::Throughput)));
            let figure = figure(rows.median(&info.name, column, Metric::Throughput));
            [figure, spread(comparison, &info.name, column)].into_iter().chain(ratios).collect()
        };
        Some(format!("{}: {}\n\n{}", info.name, info.title, rows.table(&heading, cells)))
    });
    tables.collect::<Vec<_>>().join("\n\n")
}

fn spread(comparison: &Comparison, target: &str, column: Column) -> String {
    let series = comparison.results.iter().find(|s| s.target == target && s.column == column);
    let spread = series.filter(|series| series.rounds.len() > 1).and_then(|series| series.spread);
    spread.map_or_else(|| "-".into(), |spread| format!("{:.0} %", spread * 100.0))
}

fn latencies(comparison: &Comparison) -> String {
    let rows =
        Rows::new(comparison, Metric::P50, |info| info.side != Side::Variant && is(info, CacheMode::Pages));
    if rows.is_empty() {
        return String::new();
    }
    let cells = |column: Column| {
        rows.each(|name| {
            let series = comparison.results.iter().find(|s| s.target == name && s.column == column);
            latency(series.and_then(|series| series.median.latency))
        })
    };
    format!("latency in us: p50 / p99 / p99.9\n\n{}", rows.table(&rows.names(), cells))
}

fn processor(comparison: &Comparison) -> String {
    let part = |title: &str, chosen: &dyn Fn(&TargetInfo) -> bool| {
        let rows = Rows::new(comparison, Metric::Cpu, chosen);
        let cells = |column: Column| {
            rows.each(|name| {
                let cpu = rows.median(name, column, Metric::Cpu);
                cpu.map_or_else(|| "-".into(), |seconds| format!("{seconds:.2}"))
            })
        };
        (!rows.is_empty()).then(|| format!("{title}\n\n{}", rows.table(&rows.names(), cells)))
    };
    let title = "processor seconds per GiB moved, of the programs behind the mount and of the servers, user and system time\n\
                 (not in it: what the kernel does in the caller's system calls and in interrupts, which is all that tmpfs does)";
    let kept = |info: &TargetInfo| info.side != Side::Variant && is(info, CacheMode::Pages);
    let parts = [
        part(title, &kept),
        part("processor seconds per GiB moved, with --cache none", &|info| is(info, CacheMode::Nothing)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}

/// Returns a table of the variants and their ratios to unmodified rfs.
fn variants(comparison: &Comparison) -> String {
    let full = format!("tcp{UNCACHED}");
    let rows = Rows::new(comparison, Metric::Throughput, |info| info.side == Side::Variant);
    if rows.is_empty() {
        return String::new();
    }
    let names = rows.names();
    let heading: Vec<String> = names.iter().map(|name| format!("/ {name}")).collect();
    let heading: Vec<&str> =
        std::iter::once(full.as_str()).chain(heading.iter().map(String::as_str)).collect();
    let cells = |column: Column| {
        let ratios = rows.each(|name| times(comparison.ratio(&full, name, column, Metric::Throughput)));
        std::iter::once(figure(rows.median(&full, column, Metric::Throughput))).chain(ratios).collect()
    };
    let titles =
        rows.targets.iter().map(|info| format!("\n{}: {}", info.name, info.title)).collect::<String>();
    let what = if names.iter().all(|name| name.starts_with(PLAIN)) {
        "without its optimizations"
    } else {
        "without one of its optimizations"
    };
    format!("{full} in MiB/s, and its ratio to rfs {what}\n\n{}\n{titles}", rows.table(&heading, cells))
}

fn idle(comparison: &Comparison) -> String {
    let mut table = table(["idle", "CPU %", "client, own", "shared", "servers, own", "shared"]);
    let middle = |info: &TargetInfo, of: &dyn Fn(&Idle) -> f64| {
        median(&info.idle.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    for info in comparison.targets.iter().filter(|info| !info.idle.is_empty() && info.side != Side::Variant) {
        let mib = |bytes: fn(&Idle) -> u64| {
            figure(Some(middle(info, &|idle| bytes(idle) as f64) / size::MIB as f64))
        };
        table.add_row(
            [
                info.name.clone(),
                format!("{:.1}", middle(info, &|idle| idle.cpu_percent)),
                mib(|idle| idle.client.own),
                mib(|idle| idle.client.shared),
                mib(|idle| idle.servers.own),
                mib(|idle| idle.servers.shared),
            ]
            .map(right),
        );
    }
    match table.row_count() {
        0 => String::new(),
        _ => format!(
            "asked for nothing: processor time, and resident memory in MiB (shared is the memory that rfs lends)\n\n{table}"
        ),
    }
}

/// Returns a row per requirement and target: the number of columns, and the column with the
/// smallest margin.
fn verdicts(comparison: &Comparison) -> String {
    let mut table = table(["required", "of", "to", "ratio", "met in", "worst", "where", ""]);
    let mut rest = comparison.verdicts.as_slice();
    while let Some(first) = rest.first() {
        let same = |verdict: &Verdict| {
            (&verdict.name, &verdict.of, &verdict.to) == (&first.name, &first.of, &first.to)
        };
        let (group, behind) = rest.split_at(rest.iter().take_while(|verdict| same(verdict)).count());
        rest = behind;
        let met = group.iter().filter(|verdict| verdict.met).count();
        let worst = group.iter().min_by(|a, b| a.margin.total_cmp(&b.margin)).unwrap_or(first);
        let Column { pattern, size } = worst.column;
        table.add_row([
            Cell::new(&first.name),
            right(&first.of),
            right(&first.to),
            right(&first.needed),
            right(format!("{met} of {}", group.len())),
            right(times(Some(worst.ratio))),
            Cell::new(format!("{} {}", size::show(size), pattern.name())),
            Cell::new(if met == group.len() { "" } else { "BELOW" }),
        ]);
    }
    match table.row_count() {
        0 => String::new(),
        _ => format!("what is required\n\n{table}"),
    }
}

fn foot(comparison: &Comparison) -> String {
    let beside = comparison.targets.iter().filter(|info| matches!(info.side, Side::Ceiling | Side::Peer));
    let titles =
        beside.filter(|info| info.left_out.is_none()).map(|info| format!("{}: {}", info.name, info.title));
    let left_out = comparison
        .targets
        .iter()
        .filter_map(|info| Some(format!("left out: {}: {}", info.name, info.left_out.as_ref()?)));
    titles.chain(left_out).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::compare::report::tests::example;

    #[test]
    fn everything_in_order() {
        assert_eq!(render(&example()), include_str!("../../../tests/golden/compare.txt"));
    }

    #[test]
    fn missing_values_have_no_row() {
        let mut comparison = example();
        comparison.results.retain(|series| series.target == "tmpfs");
        comparison.targets.iter_mut().for_each(|info| info.idle.clear());
        comparison.verdicts.clear();
        let text = render(&comparison);
        for absent in ["| shm", "/ null", "processor seconds", "asked for nothing", "required"] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
        assert!(text.contains("|  size |"), "{text}");
    }

    #[test]
    fn variants_are_shown_with_uncached_rfs() {
        let mut comparison = example();
        for (name, side, from) in
            [("tcp-none", Side::Ours, "null"), ("tcp-plain-pre-busy", Side::Variant, "shm")]
        {
            let mut info = comparison.targets[0].clone();
            (info.name, info.side) = (name.into(), side);
            comparison.targets.push(info);
            let mut series: Vec<_> =
                comparison.results.iter().filter(|series| series.target == from).cloned().collect();
            series.iter_mut().for_each(|series| series.target = name.into());
            comparison.results.extend(series);
        }
        let text = variants(&comparison);
        assert!(
            text.starts_with("tcp-none in MiB/s, and its ratio to rfs without its optimizations\n"),
            "{text}"
        );
        assert!(
            text.contains("/ tcp-plain-pre-busy")
                && text.contains("2.00x")
                && text.contains("tcp-plain-pre-busy: about"),
            "{text}"
        );
    }
}
