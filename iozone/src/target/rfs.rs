//! rfs itself, and its null file system: `rfs-server` and `rfs-fuse` as a user would start them.
//!
//! Both run in the foreground as guarded children. The socket and the mount point are in a private directory
//! and the TCP port is one that the server picks, so several harnesses can run at once.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Running, Setup, Target};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    mount,
    process::{Guarded, Invocation},
    workdir::WorkDir,
};

/// How long a server or a mount may take to become ready.
const START: Duration = Duration::from_secs(20);
/// How long a mount may take to end by itself once it is unmounted, before it is told to.
const UNMOUNTED: Duration = Duration::from_secs(3);

/// How file data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Shared memory, agreed on over a Unix socket.
    Shm,
    /// TCP over loopback.
    Tcp,
    /// Not at all: the FUSE process copies into and out of its own memory.
    Null,
}

/// rfs over one provider.
#[derive(Debug)]
pub struct Rfs {
    provider: Provider,
    setup: Setup,
}

impl Rfs {
    /// rfs over that provider.
    pub fn new(provider: Provider, setup: Setup) -> Self {
        Self { provider, setup }
    }

    fn server(&self, work: &WorkDir, interrupt: &Interrupt) -> Result<(Guarded, String, String)> {
        let listen = match self.provider {
            Provider::Tcp => "tcp:127.0.0.1:0".to_owned(),
            _ => format!("unix:{}", work.path().join("server.sock").display()),
        };
        let command = Invocation::new(self.setup.bin_dir.join("rfs-server"))
            .args([
                "--memory".to_owned(),
                self.setup.server_memory.to_string(),
                "--listen".to_owned(),
                listen,
            ])
            .args(self.setup.switches.prefault.then_some("--prefault"));
        let mut server = Guarded::spawn(&command, work.path())?;
        let addresses = server.wait_output(interrupt, START, ready)?;
        let scheme = if self.provider == Provider::Tcp { "tcp:" } else { "unix:" };
        let address = addresses
            .into_iter()
            .find(|address| address.starts_with(scheme))
            .ok_or_else(|| server.failure(&format!("ready, but on no {scheme} address")))?;
        Ok((server, address, command.line()))
    }

    fn mount_command(&self, address: Option<&str>, point: &Path) -> Invocation {
        let command = Invocation::new(self.setup.bin_dir.join("rfs-fuse"));
        match (self.provider, address) {
            (Provider::Null, _) | (_, None) => {
                command.arg("--null").arg(point).args(self.setup.switches.fuse_args())
            }
            (provider, Some(address)) => command
                .arg(address)
                .arg(point)
                .args(["--stats-on-exit", "--provider"])
                .arg(if provider == Provider::Tcp { "tcp" } else { "shm" })
                .args(self.setup.switches.all_args()),
        }
    }
}

/// Addresses of `listening on ADDRESS` lines, once a line that starts with `ready:` has come.
fn ready(text: &str) -> Option<Vec<String>> {
    let end = text.lines().position(|line| line.starts_with("ready:"))?;
    Some(
        text.lines()
            .take(end)
            .filter_map(|line| line.strip_prefix("listening on "))
            .map(|address| address.trim().to_owned())
            .collect(),
    )
}

impl Target for Rfs {
    fn name(&self) -> &str {
        match self.provider {
            Provider::Shm => "shm",
            Provider::Tcp => "tcp",
            Provider::Null => "null",
        }
    }

    fn title(&self) -> &str {
        match self.provider {
            Provider::Shm => "rfs over shared memory",
            Provider::Tcp => "rfs over TCP on loopback",
            Provider::Null => "a FUSE file system that only copies: the ceiling behind FUSE",
        }
    }

