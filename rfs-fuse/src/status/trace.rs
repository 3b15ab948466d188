//! `rfs-fuse trace DIR`: records single requests of a running mount.
//!
//! The command asks the mount on its control socket. The mount records to memory, and hands the
//! command the memory as an open file. So the mount needs no place to write, and no right to write
//! the command's file. The recording has a time limit, which holds even if the command is killed.
//!
//! # Concurrency
//! The command: its main thread. The mount's side runs on the thread `status`.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use clap::{CommandFactory, Parser};
use rfs_status::control::{ASK_LIMIT, Answer, AskError, ask, ask_for_files};

use super::command::{control_path, find};
use crate::{
    cli::parse,
    fuse::{Trace, TraceError, parse_limit},
};

/// Exit code if there is no trace.
const FAILED: u8 = 1;
/// Maximum length of a recording, whose mount keeps it in memory.
const MAX_BYTES: u64 = 1 << 30;
/// Maximum time of a recording.
const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The question that begins a recording. Its time in milliseconds and its limit in bytes follow.
const BEGIN: &str = "trace-begin";
/// The question that ends a recording.
const END: &str = "trace-end";

/// Records single requests of a mount to a file, in Chrome's trace format.
///
/// The mount answers root and its own user. Until the end, it keeps the trace in its memory. Open
/// the file with <https://ui.perfetto.dev> or chrome://tracing.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-fuse trace",
    bin_name = "rfs-fuse trace",
    max_term_width = 110,
    after_help = "Exit status: 0 if the file has the trace, 1 if not, 2 for an invalid command line."
)]
struct TraceArgs {
    /// The directory of the mount
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Time to record
    #[arg(long, value_name = "N", value_parser = recording_time, default_value = "1")]
    seconds: Duration,

    /// The file. An existing file is replaced
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Stop before the file has more than SIZE bytes, at most 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, default_value = "64M")]
    limit: u64,
}

/// Parses the time of a recording: a number of seconds, with or without a fraction.
fn recording_time(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("invalid number of seconds {text:?}"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if seconds >= 0.001 && time <= MAX_TIME => Ok(time),
        _ => Err("it has to be between 0.001 and 86400 seconds".into()),
    }
}

/// A trace cannot be recorded.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("{0}")]
    NotFound(String),
    #[error("the mount has sent no file: it is of another version")]
    NoFile,
    #[error("cannot write {}: {source}", path.display())]
    Out { path: PathBuf, source: io::Error },
}

/// Returns the command line of the command.
pub(crate) fn command_line() -> clap::Command {
    TraceArgs::command().name("trace")
}

/// Records a trace. Returns the exit code.
pub(crate) fn main(arguments: &[OsString]) -> u8 {
    let args = match parse::<TraceArgs>(arguments) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match record(&args) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("rfs-fuse trace: {}: {e}", args.directory.display());
            FAILED
        }
    }
}

fn record(args: &TraceArgs) -> Result<(), RecordError> {
    let socket = control_path(&find(&args.directory).map_err(RecordError::NotFound)?);
    let failed = |source| RecordError::Out { path: args.out.clone(), source };
    // Before the recording, which a file that cannot be written would waste.
    let mut out =
        OpenOptions::new().write(true).create(true).truncate(true).open(&args.out).map_err(failed)?;
    let question = format!("{BEGIN} {} {}", args.seconds.as_millis(), args.limit);
    let Answer { files, .. } = ask_for_files(&socket, &question, ASK_LIMIT)?;
    let recorded = files.into_iter().next().ok_or(RecordError::NoFile)?;
    thread::sleep(args.seconds);
    end(&socket)?;
    let mut recorded = File::from(recorded);
    io::Seek::rewind(&mut recorded).map_err(failed)?;
    io::copy(&mut recorded, &mut out).map(drop).map_err(failed)
}

/// Ends the recording of the mount at a control socket.
fn end(socket: &Path) -> Result<(), AskError> {
    ask(socket, END, ASK_LIMIT).map(drop)
}

/// Answers a question about traces on the side of the mount. Returns `None` for other questions.
pub(super) fn answer(trace: &Arc<Trace>, question: &str) -> Option<Answer> {
    let mut words = question.split_ascii_whitespace();
    match (words.next()?, words.next(), words.next()) {
        (BEGIN, Some(millis), Some(limit)) => {
            let time = Duration::from_millis(millis.parse().ok()?).min(MAX_TIME);
            let limit = limit.parse::<u64>().ok()?.min(MAX_BYTES);
            Some(begin(trace, time, limit).unwrap_or_else(|e| refusal(&e.to_string())))
        }
        (END, None, None) => {
            let recorded = trace.stop_requested();
            Some(match recorded {
                true => Answer::from(serde_json::json!({ "recording": false }).to_string()),
                false => refusal("no trace was requested, or --trace records"),
            })
        }
        _ => None,
    }
}

fn refusal(why: &str) -> Answer {
    Answer::from(serde_json::json!({ "error": why }).to_string())
}

/// Begins a recording to memory, which the answer carries.
fn begin(trace: &Arc<Trace>, time: Duration, limit: u64) -> Result<Answer, TraceError> {
    let path = PathBuf::from("(memory)");
    let failed = |source| TraceError::File { path: path.clone(), source };
    let memory = rustix::fs::memfd_create("rfs-trace", rustix::fs::MemfdFlags::CLOEXEC);
    let memory = memory.map_err(|e| failed(e.into()))?;
    let theirs: OwnedFd = memory.try_clone().map_err(failed)?;
    trace.start_requested(File::from(memory), path, limit, time)?;
    let document = serde_json::json!({ "recording": true }).to_string();
    Ok(Answer { document, files: vec![theirs] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        TraceArgs::command().debug_assert();
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(TraceArgs::try_parse_from(words("trace /mnt")).is_err());
        assert!(TraceArgs::try_parse_from(words("trace /mnt --out f --limit 1K")).is_err());
    }

    #[test]
    fn a_recording_is_refused_while_another_one_runs() {
        let trace = Trace::new();
        assert!(answer(&trace, "status").is_none() && answer(&trace, "trace-begin x y").is_none());
        assert!(answer(&trace, END).unwrap().document.contains("error"));
        // Numbers that a sum of times would overflow with are limited.
        let first = answer(&trace, &format!("trace-begin {0} {0}", u64::MAX)).unwrap();
        assert_eq!((first.files.len(), first.document.contains("error")), (1, false));
        let second = answer(&trace, "trace-begin 60000 65536").unwrap();
        assert!(second.document.contains("recorded already"), "{}", second.document);
        assert!(!answer(&trace, END).unwrap().document.contains("error"));
        let text = io::read_to_string(
            &File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&first.files[0])))
                .unwrap(),
        )
        .unwrap();
        let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(events.last().unwrap()["args"]["state"], "ended");
    }
}
