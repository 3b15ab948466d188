//! Programs that run with the preload library, and the lines that they print.

#![allow(dead_code, missing_docs, unreachable_pub)] // Each test crate uses a part of it.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

/// How long a line may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the library that `cargo` built for this test.
pub fn library() -> PathBuf {
    let path = env::current_exe().expect("this program").with_file_name("librfs_paging_preload.so");
    assert!(path.exists(), "{}", path.display());
    path
}

/// Returns the program `rfs-paging`, if it is built. Where the whole workspace is built, it is
/// beside the folder of the tests.
pub fn launcher() -> Option<PathBuf> {
    let folder = library().parent().and_then(Path::parent).expect("a folder").to_owned();
    let launcher = folder.join("rfs-paging");
    if launcher.exists() {
        return Some(launcher);
    }
    println!("not run: {} is not built", launcher.display());
    None
}

/// Returns the value of a counter in the output.
pub fn counter(output: &str, name: &str) -> u64 {
    let (_, rest) = output.split_once(&format!(" {name}: ")).unwrap_or_else(|| panic!("no {name}: {output}"));
    rest.split([',', ' ']).next().and_then(|value| value.parse().ok()).expect("a number")
}

/// Returns true if a program is not installed, and says so. With RFS_REQUIRE_PAGING_TOOLS the test
/// fails.
pub fn not_run(program: &str) -> bool {
    let missing = Command::new(program).arg("--version").output().is_err();
    if missing {
        let required = env::var_os("RFS_REQUIRE_PAGING_TOOLS").is_some();
        assert!(!required, "not run: {program} is not installed");
        println!("not run: {program} is not installed");
    }
    missing
}

/// Compiles the C program in a folder.
pub fn compile(folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program.c");
    // Without optimization, so that the compiler removes no allocation.
    let compiled = Command::new("gcc").args(["-O0", "-w", "-pthread", source, "-o"]).arg(&program).status();
    assert!(compiled.expect("gcc").success());
    program
}

/// A process that ends with the test.
pub struct Running(pub Child, Option<BufReader<ChildStdout>>);

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Running(child, Some(lines))
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.as_mut().expect("a pipe").read_line(&mut line).expect("text");
        line.trim().into()
    }

    /// Returns the output, for [`Lines`].
    pub fn output(&mut self) -> BufReader<ChildStdout> {
        self.1.take().expect("a pipe")
    }

    /// Lets a program that waits for a line go on.
    pub fn go_on(&mut self) {
        self.0.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("a reader");
    }

    pub fn send(&self, signal: i32) {
        // SAFETY: The child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The lines of a pipe. A thread reads them, so the writer never waits for the test.
pub struct Lines {
    lines: Receiver<String>,
    /// The lines that were taken.
    pub taken: Vec<String>,
}

impl Lines {
    pub fn of(pipe: impl Read + Send + 'static) -> Lines {
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(pipe).lines().map_while(Result::ok);
            lines.for_each(|line| drop(send.send(line)));
        });
        Lines { lines, taken: Vec::new() }
    }

    /// Returns the next line. `None` at the end.
    pub fn next(&mut self) -> Option<String> {
        use std::sync::mpsc::RecvTimeoutError::Timeout;
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.taken.push(line.clone());
                Some(line)
            }
            Err(Timeout) => panic!("no line in {} s, after {:?}", PATIENCE.as_secs(), self.taken),
            Err(_) => None,
        }
    }

    /// Takes lines until one has the word.
    pub fn until(&mut self, word: &str) -> String {
        loop {
            let line = self.next().unwrap_or_else(|| panic!("no {word:?}: {:?}", self.taken));
            if line.contains(word) {
                return line;
            }
        }
    }

    /// Takes the lines that are there already.
    pub fn skip(&mut self) {
        self.taken.extend(self.lines.try_iter());
    }

    /// Returns all lines until the end, with those that were taken.
    pub fn rest(mut self) -> Vec<String> {
        while self.next().is_some() {}
        self.taken
    }
}
