//! The side that asks.
//!
//! # Concurrency
//! The calling thread, within the limit that it gives. No locks.

use std::{
    io::{self, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::net::sockopt::socket_peercred;
use socket2::{Domain, SockAddr, Socket, Type};

use super::answer::{Answer, receive};

/// Time within which a program that works answers.
pub const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Maximum length of an answer: status of more sessions than a server admits.
const MAX_ANSWER: u64 = 64 << 20;

/// A question without an answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no socket.
    #[error("{}: no such control socket: the program does not run, or is of an older version", path.display())]
    Missing {
        /// The path of the control socket.
        path: PathBuf,
    },
    /// A program that was killed has left the socket.
    #[error("{}: the program that answered here has ended: start it again", path.display())]
    Dead {
        /// The path of the control socket.
        path: PathBuf,
    },
    /// The file system refuses the connection.
    #[error("{}: no permission: only root and the user of the program may ask", path.display())]
    Permission {
        /// The path of the control socket.
        path: PathBuf,
    },
    /// The program refuses to answer.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path of the control socket.
        path: PathBuf,
        /// The reason, in the words of the program.
        reason: String,
    },
    /// The program does not answer in time.
    #[error("process {pid} does not answer within {} s: {}", limit.as_secs(), next_step(*pid, *is_stopped))]
    Hangs {
        /// The process, or 0 if it is not known here.
        pid: i32,
        /// True if a signal has stopped the process.
        is_stopped: bool,
        /// The time waited.
        limit: Duration,
    },
    /// The answer is no JSON document.
    #[error("{}: the answer is not valid: {why}", path.display())]
    Malformed {
        /// The path of the control socket.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The answer has other fields than this version knows.
    #[error("the program is of another version, whose answer this version cannot show: {why}; use --json")]
    Foreign {
        /// The reason.
        why: String,
    },
    /// Another error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the control socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

fn next_step(pid: i32, is_stopped: bool) -> String {
    match (pid, is_stopped) {
        (0, _) => "it hangs: look for the program, and for its stacks in /proc/PID/task/*/stack".into(),
        (_, true) => format!("it is stopped: continue it with kill -CONT {pid}"),
        (_, false) => {
            format!("it hangs, or the machine is overloaded: cat /proc/{pid}/task/*/stack shows where")
        }
    }
}

/// Asks the program at a control socket. Returns its JSON document.
///
/// # Errors
/// There is no answer within `limit`, or it is a refusal.
pub fn ask(path: &Path, question: &str, limit: Duration) -> Result<String, AskError> {
    ask_for_files(path, question, limit).map(|answer| answer.document)
}

/// Asks as [`ask`], and returns the descriptors as well that come with the document.
///
/// # Errors
/// As [`ask`].
pub fn ask_for_files(path: &Path, question: &str, limit: Duration) -> Result<Answer, AskError> {
    let deadline = Instant::now() + limit;
    let own = || path.to_owned();
    let stream = connect(path, limit).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => AskError::Missing { path: own() },
        io::ErrorKind::ConnectionRefused => AskError::Dead { path: own() },
        io::ErrorKind::PermissionDenied => AskError::Permission { path: own() },
        // The queue of connections is full: the program accepts none.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            AskError::Hangs { pid: 0, is_stopped: false, limit }
        }
        _ => AskError::Io { path: own(), source },
    })?;
    let pid = socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
    let answer = exchange(&stream, question, deadline).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            AskError::Hangs { pid, is_stopped: is_stopped(pid), limit }
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            AskError::Dead { path: own() }
        }
        _ => AskError::Io { path: own(), source },
    })?;
    let document: serde_json::Value = serde_json::from_str(&answer.document)
        .map_err(|e| AskError::Malformed { path: own(), why: e.to_string() })?;
    match document.get("error").and_then(serde_json::Value::as_str) {
        Some(reason) => Err(AskError::Refused { path: own(), reason: reason.to_owned() }),
        None => Ok(answer),
    }
}

/// Connects within `limit`, even if the queue of connections is full.
pub(super) fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The send timeout also limits `connect`.
    socket.set_write_timeout(Some(limit))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

fn exchange(mut stream: &UnixStream, question: &str, deadline: Instant) -> io::Result<Answer> {
    // The program may refuse, and close the stream, before it reads the question.
    let asked = writeln!(stream, "{question}");
    let (mut answer, mut files, mut chunk) = (Vec::new(), Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match receive(stream, &mut chunk, &mut files) {
            Ok(0) if answer.is_empty() => {
                return Err(asked.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&chunk[..count]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // A stream that is closed with an unread question is reset behind the refusal.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => break,
            Err(e) => return Err(e),
        }
        if answer.len() as u64 > MAX_ANSWER {
            return Err(io::Error::other("the answer is too long"));
        }
    }
    let document = String::from_utf8(answer).map_err(|_| io::Error::other("the answer is not text"))?;
    Ok(Answer { document, files })
}

/// Returns true if a signal has stopped a process.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixListener};

    use super::*;

    /// Catches a question that waits for ever for a program that hangs.
    #[test]
    fn a_program_that_hangs_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let _hangs = UnixListener::bind(&path).unwrap();
        let error = ask(&path, "status", Duration::from_millis(50)).unwrap_err();
        let own = std::process::id();
        assert!(matches!(error, AskError::Hangs { is_stopped: false, .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("process {own} does not answer")), "{error}");
        assert_eq!(next_step(7, true), "it is stopped: continue it with kill -CONT 7");
    }

    #[test]
    fn an_answer_that_is_no_json_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let answer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"nonsense").unwrap();
            // The question is read, so that the stream is not reset.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        });
        assert!(matches!(ask(&path, "status", ASK_LIMIT), Err(AskError::Malformed { .. })));
        answer.join().unwrap();
    }
}
