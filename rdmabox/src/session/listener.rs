//! Where a host listens: TCP ports and Unix sockets.

use std::{
    io,
    net::TcpListener,
    os::unix::{fs::FileTypeExt, net::UnixListener},
    path::PathBuf,
    time::Duration,
};

use super::{
    Address,
    stream::{self, Stream},
};

/// Time to find out whether somebody listens on a Unix socket.
const PROBE: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
    /// Where peers find each other that go on over RDMA.
    Rdma(TcpListener),
}

/// A socket that accepts. Dropping it removes the file of a Unix socket.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Socket,
    /// With the port that it got.
    pub(super) address: Address,
}

/// What it takes to stop a listener from another thread.
#[derive(Debug)]
pub(super) struct ListenerHandle {
    socket: socket2::Socket,
    path: Option<PathBuf>,
}

impl ListenerHandle {
    pub(super) fn close(&self) {
        // Makes accept return.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    /// The socket file of a dead host is replaced; that of a live one is an error.
    pub(super) fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp { host, port } => {
                let (socket, host, port) = bind_tcp(host, *port)?;
                Ok(Listener { socket: Socket::Tcp(socket), address: Address::Tcp { host, port } })
            }
            Address::Rdma { host, port } => {
                let (socket, host, port) = bind_tcp(host, *port)?;
                Ok(Listener { socket: Socket::Rdma(socket), address: Address::Rdma { host, port } })
            }
            Address::Unix(path) => {
                if let Ok(meta) = std::fs::symlink_metadata(path) {
                    if !meta.file_type().is_socket() {
                        return Err(io::Error::new(
                            io::ErrorKind::AlreadyExists,
                            "there is a file of that name",
                        ));
                    }
                    match stream::connect_unix(path, PROBE) {
                        Err(e) if e.kind() != io::ErrorKind::WouldBlock => {
                            if e.kind() != io::ErrorKind::ConnectionRefused {
                                return Err(e);
                            }
                            std::fs::remove_file(path)?;
                        }
                        // A listener whose queue is full is one.
                        _ => {
                            return Err(io::Error::new(
                                io::ErrorKind::AddrInUse,
                                "a server is listening there",
                            ));
                        }
                    }
                }
                let socket = Socket::Unix(UnixListener::bind(path)?);
                Ok(Listener { socket, address: address.clone() })
            }
        }
    }

    pub(super) fn handle(&self) -> io::Result<ListenerHandle> {
        let (socket, path) = match (&self.socket, &self.address) {
            (Socket::Tcp(socket) | Socket::Rdma(socket), _) => (socket.try_clone()?.into(), None),
            (Socket::Unix(socket), Address::Unix(path)) => (socket.try_clone()?.into(), Some(path.clone())),
            (Socket::Unix(socket), _) => (socket.try_clone()?.into(), None),
        };
        Ok(ListenerHandle { socket, path })
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(socket) => socket.accept().map(|(stream, _)| Stream::tuned_tcp(stream)),
            Socket::Rdma(socket) => socket.accept().map(|(stream, _)| Stream::tuned_rdma(stream)),
            Socket::Unix(socket) => socket.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

/// With the host's name, and the port that it got.
fn bind_tcp(host: &str, port: u16) -> io::Result<(TcpListener, String, u16)> {
    let socket = TcpListener::bind((host, port))?;
    let port = socket.local_addr()?.port();
    Ok((socket, host.to_owned(), port))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Gone already when the host was stopped in order.
            let _ = std::fs::remove_file(path);
        }
    }
}
