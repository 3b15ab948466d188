//! The logger: formats lines, leaves out repetitions, and counts.

use std::{
    io::{self, Write},
    time::Instant,
};

use clap::ValueEnum;
use env_logger::{Logger, fmt::Formatter};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

use super::{
    counts::COUNTS,
    repeats::{Repeats, Verdict},
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
    repeats: Mutex<Repeats>,
}

impl Log for ProgramLogger {
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
        let verdict = self.repeats.lock().judge(&text, Instant::now());
        match verdict {
            Verdict::Write => self.inner.log(record),
            Verdict::WriteWith { omitted, seconds } => {
                let args = format_args!("{text} ({omitted} more like this in the last {seconds} s)");
                self.inner.log(&Record::builder().args(args).metadata(record.metadata().clone()).build());
            }
            Verdict::Omit => {}
        }
    }

    fn flush(&self) {
        self.inner.flush();
    }
}

/// Writes a record. In the system's log, time and level are not part of the text.
fn write(out: &mut Formatter, format: LogFormat, record: &Record<'_>) -> io::Result<()> {
    let text = record.args().to_string();
    match format {
        LogFormat::Text => {
            if syslog::log(record.level(), &text) {
                return Ok(());
            }
            let time = out.timestamp();
            writeln!(out, "[{time} {:<5} {}] {text}", record.level(), record.target())
        }
        LogFormat::Json => {
            let line = json(&out.timestamp().to_string(), record, &text);
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
    let inner = builder.format(move |out, record| write(out, format, record)).build();
    log::set_max_level(inner.filter().max(LevelFilter::Warn));
    let logger = ProgramLogger { inner, repeats: Mutex::default() };
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
