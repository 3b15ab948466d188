//! The effect of each option: a small fixed load per value, and the counters that differ from the
//! defaults.

use std::collections::BTreeMap;

use measure::interrupt::Interrupt;
use rdmabox::RdmaOptions;

use crate::{
    Result,
    load::{Load, OpKind},
    run,
    servers::fleet::{Fleet, Source},
    sweep::settings::Settings,
};

/// WRITEs in vectored submissions of 16 over TCP, half of them adjacent to the previous one.
const LOAD: [(&str, &str); 8] = [
    ("provider", "tcp"),
    ("size", "1k"),
    ("ops", "1600"),
    ("warmup", "1"),
    ("pattern", "mixed"),
    ("reg", "4k"),
    ("submit", "vectored"),
    ("depth", "16"),
];

/// Options and their values. The first counters that the option is about are shown even if they
/// depend on time.
const VALUES: [(&str, &[&str], &[&str]); 9] = [
    ("mode", &["single", "merge", "doorbell"], &[]),
    ("max-merge", &["4k"], &[]),
    ("window", &["8k"], &["window_waits"]),
    ("qps", &["1"], &[]),
    ("reg", &["pre", "dyn", "2k"], &[]),
    ("max-inline", &["0", "1024"], &[]),
    ("signal-interval", &["4"], &[]),
    ("polling", &["busy", "event", "shared-cq:1"], &["sleeps", "events", "empty_polls", "wakeups"]),
    ("submit", &["started"], &["gathered"]),
];

/// Counters that differ between two runs of one load.
const BY_TIME: [&str; 8] =
    ["polls", "empty_polls", "sleeps", "events", "wakeups", "window_waits", "gathered", "overlap_waits"];

type Counters = BTreeMap<String, u64>;

/// Runs the load with the defaults and with each value of each option. Returns a table of the
/// counters that change.
pub fn table() -> Result<String> {
    let interrupt = Interrupt::on_signals()?;
    let load = |settings: &[(&str, &str)]| {
        let settings = Settings::from_pairs(LOAD.iter().chain(settings).copied());
        Load::resolve(OpKind::Write, &settings.parse()?, &[])
    };
    let defaults = load(&[])?;
    let mut fleet = Fleet::new(Source::InProcess, defaults.area, RdmaOptions::default());
    let mut counters = |load: &Load| -> Result<Counters> {
        interrupt.check()?;
        Ok(run::run(load, &mut fleet, &interrupt, &mut |_| {})?.counters)
    };
    let base = counters(&defaults)?;
    let mut text = format!("{}\n\n| option | value | counters\n|-|-|-\n", defaults.summary());
    let all = base.iter().filter(|(name, _)| !BY_TIME.contains(&name.as_str()));
    let all: Vec<_> = all.map(|(name, value)| format!("{name} {value}")).collect();
    text.push_str(&format!("| defaults | | {}\n", all.join(", ")));
    for (option, values, shown) in VALUES {
        for value in values {
            let changed = changes(&base, &counters(&load(&[(option, value)])?)?, shown);
            text.push_str(&format!("| {option} | {value} | {}\n", changed.join(", ")));
        }
    }
    fleet.stop()?;
    Ok(text)
}

/// Returns the counters that differ, with both values. Counters that depend on time only if they
/// are `shown`.
fn changes(base: &Counters, now: &Counters, shown: &[&str]) -> Vec<String> {
    let of = |counters: &Counters, name: &str| counters.get(name).copied().unwrap_or(0);
    let mut names: Vec<&String> = base.keys().chain(now.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let told = |name: &&&String| shown.contains(&name.as_str()) || !BY_TIME.contains(&name.as_str());
    let differs = |name: &&&String| of(base, name) != of(now, name);
    let names = names.iter().filter(told).filter(differs);
    names.map(|name| format!("{name} {} -> {}", of(base, name), of(now, name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_that_differ_are_changes() {
        let counters = |values: &[(&str, u64)]| -> Counters {
            values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let base = counters(&[("doorbells", 3), ("merged", 1), ("sleeps", 4)]);
        let now = counters(&[("doorbells", 3), ("registrations", 2), ("sleeps", 5)]);
        assert_eq!(changes(&base, &now, &[]), ["merged 1 -> 0", "registrations 0 -> 2"]);
        let shown = ["merged 1 -> 0", "registrations 0 -> 2", "sleeps 4 -> 5"];
        assert_eq!(changes(&base, &now, &["sleeps"]), shown);
    }

    #[test]
    fn every_value_is_valid() {
        for (option, values, _) in VALUES {
            for value in values {
                let own = (option, *value);
                let args = Settings::from_pairs(LOAD.iter().chain([&own]).copied()).parse().unwrap();
                Load::resolve(OpKind::Write, &args, &[]).unwrap();
            }
        }
    }
}
