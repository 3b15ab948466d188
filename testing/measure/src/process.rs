//! Child processes that never outlive the program.
//!
//! A [`Guarded`] child runs in its own process group. Ctrl-C in the terminal therefore reaches only
//! the program, and stopping the group also stops the child's children. `setpriv --pdeathsig`, if
//! installed, ends the child even if the program is killed. Drop sends SIGTERM, then SIGKILL, then
//! waits for the child. After a signal to the program, a child that it waits for gets SIGKILL at
//! once.
//!
//! # Concurrency
//! Two helper threads per child read its pipes into bounded buffers and end when the pipes close.
//! Only the main thread starts children, because the kernel sends the death signal when the thread
//! that forked ends. Each buffer has its own lock, held for one copy.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io::Read,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::{Error, Result, interrupt::Interrupt};

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time for the kernel to end a child after SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// Limit of the buffered output per pipe, in bytes.
const KEEP: usize = 256 * 1024;

/// The output of a child on one pipe. If it exceeds `KEEP` bytes, the oldest bytes are discarded.
#[derive(Clone, Debug, Default)]
pub struct Output(Arc<Mutex<VecDeque<u8>>>);

impl Output {
    fn drain(&self, mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<()> {
        let this = self.clone();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut chunk) {
                let mut kept = this.lock();
                kept.extend(&chunk[..n]);
                let excess = kept.len().saturating_sub(KEEP);
                kept.drain(..excess);
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u8>> {
        // A panic cannot leave the buffer half written: every holder appends or removes whole
        // bytes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the buffered output as text.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.lock().iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the last eight non-empty lines, for an error message.
    pub fn tail(&self) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(8)..].join("\n    ")
    }
}

/// A command line: a program and its arguments.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Short name for messages.
    pub name: String,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
}

