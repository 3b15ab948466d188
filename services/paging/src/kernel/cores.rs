//! The cores of threads of this process.
//!
//! # Concurrency
//! A [`CoreReader`] belongs to one thread. The functions change the calling thread only.

use std::{fs::File, io, os::unix::fs::FileExt};

use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

/// Reads the core of a thread, and keeps the file of the last one open.
#[derive(Debug, Default)]
pub(crate) struct CoreReader(Option<(u32, File)>);

impl CoreReader {
    /// Returns the core that a thread of this process runs on, or ran on last. Returns `None` if
    /// there is no such thread.
    pub(crate) fn core_of(&mut self, thread: u32) -> Option<usize> {
        if self.0.as_ref().is_none_or(|(last, _)| *last != thread) {
            self.0 = None;
            let file = File::open(format!("/proc/self/task/{thread}/stat")).ok()?;
            self.0 = Some((thread, file));
        }
        let mut line = [0; 1024];
        let read = self.0.as_ref().and_then(|(_, file)| file.read_at(&mut line, 0).ok());
        let core = read.and_then(|len| parse_core(&line[..len]));
        if core.is_none() {
            self.0 = None;
        }
        core
    }
}

/// Returns the field "processor" of a line of `/proc/PID/stat`: the 39th, or the 37th behind the
/// name, which may have blanks and parentheses.
fn parse_core(line: &[u8]) -> Option<usize> {
    let behind = line.iter().rposition(|byte| *byte == b')')? + 1;
    str::from_utf8(&line[behind..]).ok()?.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Returns the cores that the calling thread may run on.
pub(crate) fn allowed() -> io::Result<CpuSet> {
    Ok(sched_getaffinity(None)?)
}

/// Has the calling thread run on one core only, and only while no other thread wants it. The kernel
/// takes a core with such threads only for an idle one, so a thread that is woken stays there.
pub(crate) fn share_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only)?;
    set_policy(libc::SCHED_IDLE)
}

/// Has the calling thread run on any of `cores`, like other threads.
pub(crate) fn leave_core(cores: &CpuSet) -> io::Result<()> {
    sched_setaffinity(None, cores)?;
    set_policy(libc::SCHED_OTHER)
}

fn set_policy(policy: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    let thread = gettid().as_raw_nonzero().get();
    // SAFETY: The kernel reads the parameter within the call. The C library's function does nothing
    // on some systems.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const param) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let line = |name: &str| format!("1 ({name}) {}\n", fields.join(" "));
        for name in ["cat", "a b", "a) 9 (b", ")"] {
            assert_eq!(parse_core(line(name).as_bytes()), Some(39));
        }
        assert_eq!(parse_core(b""), None);
        assert_eq!(parse_core(b"1 (cat) S 1"), None);
    }

    #[test]
    fn a_thread_shares_a_core_and_leaves_it() {
        let before = allowed().expect("cores");
        let core = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core)).expect("a core");
        let mut reader = CoreReader::default();
        let thread = gettid().as_raw_nonzero().get() as u32;
        share_core(core).expect("shared");
        std::thread::yield_now();
        assert_eq!(reader.core_of(thread), Some(core));
        leave_core(&before).expect("left");
        assert_eq!(allowed().expect("cores"), before);
        assert_eq!(reader.core_of(u32::MAX), None);
        assert!(share_core(usize::MAX).is_err());
    }
}
