//! sshfs, as packaged by Debian, for comparison: a private ssh server on loopback with keys made
//! for the run, and a directory on a tmpfs.

use std::{fs, net::Ipv4Addr, path::Path};

use super::peer::{self, Peer, PeerSystem, START, free_port, invocation};
use crate::{Error, Result, interrupt::Interrupt, process::Guarded};

const ADDRESS: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Directory that Debian's sshd requires and its start script creates.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// sshfs with its files below the directory on a tmpfs.
pub(super) const SSHFS: PeerSystem = PeerSystem {
    name: "sshfs",
    title: "sshfs, a directory on a tmpfs, over ssh on loopback",
    missing,
    start,
};

fn missing() -> Option<String> {
    peer::missing(&["sshfs", "ssh", "sshd", "ssh-keygen"], "sshfs, openssh-client, openssh-server")
}

fn start(tmpfs_dir: &Path, interrupt: &Interrupt) -> Result<Peer> {
    let mut peer = Peer::new(tmpfs_dir)?;
    let work = peer.work().path().to_owned();
    let port = free_port(ADDRESS)?;
    let (host, user) = (work.join("host"), work.join("user"));
    for key in [&host, &user] {
        make_key(key, &work, interrupt)?;
    }
    peer.make(Path::new(PRIVILEGE_SEPARATION))?;
    let config = work.join("sshd_config");
    let text = format!(
        "Port {port}\n\
         ListenAddress {ADDRESS}\n\
         HostKey {host}\n\
         AuthorizedKeysFile {user}.pub\n\
         StrictModes no\n\
         PermitRootLogin prohibit-password\n\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         UsePAM no\n\
         PidFile none\n\
         Subsystem sftp internal-sftp\n",
        host = host.display(),
        user = user.display(),
    );
    fs::write(&config, text).map_err(Error::io(&config))?;
    let server = invocation("sshd").args(["-D", "-e", "-f"]).arg(&config);
    peer.serve(&server, (ADDRESS, port), interrupt)?;
    let option = |name: &str, value: &dyn std::fmt::Display| ["-o".to_owned(), format!("{name}={value}")];
    let client = invocation("sshfs")
        .args(["-f", "-F", "/dev/null"])
        .args(option("port", &port))
        .args(option("IdentityFile", &user.display()))
        .args(option("IdentitiesOnly", &"yes"))
        .args(option("StrictHostKeyChecking", &"no"))
        .args(option("UserKnownHostsFile", &work.join("known").display()))
        .arg(format!("root@{ADDRESS}:{}", peer.store().path().display()));
    peer.mount(client, interrupt)?;
    Ok(peer)
}

fn make_key(path: &Path, dir: &Path, interrupt: &Interrupt) -> Result<()> {
    let command = invocation("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path);
    Guarded::spawn(&command, dir)?.wait_success(interrupt, START, |_| ()).map(|_| ())
}
