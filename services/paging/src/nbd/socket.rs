//! Sockets of an NBD server, and the file of a Unix socket.
//!
//! Invariant: only sockets are removed, and only those that no process listens at.
//!
//! # Concurrency
//! One thread accepts, and another may stop it. Each stream has a thread, and others may shut it
//! down.

use std::{
    fs::{self, Metadata},
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::Mode,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// The file of a Unix socket, which goes with the value. A file that has taken its place stays.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

fn identity(data: &Metadata) -> (u64, u64) {
    (data.dev(), data.ino())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|data| identity(&data) == self.identity) {
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Makes a Unix socket that only its user and root may use. Leaves no file behind after an error.
fn bind(path: &Path) -> io::Result<(Listener, SocketFile)> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file gets the mode of its socket, so no other user can connect in between.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&fs::symlink_metadata(path)?) };
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((Listener::Unix(UnixListener::from(socket)), file))
}

/// Returns true if a path is a socket that no process listens at.
fn is_abandoned(path: &Path) -> bool {
    if !fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket()) {
        return false;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (Ok(socket), Ok(address)) = (socket, SocketAddrUnix::new(path)) else { return false };
    // A server that is busy gives another error.
    rustix::net::connect(&socket, &address) == Err(rustix::io::Errno::CONNREFUSED)
}

impl Listener {
    /// Makes a Unix socket, and replaces one that no process listens at.
    ///
    /// # Errors
    /// EADDRINUSE if there is another file, or a socket that may be in use. Both stay.
    pub(super) fn unix(path: &Path) -> io::Result<(Listener, SocketFile)> {
        match bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                fs::remove_file(path)?;
                bind(path)
            }
            outcome => outcome,
        }
    }

    /// Ends the wait of [`accept`](Self::accept), now and later, with an error.
    pub(super) fn stop(&self) {
        let outcome = match self {
            Listener::Unix(listener) => rustix::net::shutdown(listener, rustix::net::Shutdown::Both),
            Listener::Tcp(listener) => rustix::net::shutdown(listener, rustix::net::Shutdown::Both),
        };
        if let Err(error) = outcome {
            log::error!("cannot shut an NBD socket down: {error}");
        }
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl Stream {
    /// Limits how long the client may take to receive bytes.
    pub(super) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_write_timeout(Some(timeout)),
            Stream::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
        })
    }

    /// Limits how long the client may take to send bytes.
    pub(super) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(timeout),
            Stream::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    pub(super) fn shutdown(&self) {
        // Fails if the client has closed the connection.
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("a file").mode() & 0o777
    }

    #[test]
    fn only_abandoned_sockets_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "bytes").expect("a file");
        let refused = Listener::unix(&path).expect_err("a file in the way");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).expect("the file"), b"bytes");

        let path = folder.path().join("socket");
        let other = UnixListener::bind(&path).expect("a socket");
        let refused = Listener::unix(&path).expect_err("a socket in use");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert!(UnixStream::connect(&path).is_ok());
        drop(other);
        assert!(path.exists());
        let (_listener, file) = Listener::unix(&path).expect("a socket");
        assert_eq!(mode(&path), 0o600);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_has_taken_the_place_of_a_socket_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let (_listener, file) = Listener::unix(&path).expect("a socket");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "bytes").expect("a file");
        drop(file);
        assert_eq!(fs::read(&path).expect("the file"), b"bytes");
    }
}
