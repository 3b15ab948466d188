//! rfs itself, and its null file system: `rfs-server` and `rfs-fuse` as a user would start them.
//!
//! Both run in the foreground as guarded children. The socket and the mount point are in a private directory
//! and the TCP port is one that the server picks, so several harnesses can run at once.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Process, Running, Setup, Target, with_dead};
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
    /// RDMA, from a device to itself.
    Rdma,
    /// Not at all: the FUSE process copies into and out of its own memory.
    Null,
}

impl Provider {
    /// What its addresses begin with.
    fn scheme(self) -> &'static str {
        match self {
            Provider::Shm | Provider::Null => "unix:",
            Provider::Tcp => "tcp:",
            Provider::Rdma => "rdma:",
        }
    }

    /// Its name in tables and for `rfs-fuse`.
    fn name(self) -> &'static str {
        match self {
            Provider::Shm => "shm",
            Provider::Tcp => "tcp",
            Provider::Rdma => "rdma",
            Provider::Null => "null",
        }
    }
}

/// rfs over one provider.
#[derive(Debug)]
pub struct Rfs {
    provider: Provider,
    setup: Setup,
    title: String,
    /// Of the server elsewhere.
    connect: Option<String>,
}

impl Rfs {
    /// rfs over that provider. Fails if there are servers elsewhere and none of them is for it.
    pub fn new(provider: Provider, setup: Setup) -> Result<Self> {
        let scheme = provider.scheme();
        let of_it = |address: &&String| provider != Provider::Null && address.starts_with(scheme);
        let connect = setup.connect.iter().find(of_it).cloned();
        if provider != Provider::Null && connect.is_none() && !setup.connect.is_empty() {
            let name = provider.name();
            return Err(Error::Usage(format!(
                "{name} is to be measured, and no --connect {scheme}... says where"
            )));
        }
        let title = match (&connect, provider) {
            (Some(address), _) => format!("rfs on the server at {address}"),
            (None, Provider::Shm) => "rfs over shared memory".into(),
            (None, Provider::Tcp) => "rfs over TCP on loopback".into(),
            (None, Provider::Rdma) => "rfs over RDMA, from a device to itself".into(),
            (None, Provider::Null) => "a FUSE file system that only copies: the ceiling behind FUSE".into(),
        };
        Ok(Self { provider, setup, title, connect })
    }

    fn server(&self, work: &WorkDir, interrupt: &Interrupt) -> Result<(Guarded, String, String)> {
        let listen = match self.provider {
            Provider::Tcp | Provider::Rdma => format!("{}127.0.0.1:0", self.provider.scheme()),
            Provider::Shm | Provider::Null => format!("unix:{}", work.path().join("server.sock").display()),
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
        let scheme = self.provider.scheme();
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
                .arg(provider.name())
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
        self.provider.name()
    }

    fn title(&self) -> &str {
        &self.title
    }

    fn is_ceiling(&self) -> bool {
        self.provider == Provider::Null
    }

    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>> {
        let work = WorkDir::new(&env::temp_dir())?;
        let point = work.subdir("mnt")?;
        // From here on an early return drops `started`, which ends and removes what exists already.
        let mut started = Started {
            fuse: None,
            server: None,
            address: self.connect.clone(),
            mount: None,
            point,
            work,
            commands: Vec::new(),
        };
        if self.provider != Provider::Null && started.address.is_none() {
            let (server, found, line) = self.server(&started.work, interrupt)?;
            started.server = Some(server);
            started.commands.push(line);
            started.address = Some(found);
        }
        let command = self.mount_command(started.address.as_deref(), &started.point);
        started.commands.push(command.line());
        started.mount(&command, interrupt)?;
        // Without a server its files are in the process behind the mount.
        started.mount = started.address.is_some().then_some(command);
        Ok(Box::new(started))
    }
}

/// A mount and what is behind it. Fields are in the order in which they must go.
#[derive(Debug)]
struct Started {
    fuse: Option<Guarded>,
    server: Option<Guarded>,
    /// The server's.
    address: Option<String>,
    /// What mounts it again.
    mount: Option<Invocation>,
    point: PathBuf,
    work: WorkDir,
    commands: Vec<String>,
}

impl Started {
    fn mount(&mut self, command: &Invocation, interrupt: &Interrupt) -> Result<()> {
        let fuse = self.fuse.insert(Guarded::spawn(command, self.work.path())?);
        // It says so only when the mount has answered and the read-ahead is set.
        fuse.wait_output(interrupt, START, |text| text.contains(" is mounted on ").then_some(()))?;
        match mount::is_mounted(&self.point)? {
            true => Ok(()),
            false => Err(fuse.failure("says that it is mounted, but nothing is")),
        }
    }