    fn is_ceiling(&self) -> bool {
        self.provider == Provider::Null
    }

    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>> {
        let work = WorkDir::new(&env::temp_dir())?;
        let point = work.subdir("mnt")?;
        // From here on an early return drops `started`, which ends and removes what exists already.
        let mut started = Started { fuse: None, server: None, point, work, commands: Vec::new() };
        let mut address = None;
        if self.provider != Provider::Null {
            let (server, found, line) = self.server(&started.work, interrupt)?;
            started.server = Some(server);
            started.commands.push(line);
            address = Some(found);
        }
        let command = self.mount_command(address.as_deref(), &started.point);
        started.commands.push(command.line());
        let fuse = started.fuse.insert(Guarded::spawn(&command, started.work.path())?);
        // It says so only when the mount has answered and the read-ahead is set.
        fuse.wait_output(interrupt, START, |text| text.contains(" is mounted on ").then_some(()))?;
        if !mount::is_mounted(&started.point)? {
            return Err(fuse.failure("says that it is mounted, but nothing is"));
        }
        Ok(Box::new(started))
    }
}

/// A mount and what is behind it. Fields are in the order in which they must go.
#[derive(Debug)]
struct Started {
    fuse: Option<Guarded>,
    server: Option<Guarded>,
    point: PathBuf,
    work: WorkDir,
    commands: Vec<String>,
}

impl Started {
    /// Unmounts, then ends both programs, then removes the directory. Goes on after a failure; the first one is
    /// the result. Otherwise the result is what `rfs-fuse` has printed, with its counters.
    fn shut_down(&mut self) -> Result<String> {
        let unmounted = mount::unmount(&self.point);
        let mut said = String::new();
        let fuse = self.fuse.take().map_or(Ok(()), |mut fuse| {
            let ended = fuse.wait_end(UNMOUNTED);
            let stopped = fuse.stop();
            said = fuse.stdout.text();
            ended.map(|_| ()).and(stopped)
        });
        let server = self.server.take().map_or(Ok(()), |mut server| server.stop());
        let removed = self.work.remove();
        // A mount that could not go while its program hung is gone with it: removal looks again.
        let unmounted = if removed.is_ok() { Ok(()) } else { unmounted };
        unmounted.and(fuse).and(server).and(removed).map(|()| said)
    }
}

impl Running for Started {
    fn mountpoint(&self) -> &Path {
        &self.point
    }

    fn commands(&self) -> Vec<String> {
        self.commands.clone()
    }

    fn explain(&mut self, error: Error) -> Error {
        let mut told = error.to_string();
        let mut dead = false;
        for child in [&mut self.fuse, &mut self.server].into_iter().flatten() {
            if matches!(child.ended(), Ok(Some(_))) {
                dead = true;
                told = format!("{told}\n  {}", child.failure("ended"));
            }
        }
        if dead { Error::Child { program: "the run".into(), what: told } } else { error }
    }

    fn stop(mut self: Box<Self>) -> Result<String> {
        self.shut_down()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Err(err) = self.shut_down() {
            eprintln!("rfs-iozone: {err}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Switches;

    fn rfs(provider: Provider) -> Rfs {
        let switches =
            Switches { batch: Some("none".into()), max_write: Some("128k".into()), ..Switches::default() };
        Rfs::new(
            provider,
            Setup { bin_dir: "/bin".into(), switches, server_memory: 1, tmpfs_dir: "/".into(), files: 1 },
        )
    }

    #[test]
    fn the_server_s_lines_are_read() {
        let text = "listening on unix:/tmp/x\nlistening on tcp:127.0.0.1:7440\nready: 1 GiB\n";
        assert_eq!(ready(text).unwrap(), ["unix:/tmp/x", "tcp:127.0.0.1:7440"]);
        assert_eq!(ready("listening on unix:/tmp/x\n"), None);
        assert_eq!(ready(""), None);
    }

    #[test]
    fn mount_command_lines() {
        let point = Path::new("/m");
        assert_eq!(
            rfs(Provider::Tcp).mount_command(Some("tcp:127.0.0.1:9"), point).line(),
            "/bin/rfs-fuse tcp:127.0.0.1:9 /m --stats-on-exit --provider tcp --batch none --max-write 128k"
        );
        assert_eq!(
            rfs(Provider::Null).mount_command(None, point).line(),
            "/bin/rfs-fuse --null /m --max-write 128k"
        );
    }
}
