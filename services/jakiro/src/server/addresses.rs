//! The addresses of partitions, which follow from the address of the first.
//!
//! Partition `i` of a Unix socket `/run/jakiro.sock` has `/run/jakiro.sock.i`, and of a port `p` it
//! has port `p + i`. Port 0 selects a free port for each partition.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use rdmabox::Address;

/// Returns the address of partition `index`, or `None` if there is no such port.
pub(crate) fn partition_address(first: &Address, index: usize) -> Option<Address> {
    let later_port = |port: u16| match port {
        0 => Some(0),
        port => u16::try_from(usize::from(port) + index).ok(),
    };
    if index == 0 {
        return Some(first.clone());
    }
    match first {
        Address::Unix(path) => {
            let mut name = path.clone().into_os_string();
            name.push(format!(".{index}"));
            Some(Address::Unix(name.into()))
        }
        Address::Tcp { host, port } => Some(Address::Tcp { host: host.clone(), port: later_port(*port)? }),
        Address::Rdma { host, port } => Some(Address::Rdma { host: host.clone(), port: later_port(*port)? }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_have_addresses_one_after_the_other() {
        let of = |first: &str, index| {
            partition_address(&first.parse().unwrap(), index).map(|address| address.to_string())
        };
        assert_eq!(of("/run/x.sock", 0).as_deref(), Some("unix:/run/x.sock"));
        assert_eq!(of("/run/x.sock", 12).as_deref(), Some("unix:/run/x.sock.12"));
        assert_eq!(of("[::1]:7000", 3).as_deref(), Some("tcp:[::1]:7003"));
        assert_eq!(of("rdma:h:7000", 1).as_deref(), Some("rdma:h:7001"));
        assert_eq!(of("h:0", 5).as_deref(), Some("tcp:h:0"));
        assert_eq!(of("h:65535", 1), None);
    }
}
