//! Simulated hosts with links of a limited rate: network namespaces on a bridge.
//!
//! A [`Network`] has a client and a number of hosts, each with a network namespace of its own. The
//! link of a host has a limit in each direction, which HTB enforces; the client has none. A
//! namespace belongs to a child process and ends with it, so nothing stays behind.
//!
//! HTB lets a link that was idle send [`BURST`] bytes at once, which is one packet of TCP's
//! segmentation offload. The limit counts the headers of Ethernet, IP and TCP.
//!
//! # Concurrency
//! The main thread, which starts the children.

use std::{fs::File, os::fd::AsFd, path::Path, time::Duration};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    Error, Result,
    interrupt::Interrupt,
    machine::Congestion,
    process::{Guarded, Invocation},
};

/// Bytes that an idle link may send at once: the largest packet before segmentation.
pub const BURST: u64 = 64 << 10;

/// Name of the bridge in the namespace of the client.
const BRIDGE: &str = "hub";
/// Address of the client.
const CLIENT: &str = "10.78.0.254";
/// Name of the interface in the namespace of a host.
const LINK: &str = "eth0";
/// Limit of a command that sets up the network.
const LIMIT: Duration = Duration::from_secs(20);

/// The namespaces. Drop ends them; programs that still run in them keep theirs until they end.
#[derive(Debug)]
pub struct Network {
    client: Guarded,
    hosts: Vec<Guarded>,
}

impl Network {
    /// Makes a network of `hosts` hosts, at most 200, and a client, without limits.
    ///
    /// # Errors
    /// The user is not root, or the machine lacks a program or a part of the kernel.
    pub fn new(hosts: usize, interrupt: &Interrupt) -> Result<Network> {
        if hosts > 200 {
            return Err(Error::Usage(format!("{hosts} simulated hosts: at most 200 have addresses")));
        }
        let network = Network {
            client: namespace(interrupt)?,
            hosts: (0..hosts).map(|_| namespace(interrupt)).collect::<Result<_>>()?,
        };
        let client = &network.client;
        for command in [
            "ip link set lo up".to_owned(),
            format!("ip link add {BRIDGE} type bridge"),
            format!("ip address add {CLIENT}/24 dev {BRIDGE}"),
            format!("ip link set {BRIDGE} up"),
        ] {
            run(client, &command, interrupt)?;
        }
        for (n, host) in network.hosts.iter().enumerate() {
            let (port, address, id) = (port(n), network.address(n), host.id());
            run(client, &format!("ip link add {port} type veth peer name {LINK} netns {id}"), interrupt)?;
            run(client, &format!("ip link set {port} master {BRIDGE} up"), interrupt)?;
            run(host, "ip link set lo up", interrupt)?;
            run(host, &format!("ip address add {address}/24 dev {LINK}"), interrupt)?;
            run(host, &format!("ip link set {LINK} up"), interrupt)?;
        }
        network.set_congestion_control(interrupt)?;
        Ok(network)
    }

    /// Gives all connections the congestion control of this process's network namespace. A new
    /// namespace would have the default of the machine. BBR stays out: programs that replace it
    /// would get it back.
    fn set_congestion_control(&self, interrupt: &Interrupt) -> Result<()> {
        let Congestion { system: name, .. } = Congestion::here();
        if name == "bbr" || name == "unknown" {
            return Ok(());
        }
        let hosts = self.hosts.iter().map(|host| (host, LINK));
        for (namespace, device) in hosts.chain([(&self.client, BRIDGE)]) {
            run(namespace, &format!("ip route replace 10.78.0.0/24 dev {device} congctl {name}"), interrupt)?;
        }
        Ok(())
    }

    /// Returns the address of a host.
    pub fn address(&self, host: usize) -> String {
        format!("10.78.0.{}", host + 1)
    }

