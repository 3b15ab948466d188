//! Two simulated hosts: network namespaces with a link that can lose packets.
//!
//! Packets are dropped on ingress. If the sender's own interface dropped them, the sender would
//! notice and retransmit earlier than in a real loss. A classic BPF program selects the packets at
//! random. Every kernel with `cls_bpf` supports classic BPF, and `tc` accepts the program as
//! numbers.

use std::path::Path;

use measure::{network::in_namespace, process::Invocation};

use super::processes::succeed;
use crate::error::{Error, Result};

/// Name of the link's interface in both namespaces.
const LINK: &str = "eth0";
/// Maximum packet size in bytes, as on most networks.
const MTU: &str = "1500";
/// `A = random`, of linux/filter.h: BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + SKF_AD_RANDOM.
const LOAD_RANDOM: &str = "32 0 0 4294963256";
/// BPF_JMP | BPF_JGE | BPF_K.
const JUMP_UNLESS_LESS: &str = "53 0 1";
/// BPF_RET with TC_ACT_SHOT.
const DROP: &str = "6 0 0 2";
/// BPF_RET with TC_ACT_OK.
const PASS: &str = "6 0 0 0";

/// One of the two simulated hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// The host of the server.
    Server,
    /// The host at the other end of the link.
    Client,
}

const HOSTS: [Host; 2] = [Host::Server, Host::Client];

impl Host {
    /// Returns the address of the host on the link.
    pub(crate) fn address(self) -> &'static str {
        match self {
            Host::Server => "10.77.0.1",
            Host::Client => "10.77.0.2",
        }
    }
}

/// The two namespaces. Drop deletes them.
#[derive(Debug)]
pub(crate) struct Network {
    names: [String; 2],
}

impl Network {
    /// Creates the namespaces and their link.
    ///
    /// # Errors
    /// [`Error::Missing`] if the machine or the user's rights lack something.
    pub(crate) fn make() -> Result<Network> {
        let network =
            Network { names: ["server", "client"].map(|name| format!("rfs-{}-{name}", std::process::id())) };
        network
            .set_up()
            .map_err(|e| Error::Missing(format!("two network namespaces, and loss between them: {e}")))?;
        Ok(network)
    }

    fn set_up(&self) -> Result<()> {
        let [server, client] = &self.names;
        let link = [
            "link", "add", LINK, "mtu", MTU, "netns", server, "type", "veth", "peer", LINK, "mtu", MTU,
            "netns", client,
        ];
        ip(["netns", "add", server])?;
        ip(["netns", "add", client])?;
        ip(link)?;
        for host in HOSTS {
            let name = self.name(host);
            let address = format!("{}/24", host.address());
            ip(["-n", name, "link", "set", "lo", "up"])?;
            ip(["-n", name, "address", "add", &address, "dev", LINK])?;
            // Without this limit, the kernel would pass, and drop, segments of up to 64 KiB as one
            // packet.
            ip(["-n", name, "link", "set", LINK, "gso_max_segs", "1", "up"])?;
            succeed(&Invocation::new("tc").args(["-n", name, "qdisc", "add", "dev", LINK, "clsact"]))?;
        }
        // Try the filter now, so that a missing feature is reported before the trial begins.
        let tried = format!("{} && {}", self.losing(1), self.healing());
        succeed(&Invocation::new("sh").args(["-c", &tried]))
    }

    fn name(&self, host: Host) -> &str {
        &self.names[host as usize]
    }

    /// Returns a command that runs in the network namespace of a host and shares everything else.
    pub(crate) fn at(&self, host: Host, command: &Invocation) -> Invocation {
        in_namespace(&format!("/run/netns/{}", self.name(host)), command)
    }

    /// Returns a shell command that makes both hosts lose `percent` percent of the packets.
    pub(crate) fn losing(&self, percent: u32) -> String {
        let program = program(percent);
        HOSTS
            .map(|host| {
                let name = self.name(host);
                format!(
                    "tc -n {name} filter replace dev {LINK} ingress prio 1 handle 1 bpf da bytecode '{program}'"
                )
            })
            .join(" && ")
    }

    /// Returns a shell command that ends the loss.
    pub(crate) fn healing(&self) -> String {
        HOSTS.map(|host| format!("tc -n {} filter delete dev {LINK} ingress", self.name(host))).join(" && ")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            if Path::new("/run/netns").join(name).exists()
                && let Err(e) = ip(["netns", "delete", name])
            {
                eprintln!("rfs-reliability: cannot delete network namespace {name}: {e}");
            }
        }
    }
}

/// Returns a BPF program that drops `percent` percent of the packets.
fn program(percent: u32) -> String {
    if percent >= 100 {
        return format!("1,{DROP}");
    }
    let limit = u64::from(100 - percent) * (1 << 32) / 100;
    format!("4,{LOAD_RANDOM},{JUMP_UNLESS_LESS} {limit},{DROP},{PASS}")
}

fn ip<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
    succeed(&Invocation::new("ip").args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets a program like the kernel and returns its verdict, given the kernel's random
    /// number.
    fn run(program: &str, random: u32) -> u32 {
        let mut words = program.split(',');
        let count: usize = words.next().unwrap().parse().unwrap();
        let code: Vec<[u32; 4]> = words
            .map(|word| {
                let numbers: Vec<u32> = word.split(' ').map(|number| number.parse().unwrap()).collect();
                numbers.try_into().unwrap()
            })
            .collect();
        assert_eq!(code.len(), count);
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let [operation, yes, no, value] = code[at];
            at += 1;
            match operation {
                32 => {
                    assert_eq!(value as i32, -0x1000 + 56);
                    accumulator = random;
                }
                53 => at += if accumulator >= value { yes } else { no } as usize,
                6 => return value,
                other => panic!("instruction {other}"),
            }
        }
    }

    #[test]
    fn the_given_percentage_of_packets_is_dropped() {
        let (drop, pass) = (2, 0);
        assert_eq!([0, 1 << 31, u32::MAX].map(|random| run(&program(100), random)), [drop; 3]);
        let first_dropped = 4_080_218_931;
        assert_eq!(u64::from(first_dropped) * 100 / 95, (1 << 32) - 1);
        assert_eq!(
            [0, first_dropped - 1, first_dropped, u32::MAX].map(|random| run(&program(5), random)),
            [pass, pass, drop, drop]
        );
        assert_eq!(run(&program(1), 0), pass);
    }
}
