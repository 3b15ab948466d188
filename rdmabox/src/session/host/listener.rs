//! Listening sockets of a host: TCP ports and Unix sockets.
//!
//! # Concurrency
//! One thread accepts on a [`Listener`]. Another thread stops it with a [`ListenerHandle`]. No
//! locks.

use std::{
    fs::Metadata,
    io,
    net::TcpListener,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
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

/// Connections that may wait on a Unix socket to be accepted. `net.core.somaxconn` limits it, too.
const BACKLOG: i32 = 4096;

/// Mode and group of the files of Unix sockets. `None`: as the umask and the process's group have
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketPermissions {
    pub(crate) mode: Option<u32>,
    pub(crate) group: Option<u32>,
}

impl SocketPermissions {
    /// Makes a listening socket. No client can connect before its file has the permissions.
    fn bind(self, path: &Path) -> io::Result<UnixListener> {
        if self == SocketPermissions::default() {
            return UnixListener::bind(path);
        }
        let address = SocketAddrUnix::new(path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &address)?;
        self.apply(path).and_then(|()| Ok(listen(&socket, BACKLOG)?)).inspect_err(|_| {
            // The error that ends the start is the one to report.
            let _ = std::fs::remove_file(path);
        })?;
        Ok(socket.into())
    }

    fn apply(self, path: &Path) -> io::Result<()> {
        let failed = |what: String| {
            move |e: io::Error| io::Error::new(e.kind(), format!("cannot give the socket {what}: {e}"))
        };
        if let Some(group) = self.group {
            let given = std::os::unix::fs::lchown(path, None, Some(group));
            given.map_err(failed(format!("to group {group} (root, or a user of the group, can)")))?;
        }
        // After the group: chown(2) can clear bits of the mode.
        if let Some(mode) = self.mode {
            let set = set_socket_mode(path, mode);
            set.map_err(failed(format!("the mode {mode:o}")))?;
        }
        Ok(())
    }
}

/// Sets the permissions of a socket's file. Another user may replace a file in a directory of its
/// own: a symbolic link is not followed.
fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    if !std::fs::metadata(&own)?.file_type().is_socket() {
        return Err(io::Error::other("another file has taken the place of the socket"));
    }
    std::fs::set_permissions(own, std::fs::Permissions::from_mode(mode))
}

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
    /// an error. The file of a Unix socket gets `permissions`.
    pub(crate) fn bind(address: &Address, permissions: SocketPermissions) -> io::Result<Listener> {
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
                let socket = Socket::Unix(permissions.bind(path)?);
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
        let bind = || Listener::bind(&address, SocketPermissions::default());
        let old = bind().unwrap();
        let handle = old.handle().unwrap();
        assert_eq!(bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        handle.close();
        assert!(!path.exists());
        let new = bind().unwrap();
        // As when the accepting thread ends late.
        drop((old, handle));
        stream::connect_unix(&path, PROBE).unwrap();
        drop(new);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_has_the_mode_and_group_that_were_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = Address::Unix(path.clone());
        let own = rustix::process::getegid().as_raw();
        let permissions = SocketPermissions { mode: Some(0o626), group: Some(own) };
        let listener = Listener::bind(&address, permissions).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.permissions().mode() & 0o7777, meta.gid()), (0o626, own));
        stream::connect_unix(&path, PROBE).unwrap();
        drop(listener);
        // No group has this number. Only the kernel may refuse it, in the name of another user.
        let permissions = SocketPermissions { group: Some(u32::MAX - 1), ..permissions };
        match Listener::bind(&address, permissions) {
            Ok(_) => assert!(rustix::process::geteuid().is_root()),
            Err(e) => assert!(e.to_string().contains("group 4294967294"), "{e}"),
        }
        assert!(!path.exists());
    }
}