    /// Unmounts and ends the program behind the mount; with what it has printed. Whether the mount is gone, and whether the
    /// program has ended as it should.
    fn unmount(&mut self) -> (Result<()>, Result<()>, String) {
        let unmounted = mount::unmount(&self.point);
        let mut said = String::new();
        let fuse = self.fuse.take().map_or(Ok(()), |mut fuse| {
            let ended = fuse.wait_end(UNMOUNTED);
            let stopped = fuse.stop();
            said = fuse.stdout.text();
            ended.map(|_| ()).and(stopped)
        });
        (unmounted, fuse, said)
    }

    /// Unmounts, then ends both programs, then removes the directory. Goes on after a failure; the first one is
    /// the result. Otherwise the result is what `rfs-fuse` has printed, with its counters.
    fn shut_down(&mut self) -> Result<String> {
        let (unmounted, fuse, said) = self.unmount();
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

    fn processes(&self) -> Vec<Process> {
        let server = self.server.iter().map(|server| Process::Server(server.id()));
        self.fuse.iter().map(|fuse| Process::Client(fuse.id())).chain(server).collect()
    }

    fn remount(&mut self, interrupt: &Interrupt) -> Result<bool> {
        let Some(command) = self.mount.clone() else { return Ok(false) };
        let (unmounted, ended, _) = self.unmount();
        unmounted.and(ended)?;
        self.mount(&command, interrupt).map(|()| true)
    }

    fn server(&self) -> Option<&str> {
        self.address.as_deref()
    }

    fn explain(&mut self, error: Error) -> Error {
        with_dead(error, self.fuse.iter_mut().chain(&mut self.server))
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
    use crate::{cli::Switches, places::Places};

    fn rfs(provider: Provider) -> Rfs {
        rfs_at(provider, &[]).unwrap()
    }

    fn rfs_at(provider: Provider, connect: &[&str]) -> Result<Rfs> {
        let switches =
            Switches { batch: Some("none".into()), max_write: Some("128k".into()), ..Switches::default() };
        let places = Places { bin_dir: Some("/bin".into()), tmpfs_dir: "/".into() };
        Rfs::new(
            provider,
            Setup {
                switches,
                connect: connect.iter().map(|address| (*address).to_owned()).collect(),
                ..Setup::at(&places).unwrap()
            },
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
    fn a_server_elsewhere_is_the_one_with_the_providers_address() {
        let connect = ["tcp:h:1", "rdma:h:2"];
        let there = |provider| rfs_at(provider, &connect).map(|rfs| rfs.connect);
        assert_eq!(there(Provider::Rdma).unwrap().as_deref(), Some("rdma:h:2"));
        assert_eq!(there(Provider::Tcp).unwrap().as_deref(), Some("tcp:h:1"));
        assert_eq!(there(Provider::Null).unwrap(), None);
        let error = there(Provider::Shm).unwrap_err();
        assert_eq!(error.to_string(), "shm is to be measured, and no --connect unix:... says where");
        assert_eq!(rfs(Provider::Shm).connect, None);
        assert_eq!(rfs_at(Provider::Rdma, &connect).unwrap().title(), "rfs on the server at rdma:h:2");
    }

    #[test]
    fn mount_command_lines() {
        let point = Path::new("/m");
        assert_eq!(
            rfs(Provider::Tcp).mount_command(Some("tcp:127.0.0.1:9"), point).line(),
            "/bin/rfs-fuse tcp:127.0.0.1:9 /m --stats-on-exit --provider tcp --batch none --max-write 128k"
        );
        assert_eq!(
            rfs(Provider::Rdma).mount_command(Some("rdma:127.0.0.1:9"), point).line(),
            "/bin/rfs-fuse rdma:127.0.0.1:9 /m --stats-on-exit --provider rdma --batch none --max-write 128k"
        );
        assert_eq!(
            rfs(Provider::Null).mount_command(None, point).line(),
            "/bin/rfs-fuse --null /m --max-write 128k"
        );
    }
}
