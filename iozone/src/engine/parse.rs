//! Parses the output of IOzone and of the built-in engine. No I/O, no locks, no clock. Tested on
//! captured output.

use crate::sample::{Phase, Sample};

/// Returns the number of completed phases in the partial output of a single-file run.
pub fn phases_in_row(text: &str) -> usize {
    row(text).map_or(0, |fields| fields.len().saturating_sub(2).min(Phase::ALL.len()))
}

/// Returns the number of completed phases in the partial output of a throughput run.
pub fn phases_in_throughput(text: &str) -> usize {
    throughput_lines(text).count()
}

/// Returns the six results of a single-file run (`-i 0 -i 1 -i 2`), in KiB/s.
pub fn single(text: &str, record: u64, file_size: u64) -> Result<Sample, String> {
    complete(text)?;
    let fields = row(text).ok_or("no result row under its heading")?;
    let numbers: Vec<f64> = fields
        .iter()
        .map(|field| field.parse().map_err(|_| format!("{field:?} in the result row is not a number")))
        .collect::<Result<_, _>>()?;
    let [kb, reclen, results @ ..] = numbers.as_slice() else {
        return Err("the result row is too short".into());
    };
    let expected = [(file_size / 1024) as f64, (record / 1024) as f64];
    if [*kb, *reclen] != expected {
        return Err(format!("the result row is for {kb} kB in {reclen} kB records, not {expected:?}"));
    }
    sample(results)
}

/// Returns the six results of a throughput run (`-t N`): the sums over the children, in KiB/s.
pub fn throughput(text: &str) -> Result<Sample, String> {
    complete(text)?;
    let mut results = Vec::new();
    for (phase, (kind, value)) in Phase::ALL.iter().zip(throughput_lines(text)) {
        let expected = match phase {
            Phase::Write => "initial writers",
            Phase::Rewrite => "rewriters",
            Phase::Read => "readers",
            Phase::Reread => "re-readers",
            Phase::RandomRead => "random readers",
            Phase::RandomWrite => "random writers",
        };
        if kind != expected {
            return Err(format!("results of {kind:?} where {expected:?} were expected"));
        }
        results.push(value.ok_or_else(|| format!("the throughput of {kind} is not a number"))?);
    }
    sample(&results)
}

/// Returns the results of the built-in engine, which prints a line `PHASE KIB_PER_S` per phase.
pub fn builtin(text: &str) -> Result<Sample, String> {
    let mut results = Vec::new();
    for (phase, line) in Phase::ALL.iter().zip(text.lines()) {
        let value = line
            .strip_prefix(phase.name())
            .and_then(|rest| rest.trim().parse().ok())
            .ok_or_else(|| format!("{line:?} where the result of {} was expected", phase.name()))?;
        results.push(value);
    }
    sample(&results)
}

fn sample(results: &[f64]) -> Result<Sample, String> {
    let six: [f64; 6] = results.try_into().map_err(|_| format!("{} results instead of 6", results.len()))?;
    match six.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
        Some(value) => Err(format!("a throughput of {value}")),
        None => Ok(Sample(six)),
    }
}

fn complete(text: &str) -> Result<(), String> {
    if text.lines().any(|line| line.trim() == "iozone test complete.") {
        Ok(())
    } else {
        Err("it does not say that the test is complete".into())
    }
}

/// Returns the fields of the row below the heading `kB reclen write ...`.
fn row(text: &str) -> Option<Vec<&str>> {
    let mut lines = text.lines();
    lines.find(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("kB") && words.next() == Some("reclen")
    })?;
    let fields: Vec<&str> = lines.next()?.split_whitespace().collect();
    (!fields.is_empty()).then_some(fields)
}

/// Returns the phase and KiB/s of the lines `Children see throughput for N PHASE = VALUE kB/sec`.
fn throughput_lines(text: &str) -> impl Iterator<Item = (String, Option<f64>)> {
    text.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix("Children see throughput for")?;
        let (who, value) = rest.split_once('=')?;
        let who: Vec<&str> = who.split_whitespace().skip(1).collect();
        let value = value.split_whitespace().next()?.parse().ok();
        Some((who.join(" "), value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE: &str = include_str!("../../tests/captured/single.txt");
    const THREADS: &str = include_str!("../../tests/captured/throughput.txt");
    const NO_FILE: &str = include_str!("../../tests/captured/cannot-open.txt");
    const KIB: u64 = 1024;

    #[test]
    fn a_single_run() {
        let sample = single(SINGLE, 64 * KIB, 65536 * KIB).unwrap();
        assert_eq!(
            sample.0,
            [303_295.0, 8_348_656.0, 17_480_528.0, 17_751_459.0, 14_770_595.0, 13_112_648.0]
        );
    }

    #[test]
    fn a_throughput_run() {
        let sample = throughput(THREADS).unwrap();
        assert_eq!(
            sample.0,
            [3_914_750.25, 16_023_552.0, 15_947_485.5, 14_868_612.5, 15_436_485.0, 11_123_606.0]
        );
    }

    #[test]
    fn progress_grows_with_the_output() {
        let seen =
            [0, 1, 5, 12, 22, 32, 41, 50, 58, 65].map(|n| phases_in_row(cut(SINGLE, "65536      64", n)));
        assert_eq!(seen, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(phases_in_row(""), 0);
        assert_eq!(phases_in_row(SINGLE), 6);
        assert_eq!(phases_in_throughput(cut(THREADS, "re-readers", 30)), 4);
    }

    /// Returns the text up to `n` bytes after the start of `mark`.
    fn cut<'a>(text: &'a str, mark: &str, n: usize) -> &'a str {
        let start = text.rfind(mark).unwrap();
        &text[..start + n]
    }

    #[test]
    fn output_without_results_is_refused() {
        assert!(single(NO_FILE, 64 * KIB, 16384 * KIB).unwrap_err().contains("complete"));
        assert!(single("", 1, 1).is_err());
        assert!(single(SINGLE, 4 * KIB, 65536 * KIB).unwrap_err().contains("result row is for"));
        assert!(single(THREADS, 64 * KIB, 65536 * KIB).unwrap_err().contains("no result row"));
        let broken = SINGLE.replace("17480528", "  ######");
        assert!(single(&broken, 64 * KIB, 65536 * KIB).unwrap_err().contains("not a number"));
        let zero = SINGLE.replace("17480528", "       0");
        assert_eq!(single(&zero, 64 * KIB, 65536 * KIB).unwrap_err(), "a throughput of 0");
        assert!(throughput(SINGLE).unwrap_err().contains("0 results"));
        let swapped = THREADS.replace("re-readers", "readers");
        assert!(throughput(&swapped).unwrap_err().contains("\"re-readers\" were expected"));
    }

    #[test]
    fn the_built_in_engine() {
        let text = "write 1.5\nrewrite 2\nread 3\nreread 4\nrandom read 5\nrandom write 6\n";
        assert_eq!(builtin(text).unwrap().0, [1.5, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!(builtin("write 1\nread 2\n").is_err());
        assert!(builtin("write 1\n").is_err());
        assert!(builtin("write inf\nrewrite 2\nread 3\nreread 4\nrandom read 5\nrandom write 6\n").is_err());
    }
}
