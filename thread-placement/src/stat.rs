//! The facts about a thread that the kernel shows in `/proc`.

use std::{fs::File, os::unix::fs::FileExt};

/// Position of the state of a thread among the fields behind its name.
const STATE: usize = 0;
/// Position of the core.
const CORE: usize = 36;

/// Reads the core and the state of threads of any process. Keeps the file of the last thread open,
/// because opening it takes several times as long as reading it.
#[derive(Debug, Default)]
pub struct StatReader(Option<(u32, File)>);

impl StatReader {
    /// Returns the core that a thread runs on, or ran on last. Returns `None` if there is no such
    /// thread, or none that this process may see.
    pub fn core_of(&mut self, thread: u32) -> Option<usize> {
        self.read(thread, CORE, |core| core.parse().ok())
    }

    /// Returns true if a thread is runnable, whether it has a core or not.
    pub fn is_runnable(&mut self, thread: u32) -> bool {
        self.read(thread, STATE, |state| Some(state == "R")).unwrap_or(false)
    }

    /// Reads one field of a thread.
    fn read<T>(&mut self, thread: u32, index: usize, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        // Put back only if the thread is still there.
        let file = match self.0.take() {
            Some((last, file)) if last == thread => file,
            _ => File::open(format!("/proc/{thread}/task/{thread}/stat")).ok()?,
        };
        let mut line = [0; 1024];
        let len = file.read_at(&mut line, 0).ok()?;
        let value = field(&line[..len], index).and_then(parse)?;
        self.0 = Some((thread, file));
        Some(value)
    }
}

/// Returns one of the fields behind the name, which may have blanks, parentheses and other bytes.
fn field(line: &[u8], index: usize) -> Option<&str> {
    let behind = line.iter().rposition(|byte| *byte == b')')? + 1;
    str::from_utf8(&line[behind..]).ok()?.split_ascii_whitespace().nth(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a field that is counted from the start of the line: a name moves it.
    #[test]
    fn fields_follow_any_name() {
        let rest: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        for name in [&b"cat"[..], b"a b", b"a) 9 (b", b")", b"(a) R (b", b"\xff\xfe"] {
            let line = [b"17 (", name, b") S ", rest.join(" ").as_bytes(), b"\n"].concat();
            assert_eq!((field(&line, STATE), field(&line, CORE)), (Some("S"), Some("39")));
        }
        for cut in ["", "17 a S", "17 (cat) S 1"] {
            assert_eq!(field(cut.as_bytes(), CORE), None);
        }
        assert_eq!(field(b"17 a S", STATE), None);
    }

    /// Catches a reader that goes on with the file of another thread.
    #[test]
    fn the_file_that_stays_open_is_that_of_the_thread() {
        let mut reader = StatReader::default();
        let here = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for _ in 0..2 {
            assert!(reader.core_of(here).is_some() && reader.is_runnable(here));
            assert!(reader.core_of(u32::MAX).is_none() && !reader.is_runnable(u32::MAX));
        }
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (say, said) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            say.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).expect("told");
            ended.recv().ok();
        });
        let there = said.recv().expect("told");
        assert!(reader.core_of(there).is_some());
        drop(end);
        other.join().expect("no panic");
        assert!(reader.core_of(here).is_some());
    }
}
