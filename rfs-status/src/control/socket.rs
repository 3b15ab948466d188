//! The side of the program that answers.
//!
//! # Concurrency
//! One thread accepts connections, and answers one at a time within [`LIMIT`]. It sleeps in
//! `accept` between them.

use std::{
    fs,
    io::{self, Read, Write},
    os::fd::AsRawFd,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    net::{
        AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
        sockopt::socket_peercred,
    },
    process::geteuid,
};

use super::answer::Answer;

/// Limit of the wait for a question, and of each wait for room to answer.
const LIMIT: Duration = Duration::from_secs(1);
/// Maximum length of a question in bytes.
const MAX_QUESTION: usize = 1024;
/// Connections that wait for their answer.
const BACKLOG: i32 = 16;
/// Pause after a failed `accept`, when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(200);

/// Mode and group of the file of a Unix socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketPermissions {
    /// Permissions. `None`: the default of the socket.
    pub mode: Option<u32>,
    /// Number of the group. `None`: the group of the process.
    pub group: Option<u32>,
}

impl SocketPermissions {
    /// Returns true if the file decides which users may ask, rather than the program.
    fn decides(self) -> bool {
        self != SocketPermissions::default()
    }
}

/// The user that asks a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Root, or the user of this program.
    Owner,
    /// Another user that the permissions of the socket's file admit.
    Other,
}

/// A control socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket file cannot be made.
    #[error("{}: {source}", path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another program answers there.
    #[error("{}: another program answers there", .0.display())]
    InUse(PathBuf),
    /// A file that is no dead socket has the path.
    #[error("{}: a file has this path: remove it", .0.display())]
    NoSocket(PathBuf),
    /// There is no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A socket on which the program answers. Dropping it removes the file and joins the thread.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// Device and inode of the file: another program may have replaced it.
    file: Option<(u64, u64)>,
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Makes the socket, and starts its thread `name`. By default its mode is 600, and it answers
    /// root and its own user; with `permissions` it answers every user that can connect.
    ///
    /// `answer` returns a JSON document for a question, or an [`Answer`], or `None` if it does not
    /// know the question. The socket file of a dead program is replaced.
    ///
    /// # Errors
    /// The path is in use, or the system refuses a socket or a thread.
    pub fn start<A: Into<Answer>>(
        path: &Path,
        permissions: SocketPermissions,
        name: &str,
        answer: impl Fn(&str, Asker) -> Option<A> + Send + 'static,
    ) -> Result<ControlSocket, ControlError> {
        let listener = bind_at(path, permissions)?;
        let failed = |source| ControlError::Bind { path: path.to_owned(), source };
        let own = listener.try_clone().map_err(failed)?;
        let mut socket =
            ControlSocket { path: path.to_owned(), file: identity(path), listener, thread: None };
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(move || serve(&own, permissions, answer));
        socket.thread = Some(thread.map_err(ControlError::Thread)?);
        Ok(socket)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path) == self.file {
            // A user may have removed the file by hand.
            fs::remove_file(&self.path).ok();
        }
        // Makes `accept` return.
        rustix::net::shutdown(&self.listener, Shutdown::Both).ok();
        if let Some(thread) = self.thread.take() {
            // The thread contains panics.
            thread.join().ok();
        }
    }
}

/// Returns device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Makes a listening socket.
fn bind_at(path: &Path, permissions: SocketPermissions) -> Result<UnixListener, ControlError> {
    let failed = |source: io::Error| ControlError::Bind { path: path.to_owned(), source };
    let address = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
    remove_stale(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| failed(e.into()))?;
    // The file takes over the mode of the socket: no moment has a wider one.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|e| failed(e.into()))?;
    bind(&socket, &address).map_err(|e| failed(e.into()))?;
    permit(path, permissions).map_err(failed)?;
    listen(&socket, BACKLOG).map_err(|e| failed(e.into()))?;
    Ok(socket.into())
}

/// Gives the file of a socket, which accepts no connection yet, its group and mode.
fn permit(path: &Path, SocketPermissions { mode, group }: SocketPermissions) -> io::Result<()> {
    if group.is_some() {
        std::os::unix::fs::lchown(path, None, group)?;
    }
    let Some(mode) = mode else { return Ok(()) };
    // A symbolic link that took the socket's place meanwhile is not followed.
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    if !fs::metadata(&own)?.file_type().is_socket() {
        return Err(io::Error::other("another file has taken the place of the socket"));
    }
    // After the group: chown(2) can clear bits of the mode.
    fs::set_permissions(own, fs::Permissions::from_mode(mode))
}

/// Removes the socket file of a program that has ended.
fn remove_stale(path: &Path) -> Result<(), ControlError> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err(ControlError::NoSocket(path.to_owned()));
    }
    match super::ask::connect(path, LIMIT) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|source| ControlError::Bind { path: path.to_owned(), source })
        }
        _ => Err(ControlError::InUse(path.to_owned())),
    }
}