    /// Limits the links of all hosts to `bytes` bytes per second in each direction.
    ///
    /// # Errors
    /// The kernel has no HTB, or there is no `tc`.
    pub fn limit(&self, bytes: u64, interrupt: &Interrupt) -> Result<()> {
        for (n, host) in self.hosts.iter().enumerate() {
            for (namespace, device) in [(host, LINK.to_owned()), (&self.client, port(n))] {
                for command in limit(&device, bytes) {
                    run(namespace, &command, interrupt)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the address of the client.
    pub fn client_address(&self) -> &'static str {
        CLIENT
    }

    /// Moves this thread to the network of the client, and all threads and processes that it starts
    /// later.
    ///
    /// # Errors
    /// The namespace of the client is gone.
    pub fn enter(&self) -> Result<()> {
        let path = format!("/proc/{}/ns/net", self.client.id());
        let namespace = File::open(&path).map_err(Error::io(&path))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| Error::io("setns")(e.into()))
    }

    /// Returns a command that runs in the network of the client.
    pub fn at_client(&self, command: &Invocation) -> Invocation {
        enter(&self.client, command)
    }

    /// Returns a command that runs in the network of a host.
    pub fn at_host(&self, host: usize, command: &Invocation) -> Invocation {
        enter(&self.hosts[host], command)
    }
}

/// Returns the name of the bridge's interface to a host.
fn port(host: usize) -> String {
    format!("host{host}")
}

/// Returns the commands that limit the rate of a device.
fn limit(device: &str, bytes: u64) -> [String; 2] {
    [
        format!("tc qdisc replace dev {device} root handle 1: htb default 1"),
        format!(
            "tc class replace dev {device} parent 1: classid 1:1 htb rate {}bit burst {BURST} cburst {BURST} \
             quantum {BURST}",
            bytes.saturating_mul(8)
        ),
    ]
}

/// Starts a process that holds a new namespace.
fn namespace(interrupt: &Interrupt) -> Result<Guarded> {
    let hold = Invocation::new("unshare").args(["--net", "sh", "-c", "echo ready; exec sleep infinity"]);
    let hold = Invocation { name: "a network namespace (needs root and unshare)".into(), ..hold };
    let mut holder = Guarded::spawn(&hold, Path::new("/"))?;
    holder.wait_output(interrupt, LIMIT, |text| text.starts_with("ready").then_some(()))?;
    Ok(holder)
}

/// Returns a command that runs in the network namespace that a file names, such as
/// `/proc/PID/ns/net`, and shares everything else.
pub fn in_namespace(namespace: &str, command: &Invocation) -> Invocation {
    let entered = Invocation::new("nsenter")
        .arg(format!("--net={namespace}"))
        .arg("--")
        .arg(&command.program)
        .args(&command.args);
    Invocation { name: command.name.clone(), ..entered }
}

/// Returns a command that runs in the namespace of a process.
fn enter(holder: &Guarded, command: &Invocation) -> Invocation {
    in_namespace(&format!("/proc/{}/ns/net", holder.id()), command)
}

/// Runs a command, given as words without spaces, in a namespace.
fn run(holder: &Guarded, command: &str, interrupt: &Interrupt) -> Result<()> {
    let mut words = command.split(' ');
    let command = Invocation::new(words.next().unwrap_or_default()).args(words);
    Guarded::spawn(&enter(holder, &command), Path::new("/"))?.wait_success(interrupt, LIMIT, |_| ())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a rate in bytes where `tc` wants bits.
    #[test]
    fn a_limit_is_given_in_bits() {
        let [_, class] = limit("eth0", 100_000_000);
        assert!(class.contains(" rate 800000000bit burst 65536 "), "{class}");
    }

    /// Catches a link that is not limited in one of its directions. Needs root and HTB; without
    /// them the network says so.
    #[test]
    fn a_host_s_link_has_its_limit_in_both_directions() {
        let interrupt = Interrupt::unset();
        let made = Network::new(2, &interrupt)
            .and_then(|network| network.limit(5_000_000, &interrupt).map(|()| network));
        let network = match made {
            Ok(network) => network,
            Err(error) => {
                eprintln!("not run: {error}");
                return;
            }
        };
        let shows = |command: Invocation| {
            let mut child = Guarded::spawn(&command, Path::new("/")).expect("tc");
            child.wait_success(&interrupt, LIMIT, |_| ()).expect("tc")
        };
        let show = |device: &str| Invocation::new("tc").args(["class", "show", "dev", device]);
        for n in 0..2 {
            for text in [shows(network.at_host(n, &show(LINK))), shows(network.at_client(&show(&port(n))))] {
                assert!(text.contains("rate 40Mbit"), "{text}");
            }
        }
        let address = Invocation::new("ip").args(["address", "show", "dev", LINK]);
        assert!(shows(network.at_host(1, &address)).contains("10.78.0.2/24"));
    }
}
