//! A killed or silent server: operations fail in time.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal};

use crate::common::{Mount, Over, TestServer, directory, exit_of, pattern, providers, test_process};

const MIB: u64 = 1 << 20;

/// Not a test: the server process of the tests below, which is this program started again.
#[test]
#[ignore = "a helper process of other tests"]
fn server_process() {
    if std::env::var_os("RFS_TEST_SERVER").is_none() {
        return;
    }
    let listen = std::env::var("RFS_TEST_LISTEN").unwrap_or_default();
    let listen: Vec<_> =
        listen.split_whitespace().map(|address| address.parse().expect("an address")).collect();
    let server = TestServer::with(16 * MIB, |config| {
        if !listen.is_empty() {
            config.listen = listen;
        }
    });
    println!("\nserving {} {}", server.address(Over::Shm), server.address(Over::Tcp));
    io::stdout().flush().expect("stdout");
    // Waits until the test closes the input.
    io::stdin().read_to_end(&mut Vec::new()).ok();
}

pub(super) struct ServerProcess {
    child: Child,
    addresses: Vec<String>,
}

impl ServerProcess {
    pub(super) fn start() -> ServerProcess {
        ServerProcess::listening(&[])
    }

    /// Starts a server on these addresses, or on new ones.
    fn listening(addresses: &[String]) -> ServerProcess {
        let mut child = test_process(module_path!(), "server_process")
            .arg("--ignored")
            .env("RFS_TEST_SERVER", "1")
            .env("RFS_TEST_LISTEN", addresses.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server process");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let line = out.lines().map_while(Result::ok).find(|line| line.starts_with("serving "));
        let line = line.expect("a server that starts");
        ServerProcess { child, addresses: line.split(' ').skip(1).map(str::to_owned).collect() }
    }

    /// Kills the server, and starts another one on the same addresses.
    pub(super) fn killed_and_started_anew(mut self) -> ServerProcess {
        self.signal(Signal::KILL);
        exit_of(&mut self.child);
        let addresses = std::mem::take(&mut self.addresses);
        ServerProcess::listening(&addresses)
    }

    pub(super) fn address(&self, over: Over) -> &str {
        &self.addresses[usize::from(over == Over::Tcp)]
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("signal");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        // A killed server cannot remove its directory.
        if let Some(socket) = self.addresses.first().and_then(|first| first.strip_prefix("unix:")) {
            PathBuf::from(socket).parent().map(|dir| fs::remove_dir_all(dir).ok());
        }
    }
}

/// Runs `f` on a thread. Returns its result if it ends within `limit`.
fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(f()));
    wait.recv_timeout(limit).ok()
}

type Operation = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Returns one operation of every kind.
fn operations(mount: &Mount, file: &File) -> Vec<(&'static str, Operation)> {
    let (path, point) = (mount.path("file"), mount.point.clone());
    let file = file.try_clone().expect("dup");
    vec![
        ("read", {
            let file = file.try_clone().expect("dup");
            Box::new(move || file.read_at(&mut [0; 4096], 8192).map(drop))
        }),
        ("write", {
            let file = file.try_clone().expect("dup");
            Box::new(move || file.write_at(b"x", 0).map(drop))
        }),
        ("fstat", Box::new(move || file.metadata().map(drop))),
        ("open", Box::new(move || File::open(path).map(drop))),
        ("create", {
            let path = mount.path("new");
            Box::new(move || File::create(path).map(drop))
        }),
        ("mkdir", {
            let path = mount.path("dir");
            Box::new(move || fs::create_dir(path))
        }),
        ("readdir", Box::new(move || fs::read_dir(point)?.next().map_or(Ok(()), |e| e.map(drop)))),
    ]
}

/// Runs every operation on a mount whose server is gone or silent.
fn every_operation(mount: &Mount, file: File, limit: Duration) -> Vec<(&'static str, Option<i32>)> {
    operations(mount, &file)
        .into_iter()
        .map(|(name, run)| {
            let result = within(limit, run).unwrap_or_else(|| panic!("{name} hangs"));
            (name, result.err().and_then(|e| e.raw_os_error()))
        })
        .collect()
}

