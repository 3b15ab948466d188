//! The system's log: datagrams to the socket of syslogd or journald.
//!
//! # Concurrency
//! Any thread. A logger that cannot keep up loses messages, and blocks no thread.

use std::{io, os::unix::net::UnixDatagram, sync::OnceLock};

use log::Level;

/// Socket of the system's log.
pub const SYSLOG: &str = "/dev/log";
/// `LOG_DAEMON` of syslog(3), in its place in a priority.
const DAEMON: u8 = 3 << 3;
/// Maximum length of a message in bytes. Each logger takes such a message.
const MAX_MESSAGE: usize = 8192;

/// The socket and the name of this program, once its log goes there.
static OWN: OnceLock<(UnixDatagram, &'static str)> = OnceLock::new();

/// Has the log of this program `name` go to the system's log from now on.
///
/// # Errors
/// There is no system's log. The log stays where it is.
pub fn begin(name: &'static str) -> io::Result<()> {
    let socket = connect()?;
    // A program begins once.
    OWN.set((socket, name)).ok();
    Ok(())
}

/// Returns true if the log of this program goes to the system's log.
pub fn is_in_use() -> bool {
    OWN.get().is_some()
}

/// Sends a message in the name of a program without a logger.
///
/// # Errors
/// There is no system's log, or it takes no message.
pub fn send(name: &str, level: Level, text: &str) -> io::Result<()> {
    connect()?.send(&message(name, level, text)).map(drop)
}

fn connect() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SYSLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sends a line of the log. Returns false if the log goes to stderr.
pub(super) fn log(level: Level, text: &str) -> bool {
    let Some((socket, name)) = OWN.get() else { return false };
    let bytes = message(name, level, text);
    // After a restart of syslogd the socket has another peer.
    if socket.send(&bytes).is_err() && socket.connect(SYSLOG).is_ok() {
        socket.send(&bytes).ok();
    }
    true
}

/// Returns a message as of RFC 3164, without a time: the logger adds its own.
fn message(name: &str, level: Level, text: &str) -> Vec<u8> {
    let severity = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    let mut message = format!("<{}>{name}[{}]: {text}", DAEMON | severity, std::process::id()).into_bytes();
    message.truncate(MAX_MESSAGE);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_priority_name_and_process() {
        let text = String::from_utf8(message("rfs-fuse", Level::Warn, "lost")).unwrap();
        assert_eq!(text, format!("<28>rfs-fuse[{}]: lost", std::process::id()));
        assert_eq!(message("x", Level::Info, &"y".repeat(100_000)).len(), MAX_MESSAGE);
    }
}
