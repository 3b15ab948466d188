//! The output, and the requirements. No I/O, no locks, no clock.

use super::{FreshMeter, PASSES, Round};
use crate::{
    harness::Measured,
    report::markdown::{figure, right, table, times},
    sample::{median, ratio},
    target::Side,
};

/// Limit in seconds for a server to be ready and mounted.
const START: f64 = 1.0;
/// Required throughput of the first pass, relative to the second.
const FIRST: f64 = 0.7;

/// Returns the results as Markdown, and true if all requirements are met.
pub fn render(measured: &Measured<FreshMeter, Round>) -> (String, bool) {
    rows(measured.targets.iter().map(|info| {
        let series = measured.series.iter().find(|series| series.target == info.name);
        let rounds = series.map_or(&[][..], |series| &series.rounds);
        (&*info.name, info.side == Side::Ceiling, rounds)
    }))
}

fn rows<'a>(measured: impl Iterator<Item = (&'a str, bool, &'a [Round])>) -> (String, bool) {
    let mut all = true;
    let heading = ["", "ready and mounted, s", "first pass, MiB/s", "second", "fifth", "first of second"];
    let mut text = table(heading);
    for (name, is_ceiling, rounds) in measured {
        let of = |what: fn(&Round) -> f64| median(&rounds.iter().map(what).collect::<Vec<_>>());
        let start = of(|round| round.start);
        let passes =
            [of(|round| round.passes[0]), of(|round| round.passes[1]), of(|round| round.passes[PASSES - 1])];
        // The ratio is computed per round, so that differences between rounds do not affect it.
        let first = rounds.iter().filter_map(|round| ratio(round.passes[0], round.passes[1]));
        let first = median(&first.collect::<Vec<_>>());
        let soon = start.is_some_and(|start| start < START);
        let fast = first.is_some_and(|first| first >= FIRST);
        all &= is_ceiling || soon && fast;
        let held = |figure: String, limit: &str, met: bool| match (is_ceiling, met) {
            (true, _) => figure,
            (false, true) => format!("{figure} of {limit}"),
            (false, false) => format!("{figure} of {limit}: not met"),
        };
        text.add_row([
            right(name),
            right(held(format!("{:.2}", start.unwrap_or(f64::NAN)), &format!("{START:.0}"), soon)),
            right(figure(passes[0])),
            right(figure(passes[1])),
            right(figure(passes[2])),
            right(held(times(first), &format!("{FIRST}x"), fast)),
        ]);
    }
    (format!("{text}\n"), all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(start: f64, first: f64, second: f64) -> Round {
        Round { start, passes: [first, second, 7.0, 8.0, 2100.0] }
    }

    #[test]
    fn medians_are_held_to_what_is_required() {
        let met = [round(0.2, 700.0, 1000.0), round(3.0, 10.0, 1000.0), round(0.1, 1800.0, 2000.0)];
        let (text, all) = rows([("shm", false, &met[..])].into_iter());
        assert!(all);
        let row = text.lines().last().unwrap().split('|').map(str::trim).collect::<Vec<_>>();
        assert_eq!(row, ["", "shm", "0.20 of 1", "700", "1000", "2100", "0.70x of 0.7x", ""]);
        let late = [round(1.0, 1.0, 1.0)];
        let (text, all) = rows([("shm", false, &met[..]), ("tcp", false, &late[..])].into_iter());
        assert!(!all && text.contains("1.00 of 1: not met"), "{text}");
        let slow = [round(0.5, 6.9, 10.0)];
        let (text, all) = rows([("tcp", false, &slow[..])].into_iter());
        assert!(!all && text.contains("0.69x of 0.7x: not met"), "{text}");
        let (text, all) = rows([("null", true, &slow[..])].into_iter());
        assert!(
            all && text.contains(" 0.69x |") && !text.contains("met"),
            "nothing is required of it: {text}"
        );
        assert!(!rows([("shm", false, &[][..])].into_iter()).1, "nothing measured is nothing met");
    }
}
