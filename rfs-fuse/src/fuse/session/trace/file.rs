//! The file of a trace: a JSON array that is complete after each write.
//!
//! Each write puts new events over the last one, and the last one and the end of the array behind
//! them, in one call. So the file is valid however the program ends. The last event tells the state
//! of the recording.
//!
//! # Concurrency
//! The thread that writes the trace.

use std::{fs::File, io, os::unix::fs::FileExt};

/// Length of the last event in bytes. It is fixed, so that a full disk has room for its changes.
const LAST_EVENT: usize = 400;
/// The end of the array.
const END: &str = "\n]\n";

/// A file of events.
#[derive(Debug)]
pub(super) struct TraceFile {
    file: File,
    /// Offset of the last event, which the next write replaces.
    len: u64,
    limit: u64,
}

/// The outcome of adding events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    All,
    /// All events would have made the file longer than its limit. The first ones are there.
    LimitReached,
}

impl TraceFile {
    /// Begins an array in an empty file, which may get `limit` bytes long.
    ///
    /// # Errors
    /// The file cannot be written at an offset.
    pub(super) fn begin(file: File, limit: u64, last: &str) -> io::Result<TraceFile> {
        let begin = "[\n";
        file.write_all_at(begin.as_bytes(), 0)?;
        let file = TraceFile { file, len: begin.len() as u64, limit };
        file.write("", last)?;
        Ok(file)
    }

    /// Adds events, each a line with a comma at its end, and replaces the last event.
    ///
    /// # Errors
    /// The file system refuses the bytes. The file then has the events of the calls before.
    pub(super) fn add(&mut self, events: &str, last: &str) -> io::Result<Added> {
        let used = self.len + (LAST_EVENT + END.len()) as u64;
        let room = usize::try_from(self.limit.saturating_sub(used)).unwrap_or(usize::MAX);
        let fit = if events.len() <= room {
            events
        } else {
            let end = events.as_bytes()[..room].iter().rposition(|byte| *byte == b'\n');
            &events[..end.map_or(0, |end| end + 1)]
        };
        self.write(fit, last)?;
        self.len += fit.len() as u64;
        Ok(if fit.len() == events.len() { Added::All } else { Added::LimitReached })
    }

    /// Replaces the last event, and removes the rest of a failed write behind it.
    ///
    /// # Errors
    /// The file system refuses the bytes, although the file had them before.
    pub(super) fn end(&self, last: &str) -> io::Result<()> {
        self.write("", last)?;
        self.file.set_len(self.len + (LAST_EVENT + END.len()) as u64)
    }

    fn write(&self, events: &str, last: &str) -> io::Result<()> {
        self.file.write_all_at(format!("{events}{last:LAST_EVENT$}{END}").as_bytes(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn contents(mut file: &File) -> Vec<serde_json::Value> {
        let mut text = String::new();
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_file_is_complete_after_each_write() {
        let file = tempfile::tempfile().unwrap();
        let mut trace = TraceFile::begin(file.try_clone().unwrap(), 2048, "1").unwrap();
        assert_eq!(contents(&file), [1]);
        assert_eq!(trace.add("5,\n6,\n", "2").unwrap(), Added::All);
        assert_eq!(contents(&file), [5, 6, 2]);
        trace.end("3").unwrap();
        assert_eq!(contents(&file), [5, 6, 3]);
    }

    #[test]
    fn the_limit_is_never_exceeded() {
        let file = tempfile::tempfile().unwrap();
        let mut trace = TraceFile::begin(file.try_clone().unwrap(), 1000, "0").unwrap();
        assert_eq!(trace.add(&"10000000,\n".repeat(10), "0").unwrap(), Added::All);
        // The events that fit are there, and no part of another one.
        assert_eq!(trace.add(&"10000000,\n".repeat(100), "0").unwrap(), Added::LimitReached);
        trace.end("0").unwrap();
        let events = (1000 - 2 - LAST_EVENT - END.len()) / 10;
        assert!(file.metadata().unwrap().len() <= 1000);
        assert_eq!(contents(&file).len(), events + 1);
    }
}
