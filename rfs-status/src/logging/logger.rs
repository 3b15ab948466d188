//! The logger: formats lines, leaves out repetitions, and counts.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicU8, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use env_logger::{Logger, fmt::Formatter};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

use super::{
    counts::COUNTS,
    repeats::{Omitted, Repeats, Verdict},
    syslog,
};

/// Target of messages that answer a signal. Each signal gets its answer.
pub const SIGNAL: &str = "signal";

/// The format of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// `[TIME LEVEL MODULE] MESSAGE`
    #[default]
    Text,
    /// A JSON object in each line: time, level, module, message.
    Json,
}

/// A logger that counts, and leaves out repetitions.
struct ProgramLogger {
    inner: Logger,
    repeats: Mutex<Remembered>,
}

/// The memory of repetitions, and whether a thread waits to write their number.
#[derive(Default)]
struct Remembered {
    repeats: Repeats,
    has_writer: bool,
}

/// Longest sleep of the thread that writes the numbers of repetitions. Another kind of messages may
/// be due earlier than those that it sleeps for.
const WRITER_PERIOD: Duration = Duration::from_secs(30);

impl ProgramLogger {
    /// Starts the thread that writes the number of messages that were left out, unless it runs. It
    /// ends when none are left out.
    fn start_writer(&'static self, remembered: &mut Remembered) {
        if remembered.has_writer {
            return;
        }
        // Without a thread, the next message of the kind has the number.
        let started = thread::Builder::new().name("log".into()).spawn(|| self.write_omitted());
        remembered.has_writer = started.is_ok();
    }

    fn write_omitted(&self) {
        loop {
            let due = {
                let mut remembered = self.repeats.lock();
                let due = remembered.repeats.next_due();
                remembered.has_writer = due.is_some();
                due
            };
            let Some(due) = due else { return };
            thread::sleep(due.saturating_duration_since(Instant::now()).min(WRITER_PERIOD));
            let omitted = self.repeats.lock().repeats.take_due(Instant::now());
            omitted.iter().for_each(|omitted| self.write(omitted));
        }
    }

    fn write(&self, Omitted { text, level, target, count, seconds }: &Omitted) {
        let args = format_args!("{text} ({count} more like this in the last {seconds} s)");
        self.inner.log(&Record::builder().args(args).level(*level).target(target).build());
    }
}

impl Log for &'static ProgramLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn || self.inner.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        COUNTS.count(record.level(), || record.args().to_string());
        if !self.inner.matches(record) {
            return;
        }
        if record.level() > Level::Warn || record.target() == SIGNAL {
            return self.inner.log(record);
        }
        let text = record.args().to_string();
        let (level, target) = (record.level(), record.target());
        let verdict = {
            let mut remembered = self.repeats.lock();
            let verdict = remembered.repeats.judge(&text, (level, target), Instant::now());
            if verdict == Verdict::Omit {
                self.start_writer(&mut remembered);
            }
            verdict
        };
        match verdict {
            Verdict::Write => self.inner.log(record),
            Verdict::WriteWith { omitted: count, seconds } => {
                self.write(&Omitted { text, level, target: target.to_owned(), count, seconds });
            }
            Verdict::Omit => {}
        }
    }

    fn flush(&self) {
        self.inner.flush();
    }
}

/// The format of the program's log, as a number.
static FORMAT: AtomicU8 = AtomicU8::new(0);

/// Changes the format of the log, of lines from now on.
pub fn set_format(format: LogFormat) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

fn format() -> LogFormat {
    let formats = [LogFormat::Text, LogFormat::Json];
    let is_set = |format: &LogFormat| *format as u8 == FORMAT.load(Ordering::Relaxed);
    formats.into_iter().find(is_set).unwrap_or_default()
}

/// Writes a record. In the system's log, time and level are not part of the text.
fn write(out: &mut Formatter, format: LogFormat, record: &Record<'_>) -> io::Result<()> {
    let text = record.args().to_string();
    match format {
        LogFormat::Text => {
            if syslog::log(record.level(), &text) {
                return Ok(());
            }
            let time = out.timestamp_millis();
            writeln!(out, "[{time} {:<5} {}] {text}", record.level(), record.target())
        }
        LogFormat::Json => {
            let line = json(&out.timestamp_millis().to_string(), record, &text);
            if syslog::log(record.level(), &line) { Ok(()) } else { writeln!(out, "{line}") }
        }
    }
}

fn json(time: &str, record: &Record<'_>, text: &str) -> String {
    serde_json::json!({
        "time": time,
        "level": record.level().as_str().to_ascii_lowercase(),
        "module": record.target(),
        "message": text,
    })
    .to_string()
}

/// Starts the logger of the program. Without RUST_LOG, `filter` says which messages it writes.
///
/// # Panics
/// If the program has a logger already.
pub fn init(filter: &str, format: LogFormat) {
    let mut builder = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(filter));
    set_format(format);
    let inner = builder.format(|out, record| write(out, self::format(), record)).build();
    log::set_max_level(inner.filter().max(LevelFilter::Warn));
    // The logger stays until the program ends.
    let logger: &'static ProgramLogger =
        Box::leak(Box::new(ProgramLogger { inner, repeats: Mutex::default() }));
    log::set_boxed_logger(Box::new(logger)).expect("the program starts one logger");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_have_four_fields() {
        let args = format_args!("a \"word\"\nand a line");
        let record = Record::builder().level(Level::Warn).target("rfs_server::service").args(args).build();
        let line = json("2026-01-02T03:04:05Z", &record, &record.args().to_string());
        assert!(!line.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["level"], "warn");
        assert_eq!(value["module"], "rfs_server::service");
        assert_eq!(value["message"], "a \"word\"\nand a line");
        assert_eq!(value["time"], "2026-01-02T03:04:05Z");
    }
}
