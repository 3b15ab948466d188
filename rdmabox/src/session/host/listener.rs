//! Listening sockets of a host: TCP ports and Unix sockets.
//!
//! # Concurrency
//! One thread accepts on a [`Listener`]. Another thread stops it with a [`ListenerHandle`]. No
//! locks.

use std::{
    fs::Metadata,
    io,
    net::TcpListener,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixListener,
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    provider::soft::replace_bbr,
    session::{
        address::Address,
        stream::{self, Stream},
    },
};

/// Time limit for probing whether a host listens on a Unix socket.
const PROBE: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
    /// TCP port at which peers meet before they use RDMA.
    Rdma(TcpListener),
}

/// A listening socket. Dropping it removes the file of a Unix socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    /// Address with the actual port.
    pub(crate) address: Address,
    file: Option<Arc<SocketFile>>,
}

/// The file of a Unix socket. It is removed only once, because a later host may reuse the path.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    removed: AtomicBool,
}

impl SocketFile {
    fn remove(&self) {
        if !self.removed.swap(true, Ordering::AcqRel) {
            // A user may have removed the file by hand.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Handle that stops a listener from another thread.
#[derive(Debug)]
pub(crate) struct ListenerHandle {
    socket: socket2::Socket,
    file: Option<Arc<SocketFile>>,
}

impl ListenerHandle {
    pub(crate) fn close(&self) {
        // Removes the file while the socket still listens: another host may replace a file without
        // a listener.
        if let Some(file) = &self.file {
            file.remove();
        }
        // Makes `accept` return.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Listener {
    /// Binds a listener. Replaces the socket file of a dead host. The socket file of a live host is
    /// an error.
    pub(crate) fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp { host, port } => {
                let (socket, host, port) = bind_tcp(host, *port)?;
                let address = Address::Tcp { host, port };
                Ok(Listener { socket: Socket::Tcp(socket), address, file: None })
            }
            Address::Rdma { host, port } => {
                let (socket, host, port) = bind_tcp(host, *port)?;
                let address = Address::Rdma { host, port };
                Ok(Listener { socket: Socket::Rdma(socket), address, file: None })
            }
            Address::Unix(path) => {
                if let Ok(meta) = std::fs::symlink_metadata(path) {
                    if !meta.file_type().is_socket() {
                        return Err(io::Error::new(
                            io::ErrorKind::AlreadyExists,
                            "a file that is not a socket has this path: remove it, or listen elsewhere",
                        ));
                    }
                    match stream::connect_unix(path, PROBE) {
                        Err(e) if e.kind() != io::ErrorKind::WouldBlock => {
                            if e.kind() != io::ErrorKind::ConnectionRefused {
                                return Err(e);
                            }
                            check_stale(&meta)?;
                            std::fs::remove_file(path)?;
                        }
                        // A listener with a full queue counts as live.
                        _ => {
                            return Err(io::Error::new(
                                io::ErrorKind::AddrInUse,
                                "a server is listening there",
                            ));
                        }
                    }
                }
                let socket = Socket::Unix(UnixListener::bind(path)?);
                let file = SocketFile { path: path.clone(), removed: AtomicBool::new(false) };
                Ok(Listener { socket, address: address.clone(), file: Some(Arc::new(file)) })
            }
        }
    }

    pub(crate) fn handle(&self) -> io::Result<ListenerHandle> {
        let socket = match &self.socket {
            Socket::Tcp(socket) | Socket::Rdma(socket) => socket.try_clone()?.into(),
            Socket::Unix(socket) => socket.try_clone()?.into(),
        };
        Ok(ListenerHandle { socket, file: self.file.clone() })
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(socket) => socket.accept().map(|(stream, _)| Stream::tuned_tcp(stream)),
            Socket::Rdma(socket) => socket.accept().map(|(stream, _)| Stream::tuned_rdma(stream)),
            Socket::Unix(socket) => socket.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

/// Checks that the socket file of a dead host belongs to this user.
fn check_stale(meta: &Metadata) -> io::Result<()> {
    let (owner, own) = (meta.uid(), rustix::process::geteuid().as_raw());
    if owner == own {
        return Ok(());
    }
    let why = format!("a dead socket of user {owner} has this path: remove it, or listen elsewhere");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Returns the socket, the host's name, and the actual port.
fn bind_tcp(host: &str, port: u16) -> io::Result<(TcpListener, String, u16)> {
    let socket = TcpListener::bind((host, port))?;
    replace_bbr(&socket);
    let port = socket.local_addr()?.port();
    Ok((socket, host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_stops_leaves_the_socket_of_its_successor_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = Address::Unix(path.clone());
        let old = Listener::bind(&address).unwrap();
        let handle = old.handle().unwrap();
        assert_eq!(Listener::bind(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        handle.close();
        assert!(!path.exists());
        let new = Listener::bind(&address).unwrap();
        // As when the accepting thread ends late.
        drop((old, handle));
        stream::connect_unix(&path, PROBE).unwrap();
        drop(new);
        assert!(!path.exists());
    }
}
