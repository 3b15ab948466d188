//! Children that cannot be left behind.
//!
//! A [`Guarded`] child has its own process group (so that Ctrl-C in the terminal reaches the harness only, and
//! so that a child's own children end with it), dies with the harness even if that is killed (`setpriv
//! --pdeathsig`, where util-linux has it), and is terminated, then killed, then waited for on drop.
//!
//! Threading: two helper threads per child drain its pipes into bounded buffers; they end with the pipes.
//! Children are started by the main thread only, because the death signal follows the thread that forked.

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

/// How long a child may take from SIGTERM to its end before SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long the kernel may take to end a killed child.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// Kept output of a child, in bytes.
const KEEP: usize = 256 * 1024;

/// What a child has written to one pipe so far; the oldest bytes go first when it is long.
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
        // Bytes are appended whole: a panic elsewhere cannot have left them half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that is kept, as text.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.lock().iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines, for an error message.
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
    /// A program without arguments, named after its file.
    pub fn new(program: impl Into<OsString>) -> Self {
        let program = program.into();
        let name = Path::new(&program).file_name().unwrap_or(&program).to_string_lossy().into_owned();
        Self { name, program, args: Vec::new() }
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// With more arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// As one line, for logs and reports.
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
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
}

impl Guarded {
    /// Starts a child in a process group of its own, working in `dir`.
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
        Ok(Self { name: what.name.clone(), child, group, status: None, drains, stdout, stderr })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status if the child has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(Error::io(&self.name))?;
        }
        Ok(self.status)
    }

    /// An error that says how the child ended or what it failed to do, with its last lines.
    pub fn failure(&mut self, what: &str) -> Error {
        let how = match self.ended().ok().flatten() {
            Some(status) => {
                // Its last words are in the pipe: the drains end when it is empty.
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

    /// Waits until `ready` finds what it looks for in standard output. The child's end before that, the end of
    /// the time and a signal are errors.
    pub fn wait_output<T>(
        &mut self,
        interrupt: &Interrupt,
        limit: Duration,
        ready: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let found = interrupt.wait(limit, || {
            let ended = self.ended()?.is_some();
            match ready(&self.stdout.text()) {
                Some(found) => Ok(Some(found)),
                None if ended => Err(self.failure("ended")),
                None => Ok(None),
            }
        })?;
        found.ok_or_else(|| self.failure(&format!("not ready after {} s", limit.as_secs())))
    }

    /// Waits for a successful end. `tick` sees standard output from time to time.
    pub fn wait_success(
        &mut self,
        interrupt: &Interrupt,
        limit: Duration,
        mut tick: impl FnMut(&str),
    ) -> Result<String> {
        let status = interrupt.wait(limit, || {
            tick(&self.stdout.text());
            self.ended()
        })?;
        match status {
            Some(status) if status.success() => {
                self.join();
                Ok(self.stdout.text())
            }
            _ => Err(self.failure(&format!("no end after {} s", limit.as_secs()))),
        }
    }

    /// Waits for the child to end by itself, however it does; `None` if it does not.
    pub fn wait_end(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        // Part of cleanup: it does not look at the interrupt flag.
        Interrupt::unset().wait(limit, || self.ended())
    }

    /// Ends the child and whatever is left of its process group: SIGTERM, some seconds, SIGKILL, wait.
    pub fn stop(&mut self) -> Result<()> {
        self.stop_within(GRACE)
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
                        "process {id} ({name}) is killed, but ends only when what it waits for does"
                    )));
                }
            }
        }
        self.join();
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The only error is that nobody is left in the group, which is the aim.
            let _ = kill_process_group(group, signal);
        }
    }

    /// The child has been waited for and its group is empty.
    fn gone(&mut self) -> Result<bool> {
        Ok(self.ended()?.is_some() && self.group.is_none_or(|group| test_kill_process_group(group).is_err()))
    }

    fn wait_gone(&mut self, limit: Duration) -> Result<bool> {
        // Cleanup runs to its end: it does not look at the interrupt flag.
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
            // A drain only appends bytes: it has nothing to report.
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
    fn output_is_waited_for() {
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
    fn an_early_end_is_told_with_the_last_lines() {
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
    fn a_stubborn_child_is_killed() {
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
    fn a_missing_program_is_one_line() {
        let what = Invocation::new("/nonexistent/program");
        let err = match Guarded::spawn(&what, &env::temp_dir()) {
            Err(err) => err,
            // With setpriv in front the program is looked for after the fork.
            Ok(mut child) => child.wait_success(&Interrupt::unset(), LONG, |_| ()).unwrap_err(),
        };
        let text = err.to_string();
        assert!(text.contains("/nonexistent/program") || text.contains("program:"), "{text}");
        assert!(text.contains("No such file or directory"), "{text}");
    }
}
