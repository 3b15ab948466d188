//! rfs and its null file system: runs `rfs-server` and `rfs-fuse` as a user would.
//!
//! Both are guarded children in the foreground. The socket and the mount point are in a private
//! directory, and the server selects a free TCP port. So several harnesses can run at the same
//! time.

use std::{env, path::Path, time::Duration};

use super::{
    Running, Setup, Side, Target, WorkDir,
    running_mounts::{START, Started},
};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};

/// Transport of file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Shared memory, set up over a Unix socket.
    Shm,
    /// TCP over loopback.
    Tcp,
    /// RDMA, from a device to itself.
    Rdma,
    /// None: the FUSE process copies to and from its own memory.
    Null,
}

impl Provider {
    /// Returns the prefix of its addresses.
    fn scheme(self) -> &'static str {
        match self {
            Provider::Shm | Provider::Null => "unix:",
            Provider::Tcp => "tcp:",
            Provider::Rdma => "rdma:",
        }
    }

    /// Returns the name in tables and for `rfs-fuse`.
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
    /// Address of the external server.
    connect: Option<String>,
}

impl Rfs {
    /// Returns rfs over this provider. Fails if there are external servers but none for this
    /// provider.
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

    /// Returns true if the server requires keys or an explicit option to listen for this provider.
    fn provider_needs_consent(&self) -> bool {
        matches!(self.provider, Provider::Tcp | Provider::Rdma)
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
            .args(self.provider_needs_consent().then_some("--allow-without-keys"))
            .args(self.setup.switches.prefault.then_some("--prefault"))
            .args(self.setup.inodes.map(|inodes| format!("--inodes={inodes}")));
        let mut server = Guarded::spawn(&command, work.path())?;
        // Prefaulting takes time: 256 MiB per second on the slowest machine.
        let limit = START + Duration::from_secs(self.setup.server_memory >> 28);
        let addresses = server.wait_output(interrupt, limit, ready)?;
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

/// Returns the addresses of `listening on ADDRESS` lines, after a line that begins with `ready:`.
pub(super) fn ready(text: &str) -> Option<Vec<String>> {
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

    fn side(&self) -> Side {
        match self.provider {
            Provider::Null => Side::Ceiling,
            Provider::Shm | Provider::Tcp | Provider::Rdma => Side::Ours,
        }
    }

    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>> {
        let work = WorkDir::new(&env::temp_dir())?;
        // From here on, an early return drops `started`, which ends and removes everything that
        // exists.
        let mut started = Started::new(work, self.connect.clone());
        if self.provider != Provider::Null && self.connect.is_none() {
            let (server, address, line) = self.server(started.work(), interrupt)?;
            started.serve(server, address, line);
        }
        for n in 0..self.setup.mounts {
            let point = started.work().subdir(&format!("mnt{n}"))?;
            let command = self.mount_command(started.server(), &point);
            started.mount(command, point, interrupt)?;
        }
        Ok(Box::new(started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Places, Switches};

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
