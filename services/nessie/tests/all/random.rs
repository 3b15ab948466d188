//! Random clients on several nodes: their histories are linearizable, also if a node dies or stops.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nessie::{Command, NessieError, Node};
use rdmabox::{ProviderKind, Session};

use crate::support::{Deployment, Histories, LONG, NodeProcess, Remote, Store, eventually};

const KEYS: usize = 100;

fn run_clients(histories: &Histories, stores: &[&dyn Store], operations: usize, seed: u64) {
    thread::scope(|scope| {
        for (client, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed + client as u64);
                for _ in 0..operations {
                    let _ = histories.step(&mut rng, *store);
                }
            });
        }
    });
}

fn all_nodes_answer(provider: ProviderKind) {
    let deployment = Deployment::new(3, provider);
    let nodes: Vec<Node> = (0..3).map(|node| deployment.start(node)).collect();
    nodes.iter().for_each(|node| node.wait(LONG).expect("all nodes"));
    for seed in 0..4 {
        let histories = Histories::new(KEYS);
        // Entries of an earlier round have no history.
        for key in 0..KEYS {
            eventually(|| nodes[0].delete(&Histories::key(key)));
        }
        let stores: Vec<&dyn Store> =
            nodes.iter().chain(&nodes[..1]).map(|node| node as &dyn Store).collect();
        run_clients(&histories, &stores, 1000, seed * 10);
        assert!(histories.check() > 3000);
    }
    let stats: Vec<_> = nodes.iter().map(Node::stats).collect();
    assert!(stats.iter().all(|stats| stats.remote_words > 0 && stats.own_entries > 0), "{stats:?}");
    // No node ran code for an operation of another one: each told two others where its memory is,
    // and itself.
    assert!(stats.iter().all(|stats| stats.calls == 3 && stats.commands == 0), "{stats:?}");
}

#[test]
fn histories_over_shared_memory_are_linearizable() {
    all_nodes_answer(ProviderKind::Shm);
}

#[test]
fn histories_over_tcp_are_linearizable() {
    all_nodes_answer(ProviderKind::Tcp);
}

/// Checks that each key has a value on which the nodes agree, or none, or is lost. A PUT stores a
/// new one.
fn all_keys_can_be_stored(nodes: &[Node]) {
    for node in nodes {
        let deadline = Instant::now() + LONG;
        while !node.status().contains("repairs waiting: 0") {
            assert!(Instant::now() < deadline, "{}", node.status());
            thread::sleep(Duration::from_millis(20));
        }
    }
    for key in 0..KEYS {
        let key = Histories::key(key);
        let found = eventually(|| match nodes[0].get(&key) {
            Err(NessieError::Lost) => Ok(None),
            other => other.map(|value| value.map(|value| value.to_vec())),
        });
        if let Some(found) = found {
            // The other node agrees.
            assert_eq!(eventually(|| nodes[1].get(&key)).as_deref(), Some(&found[..]));
        }
        eventually(|| nodes[1].put(&key, b"new"));
        assert_eq!(eventually(|| nodes[0].get(&key)).as_deref(), Some(&b"new"[..]));
    }
}

/// Waits until the node that was given up learns of it, and refuses to serve.
fn serves_no_more(third: &NodeProcess) {
    let session = Session::builder().connect(&third.address).expect("a session");
    let deadline = Instant::now() + LONG;
    loop {
        let text = Remote(&session).get(b"key-1").expect_err("it does not serve").to_string();
        if text.contains("is given up by the others") {
            return;
        }
        assert!(Instant::now() < deadline, "{text}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Kills or stops node 2 while clients of all nodes are at work.
fn one_node_dies(provider: ProviderKind, signal: &str, is_given_up: bool) {
    let mut deployment = Deployment::new(3, provider);
    // Two of three slots of each key remain, and need room.
    deployment.index_bytes = 256 * 8;
    let nodes: Vec<Node> = (0..2).map(|node| deployment.start(node)).collect();
    let third = deployment.spawn(2);
    nodes.iter().for_each(|node| node.wait(LONG).expect("all nodes"));
    let session = Session::builder().connect(&third.address).expect("a session");
    let remote = Remote(&session);
    let histories = Histories::new(KEYS);
    run_clients(&histories, &[&nodes[0], &nodes[1], &remote], 400, 7);

    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (seed, node) in (20..).zip(&nodes) {
            let (histories, is_over) = (&histories, &is_over);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !is_over.load(Ordering::Relaxed) {
                    let _ = histories.step(&mut rng, node);
                    // A history of a key has at most 128 operations.
                    thread::sleep(Duration::from_millis(20));
                }
            });
        }
        let (histories, remote) = (&histories, &remote);
        scope.spawn(move || {
            let mut rng = fastrand::Rng::with_seed(30);
            while histories.step(&mut rng, remote).is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        thread::sleep(Duration::from_millis(300));
        third.signal(signal);
        // Both nodes can store each key again: where an agreement is needed, they have reached it.
        let deadline = Instant::now() + LONG;
        for node in &nodes {
            let lost = || node.status().contains("peer 2") && node.status().contains(": lost");
            while is_given_up && !lost() {
                assert!(Instant::now() < deadline, "{}", node.status());
                thread::sleep(Duration::from_millis(50));
            }
        }
        thread::sleep(Duration::from_millis(500));
        is_over.store(true, Ordering::Relaxed);
        if !is_given_up {
            third.signal("-CONT");
        }
        session.close(Duration::ZERO);
    });
    if !is_given_up {
        // Commands execute one after the other: the last one of the client is over then.
        let session = Session::builder().connect(&third.address).expect("a session");
        third.command(&session, &Command::Status).expect("an answer");
    }
    all_keys_can_be_stored(&nodes);
    if is_given_up && signal == "-STOP" {
        third.signal("-CONT");
        serves_no_more(&third);
    }
    histories.check();
}

#[test]
fn a_killed_node_over_shared_memory() {
    one_node_dies(ProviderKind::Shm, "-KILL", true);
}

#[test]
fn a_killed_node_over_tcp() {
    one_node_dies(ProviderKind::Tcp, "-KILL", true);
}

#[test]
fn a_stopped_node_over_tcp_is_given_up() {
    one_node_dies(ProviderKind::Tcp, "-STOP", true);
}

#[test]
fn a_stopped_node_over_shared_memory_still_lends_its_memory() {
    one_node_dies(ProviderKind::Shm, "-STOP", false);
}