impl Invocation {
    /// Returns a command line without arguments. Its name is the file name of the program.
    pub fn new(program: impl Into<OsString>) -> Self {
        let program = program.into();
        let name = Path::new(&program).file_name().unwrap_or(&program).to_string_lossy().into_owned();
        Self { name, program, args: Vec::new() }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Returns the command line as one line of text, for logs and reports.
    pub fn line(&self) -> String {
        std::iter::once(&self.program)
            .chain(&self.args)
            .map(|arg| arg.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn command(&self) -> Command {
        let setpriv = Path::new("/usr/bin/setpriv");
        let mut command = if setpriv.exists() {
            let mut command = Command::new(setpriv);
            command.args([OsStr::new("--pdeathsig"), OsStr::new("TERM"), OsStr::new("--"), &self.program]);
            command
        } else {
            Command::new(&self.program)
        };
        command.args(&self.args);
        command
    }
}

/// A running child and its output.
#[derive(Debug)]
pub struct Guarded {
    name: String,
    child: Child,
    group: Option<Pid>,
    status: Option<ExitStatus>,
    drains: Vec<thread::JoinHandle<()>>,
    /// Time between SIGTERM and SIGKILL.
    grace: Duration,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
}

impl Guarded {
    /// Starts a child in its own process group, with `dir` as working directory.
    pub fn spawn(what: &Invocation, dir: &Path) -> Result<Self> {
        let mut child = what
            .command()
            .current_dir(dir)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| Error::Spawn { program: what.name.clone(), source })?;
        let (stdout, stderr) = (Output::default(), Output::default());
        let mut drains = Vec::new();
        drains.extend(child.stdout.take().map(|pipe| stdout.drain(pipe)));
        drains.extend(child.stderr.take().map(|pipe| stderr.drain(pipe)));
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let name = what.name.clone();
        Ok(Self { name, child, group, status: None, drains, grace: GRACE, stdout, stderr })
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the child has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(Error::io(&self.name))?;
        }
        Ok(self.status)
    }

    /// Returns an error with the exit status, or with `what` if the child still runs, and with the
    /// last lines of its output.
    pub fn failure(&mut self, what: &str) -> Error {
        let how = match self.ended().ok().flatten() {
            Some(status) => {
                // The pipes still hold the last output. The helper threads end when the pipes are
                // empty.
                self.join();
                match (status.code(), status.signal()) {
                    (Some(code), _) => format!("ended with status {code}"),
                    (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
                }
            }
            None => what.to_owned(),
        };
        let tail = match self.stderr.tail() {
            tail if tail.is_empty() => self.stdout.tail(),
            tail => tail,
        };
        let what = if tail.is_empty() { how } else { format!("{how}:\n    {tail}") };
        Error::Child { program: self.name.clone(), what }
    }

    /// Blocks until `ready` returns a value for the standard output so far, or for the standard
    /// error.
    ///
    /// # Errors
    /// If the child ends first, `limit` elapses, or a signal arrives.
    pub fn wait_output<T>(
        &mut self,
        interrupt: &Interrupt,
        limit: Duration,
        ready: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let found = interrupt.wait(limit, || {
            let ended = self.ended()?.is_some();
            match ready(&self.stdout.text()).or_else(|| ready(&self.stderr.text())) {
                Some(found) => Ok(Some(found)),
                // The threads that read its output may be behind.
                None if ended => {
                    self.join();
                    let found = ready(&self.stdout.text()).or_else(|| ready(&self.stderr.text()));
                    found.map(Some).ok_or_else(|| self.failure("ended"))
                }
                None => Ok(None),
            }
        })?;
        found.ok_or_else(|| self.failure(&format!("not ready after {} s", limit.as_secs())))
    }

    /// Blocks until the child ends successfully, and returns its standard output. Calls `tick` with
    /// the standard output at every poll. After a signal, [`stop`](Self::stop) and drop do not wait
    /// between SIGTERM and SIGKILL, because the result of the child is not needed any more.
    pub fn wait_success(
        &mut self,
        interrupt: &Interrupt,
        limit: Duration,
        mut tick: impl FnMut(&str),
    ) -> Result<String> {
        let status = interrupt.wait(limit, || {
            tick(&self.stdout.text());
            self.ended()
        });
        if status.is_err() {
            self.grace = Duration::ZERO;
        }
        match status? {
            Some(status) if status.success() => {
                self.join();
                Ok(self.stdout.text())
            }
            _ => Err(self.failure(&format!("no end after {} s", limit.as_secs()))),
        }
    }

    /// Blocks until the child ends with any status. Returns `None` if it still runs after `limit`.
    pub fn wait_end(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        // Cleanup uses this wait, so it ignores the interrupt flag.
        Interrupt::unset().wait(limit, || self.ended())
    }

    /// Ends the child and the rest of its process group: SIGTERM, wait, SIGKILL, wait.
    pub fn stop(&mut self) -> Result<()> {
        self.stop_within(self.grace)
    }

    fn stop_within(&mut self, grace: Duration) -> Result<()> {
        if !self.gone()? {
            self.signal(Signal::TERM);
            if !self.wait_gone(grace)? {
                self.signal(Signal::KILL);
                if !self.wait_gone(KILL_GRACE)? {
                    let id = self.child.id();
                    let name = &self.name;
                    return Err(Error::LeftBehind(format!(
                        "process {id} ({name}) is killed, but blocks in the kernel and has not ended"
                    )));
                }
            }
        }
        self.join();
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The only possible error is an empty group, which is the goal.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Returns true if the child has been reaped and its process group is empty.
    fn gone(&mut self) -> Result<bool> {
        Ok(self.ended()?.is_some() && self.group.is_none_or(|group| test_kill_process_group(group).is_err()))
    }

    fn wait_gone(&mut self, limit: Duration) -> Result<bool> {
        // Cleanup must finish, so this wait ignores the interrupt flag.
        let deadline = Instant::now() + limit;
        loop {
            if self.gone()? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn join(&mut self) {
        for drain in self.drains.drain(..) {
            // A helper thread only appends bytes, so it has no result to report.
            let _ = drain.join();
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Err(err) = self.stop() {
            eprintln!("{err}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Guarded {
        let what = Invocation::new("sh").args(["-c", script]);
        Guarded::spawn(&what, &env::temp_dir()).unwrap()
    }

    fn exists(pid: &str) -> bool {
        match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => !stat.contains(") Z "),
            Err(_) => false,
        }
    }

    #[test]
    fn wait_output_returns_the_value_that_the_child_printed() {
        let mut child = sh("echo one; echo ready: 7; exec sleep 1000");
        let found = child
            .wait_output(&Interrupt::unset(), LONG, |text| {
                text.lines().find_map(|line| line.strip_prefix("ready: ").map(str::to_owned))
            })
            .unwrap();
        assert_eq!(found, "7");
        child.stop().unwrap();
        assert_eq!(child.ended().unwrap().unwrap().signal(), Some(15));
    }

    #[test]
    fn drop_ends_the_whole_group() {
        let mut child = sh("sleep 1000 & echo $!; wait");
        let grandchild = child
            .wait_output(&Interrupt::unset(), LONG, |text| text.lines().next().map(str::to_owned))
            .unwrap();
        let pid = child.id().to_string();
        assert!(exists(&pid) && exists(&grandchild));
        drop(child);
        assert!(!exists(&pid) && !exists(&grandchild));
    }

    #[test]
    fn the_error_of_a_child_that_ended_early_has_its_last_lines() {
        let mut child = sh("echo 'address in use' >&2; exit 3");
        let err = child.wait_output(&Interrupt::unset(), LONG, |_| None::<()>).unwrap_err();
        assert_eq!(err.to_string(), "sh: ended with status 3:\n    address in use");
    }

    #[test]
    fn success_returns_the_output_and_failure_does_not() {
        let mut seen = false;
        let mut good = sh("echo hello");
        let text = good.wait_success(&Interrupt::unset(), LONG, |_| seen = true).unwrap();
        assert_eq!((text.as_str(), seen), ("hello\n", true));
        let mut bad = sh("echo broken; exit 44");
        let err = bad.wait_success(&Interrupt::unset(), LONG, |_| ()).unwrap_err();
        assert_eq!(err.to_string(), "sh: ended with status 44:\n    broken");
    }

    #[test]
    fn a_child_that_ignores_sigterm_is_killed() {
        let mut child = sh("trap '' TERM; echo ready; while :; do sleep 1; done");
        child.wait_output(&Interrupt::unset(), LONG, |text| text.contains("ready").then_some(())).unwrap();
        child.stop_within(Duration::from_millis(20)).unwrap();
        assert_eq!(child.ended().unwrap().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let interrupt = Interrupt::unset();
        let mut child = sh("exec sleep 1000");
        interrupt.set(2);
        let err = child.wait_success(&interrupt, LONG, |_| ()).unwrap_err();
        assert_eq!(err.exit_code(), 130);
    }

    #[test]
    fn a_signal_kills_a_child_that_ignores_sigterm_without_delay() {
        let interrupt = Interrupt::unset();
        let mut child = sh("trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000");
        let sleeper =
            child.wait_output(&interrupt, LONG, |text| text.lines().next().map(str::to_owned)).unwrap();
        interrupt.set(2);
        assert_eq!(child.wait_success(&interrupt, LONG, |_| ()).unwrap_err().exit_code(), 130);
        let began = Instant::now();
        drop(child);
        assert!(began.elapsed() < GRACE, "{:?}", began.elapsed());
        assert!(!exists(&sleeper));
    }

    #[test]
    fn the_error_for_a_missing_program_names_it() {
        let what = Invocation::new("/nonexistent/program");
        let err = match Guarded::spawn(&what, &env::temp_dir()) {
            Err(err) => err,
            // With setpriv, the lookup of the program happens after the fork.
            Ok(mut child) => child.wait_success(&Interrupt::unset(), LONG, |_| ()).unwrap_err(),
        };
        let text = err.to_string();
        assert!(text.contains("/nonexistent/program") || text.contains("program:"), "{text}");
        assert!(text.contains("No such file or directory"), "{text}");
    }
}