fn serve<A: Into<Answer>>(
    listener: &UnixListener,
    permissions: SocketPermissions,
    answer: impl Fn(&str, Asker) -> Option<A>,
) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Err(e) = reply(stream, permissions, &answer) {
                    log::debug!("a question on the control socket got no answer: {e}");
                }
            }
            // The owner has shut the socket down.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
            Err(e) => {
                log::debug!("the control socket accepts no connection: {e}");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Answers one connection.
fn reply<A: Into<Answer>>(
    mut stream: UnixStream,
    permissions: SocketPermissions,
    answer: impl Fn(&str, Asker) -> Option<A>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let user = socket_peercred(&stream)?.uid;
    let asker = if user.is_root() || user == geteuid() { Asker::Owner } else { Asker::Other };
    if asker == Asker::Other && !permissions.decides() {
        let own = geteuid().as_raw();
        return stream.write_all(error(&format!("only root and user {own} may ask this program")).as_bytes());
    }
    let question = read_question(&mut stream)?;
    let answer: Answer = match catch_unwind(AssertUnwindSafe(|| answer(&question, asker))) {
        Ok(Some(answer)) => answer.into(),
        Ok(None) => error(&format!("this version does not know the question {question:?}")).into(),
        Err(_) => error("the program failed to answer: its log has the reason").into(),
    };
    answer.send(&stream)
}

/// Reads the line of a question, which arrives in one piece. Its end may be missing.
fn read_question(stream: &mut UnixStream) -> io::Result<String> {
    let mut bytes = [0; MAX_QUESTION];
    let count = stream.read(&mut bytes)?;
    let line = bytes[..count].split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// Returns the document of a refusal.
fn error(what: &str) -> String {
    serde_json::json!({ "error": what }).to_string()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ASK_LIMIT, AskError, STATUS, ask, ask_for_files},
        *,
    };

    fn echo(question: &str, _: Asker) -> Option<String> {
        match question {
            "panic" => panic!("as the test asks"),
            "unknown" => None,
            _ => Some(format!("{{\"asked\":{question:?}}}")),
        }
    }

    fn started(path: &Path) -> Result<ControlSocket, ControlError> {
        ControlSocket::start(path, SocketPermissions::default(), "test", echo)
    }

    fn start(path: &Path) -> ControlSocket {
        started(path).unwrap()
    }

    #[test]
    fn a_question_gets_its_answer_and_the_end_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let socket = start(&path);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ask(&path, STATUS, ASK_LIMIT).unwrap(), "{\"asked\":\"status\"}");
        let refused = |question| match ask(&path, question, ASK_LIMIT) {
            Err(AskError::Refused { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused("unknown"), "this version does not know the question \"unknown\"");
        assert_eq!(refused("panic"), "the program failed to answer: its log has the reason");
        assert_eq!(ask(&path, "again", ASK_LIMIT).unwrap(), "{\"asked\":\"again\"}");
        drop(socket);
        assert!(!path.exists());
        assert!(matches!(ask(&path, STATUS, ASK_LIMIT), Err(AskError::Missing { .. })));
    }

    /// Catches a socket that stays unusable after a kill, and one taken from a live program.
    #[test]
    fn only_the_socket_of_a_dead_program_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let first = start(&path);
        assert!(matches!(started(&path), Err(ControlError::InUse(_))));
        drop(first);
        // As a killed program leaves it.
        drop(UnixListener::bind(&path).unwrap());
        assert!(matches!(ask(&path, STATUS, ASK_LIMIT), Err(AskError::Dead { .. })));
        let second = start(&path);
        // Another program has replaced the file: the end of this one does not remove it.
        fs::remove_file(&path).unwrap();
        let third = start(&path);
        drop(second);
        assert!(ask(&path, STATUS, ASK_LIMIT).is_ok());
        drop(third);
        fs::write(&path, "a file").unwrap();
        assert!(matches!(started(&path), Err(ControlError::NoSocket(_))));
    }

    /// Catches a thread that a silent client blocks.
    #[test]
    fn a_silent_client_delays_others_for_a_second_at_most() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let _socket = start(&path);
        let _silent = UnixStream::connect(&path).unwrap();
        assert!(ask(&path, STATUS, ASK_LIMIT).is_ok());
    }

    /// Catches an answer whose descriptors do not arrive, or stay open in the program.
    #[test]
    fn descriptors_come_with_an_answer() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = (directory.path().join("control"), directory.path().join("file"));
        fs::write(&file, "contents").unwrap();
        let open = move |_: &str, _: Asker| {
            let files = vec![fs::File::open(&file).unwrap().into()];
            Some(Answer { document: format!("{:?}", "x".repeat(1 << 20)), files })
        };
        let _socket = ControlSocket::start(&path, SocketPermissions::default(), "test", open).unwrap();
        let mut answer = ask_for_files(&path, "file", ASK_LIMIT).unwrap();
        assert_eq!((answer.document.len(), answer.files.len()), ((1 << 20) + 2, 1));
        let mut contents = String::new();
        fs::File::from(answer.files.remove(0)).read_to_string(&mut contents).unwrap();
        assert_eq!(contents, "contents");
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        let error = started(&path).unwrap_err();
        assert!(matches!(error, ControlError::Bind { .. }), "{error}");
    }
}
