//! Connects a client to all partitions of a server.
//!
//! # Concurrency
//! The thread of the caller.

use std::sync::Arc;

use rdmabox::{Address, CallsBy, ProviderKind, RequestError, Session, SessionOptions};

use super::{error::ClientError, keyspace::Keyspace};
use crate::{
    protocol::{Hello, Request},
    server::partition_address,
};

/// Connects to the partition at `address`, and to all others of its server.
pub(super) fn connect(address: &Address, options: &SessionOptions) -> Result<Keyspace, ClientError> {
    let first = open(address, options)?;
    let hello = ask(&first, address)?;
    let mut sessions = Vec::new();
    for index in 0..hello.addresses.len() {
        if index == usize::from(hello.partition) {
            sessions.push(Arc::clone(&first));
            continue;
        }
        let other = address_of(address, &hello, index)
            .ok_or_else(|| not_a_server(address, format!("it names no address of partition {index}")))?;
        let session = open(&other, options)?;
        let found = ask(&session, &other)?;
        if (found.seed, usize::from(found.partition)) != (hello.seed, index) {
            let reason = format!("it is not partition {index} of the server at {address}");
            return Err(not_a_server(&other, reason));
        }
        sessions.push(session);
    }
    Ok(Keyspace { sessions, seed: hello.seed, max_value: hello.max_value as usize })
}

fn open(address: &Address, options: &SessionOptions) -> Result<Arc<Session>, ClientError> {
    let mut options = options.clone();
    options.calls = calls(address.provider(), options.calls);
    Session::connect(address, &options)
        .map_err(|source| ClientError::Connect { address: address.clone(), source })
}

/// Returns how replies come over a provider. With many clients the card of a server that sends its
/// replies is the limit, and fetched replies leave it free.
fn calls(provider: ProviderKind, chosen: CallsBy) -> CallsBy {
    match (provider, chosen) {
        (ProviderKind::Rdma, CallsBy::Auto) => CallsBy::Fetch,
        (_, chosen) => chosen,
    }
}

/// Asks a partition for the description of its store.
fn ask(session: &Session, address: &Address) -> Result<Hello, ClientError> {
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    Request::Hello.encode(&mut request);
    match session.call(&request, &mut reply) {
        Ok(()) => Hello::decode(&reply).map_err(|error| not_a_server(address, error.to_string())),
        // A server of another version, or another service.
        Err(RequestError::Rejected { reason, .. }) => Err(not_a_server(address, reason.to_string())),
        Err(error) => Err(not_a_server(address, error.to_string())),
    }
}

fn not_a_server(address: &Address, reason: String) -> ClientError {
    ClientError::NotAServer { address: address.clone(), reason }
}

/// Returns the address of partition `index`. The client reaches partition `hello.partition` at
/// `known`, maybe under another name of the host than the server knows.
fn address_of(known: &Address, hello: &Hello, index: usize) -> Option<Address> {
    let listed = |partition: usize, at: usize| -> Option<Address> {
        hello.addresses.get(partition)?.get(at)?.parse().ok()
    };
    let own = usize::from(hello.partition);
    let count = hello.addresses[own].len();
    let is_kind = |at: &usize| listed(own, *at).is_some_and(|other| other.provider() == known.provider());
    match known {
        Address::Unix(path) => {
            let text = path.to_str()?;
            let first = if own == 0 { text } else { text.strip_suffix(&format!(".{own}"))? };
            partition_address(&Address::Unix(first.into()), index)
        }
        Address::Tcp { host, port } | Address::Rdma { host, port } => {
            let is_same = |at: &usize| listed(own, *at).and_then(|other| port_of(&other)) == Some(*port);
            // Behind a forwarded port the server has another port.
            let at = (0..count).filter(is_kind).find(is_same).or_else(|| (0..count).find(is_kind))?;
            let (host, port) = (host.clone(), port_of(&listed(index, at)?)?);
            Some(match known {
                Address::Tcp { .. } => Address::Tcp { host, port },
                _ => Address::Rdma { host, port },
            })
        }
        _ => None,
    }
}

fn port_of(address: &Address) -> Option<u16> {
    match address {
        Address::Tcp { port, .. } | Address::Rdma { port, .. } => Some(*port),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(partition: u16) -> Hello {
        let of = |i: usize| {
            [
                "unix:/run/a".to_owned() + &[String::new(), format!(".{i}")][i.min(1)],
                format!("tcp:0.0.0.0:{}", 700 + i),
                format!("tcp:127.0.0.1:{}", 800 + i),
                format!("rdma:x:{}", 900 + i),
            ]
            .to_vec()
        };
        Hello { seed: 0, max_value: 1, partition, addresses: (0..3).map(of).collect() }
    }

    #[test]
    fn replies_are_fetched_over_cards_unless_it_is_told_otherwise() {
        assert_eq!(calls(ProviderKind::Rdma, CallsBy::Auto), CallsBy::Fetch);
        assert_eq!(calls(ProviderKind::Rdma, CallsBy::Reply), CallsBy::Reply);
        // The session fetches over mapped memory.
        assert_eq!(calls(ProviderKind::Shm, CallsBy::Auto), CallsBy::Auto);
        assert_eq!(calls(ProviderKind::Tcp, CallsBy::Auto), CallsBy::Auto);
    }

    #[test]
    fn the_other_partitions_are_at_the_same_kind_of_address() {
        let of = |known: &str, own, index| {
            address_of(&known.parse().unwrap(), &hello(own), index).map(|address| address.to_string())
        };
        assert_eq!(of("/mnt/a", 0, 2).as_deref(), Some("unix:/mnt/a.2"));
        assert_eq!(of("/mnt/a.2", 2, 0).as_deref(), Some("unix:/mnt/a"));
        assert_eq!(of("server:800", 0, 1).as_deref(), Some("tcp:server:801"));
        assert_eq!(of("server:702", 2, 1).as_deref(), Some("tcp:server:701"));
        assert_eq!(of("server:5000", 0, 1).as_deref(), Some("tcp:server:701"));
        assert_eq!(of("rdma:server:900", 0, 1).as_deref(), Some("rdma:server:901"));
        assert_eq!(of("/mnt/renamed", 2, 0), None);
    }
}