/// Creates a file of three blocks. The kernel caches nothing of this mount.
fn uncached_file(mount: &Mount) -> File {
    let path = mount.path("file");
    fs::write(&path, pattern(3 * 4096, 1)).expect("written");
    File::options().read(true).write(true).open(path).expect("opened")
}

#[test]
fn a_killed_server_is_an_errno_and_not_a_hang() {
    crate::common::require_fuse();
    for over in providers() {
        let mut server = ServerProcess::start();
        let point = directory();
        let options = ["--cache", "none", "--timeout", "5"];
        let mount = Mount::start(server.address(over), point.path(), &options);
        let file = uncached_file(&mount);
        server.signal(Signal::KILL);
        exit_of(&mut server.child);
        for (name, errno) in every_operation(&mount, file, Duration::from_secs(10)) {
            assert_eq!(errno, Some(rustix::io::Errno::HOSTDOWN.raw_os_error()), "{name} over {over:?}");
        }
        mount.unmount();
    }
}

/// Options of a mount that waits for half a second, and the maximum time of an operation on it.
/// The semantics allow twice `--timeout` and `--connect-timeout`; a busy machine takes longer.
const IMPATIENT: [&str; 6] = ["--cache", "none", "--timeout", "0.5", "--connect-timeout", "0.5"];
const MAX_OPERATION_TIME: Duration = Duration::from_millis(3 * 500 + 4000);

#[test]
fn the_first_operation_on_a_silent_server_fails_in_time() {
    crate::common::require_fuse();
    for over in providers() {
        let server = ServerProcess::start();
        let start = |_| {
            let point = directory();
            let mount = Mount::start(server.address(over), point.path(), &IMPATIENT);
            let file = uncached_file(&mount);
            (mount, file, point)
        };
        // A new mount for each operation, because operations after a loss fail at once.
        let first = start(0);
        let mut mounts = vec![first];
        mounts.extend((1..operations(&mounts[0].0, &mounts[0].1).len()).map(start));
        crate::common::stop(server.pid());
        let waits: Vec<_> = mounts
            .iter()
            .enumerate()
            .map(|(at, (mount, file, _))| {
                let (name, run) = operations(mount, file).swap_remove(at);
                (name, thread::spawn(move || within(MAX_OPERATION_TIME, run)))
            })
            .collect();
        for (name, wait) in waits {
            let result =
                wait.join().expect("no panic").unwrap_or_else(|| panic!("{name} over {over:?} hangs"));
            let errno = result.err().and_then(|e| e.raw_os_error());
            // With mapped memory, operations on allocated space need no server.
            if !(["read", "write", "fstat"].contains(&name) && errno.is_none()) {
                // The error depends on the step that detects the loss.
                let told = [rustix::io::Errno::TIMEDOUT, rustix::io::Errno::HOSTDOWN];
                let told = told.map(|errno| Some(errno.raw_os_error()));
                assert!(told.contains(&errno), "{name} over {over:?}: {errno:?}");
            }
        }
        for (mount, file, _point) in mounts {
            drop(file);
            mount.unmount();
        }
        server.signal(Signal::CONT);
    }
}

#[test]
fn a_silent_server_is_an_errno_and_not_a_hang() {
    crate::common::require_fuse();
    for over in providers() {
        let server = ServerProcess::start();
        let point = directory();
        let mount = Mount::start(server.address(over), point.path(), &IMPATIENT);
        let file = uncached_file(&mount);
        crate::common::stop(server.pid());
        let first = within(MAX_OPERATION_TIME, {
            let path = mount.path("dir");
            move || fs::create_dir(path)
        });
        let first = first.expect("mkdir hangs").expect_err("the server does not answer").raw_os_error();
        assert_eq!(first, Some(rustix::io::Errno::TIMEDOUT.raw_os_error()), "over {over:?}");
        // The session has ended by now.
        for (name, errno) in every_operation(&mount, file, MAX_OPERATION_TIME) {
            assert!(errno.is_some(), "{name} over {over:?} worked");
        }
        mount.unmount();
        server.signal(Signal::CONT);
    }
}
