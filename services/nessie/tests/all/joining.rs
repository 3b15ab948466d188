//! Nodes that join through a seed, and leave or die.

use std::{
    process::{Command as Process, Stdio},
    thread,
    time::{Duration, Instant},
};

use nessie::{NessieError, Node};
use rdmabox::ProviderKind;

use crate::support::{Deployment, Histories, LONG, Store, eventually};

const PROVIDERS: [ProviderKind; 2] = [ProviderKind::Shm, ProviderKind::Tcp];

fn deployment(provider: ProviderKind, spare: u16) -> (Deployment, Vec<Node>) {
    let deployment = Deployment { spare, index_bytes: 256 * 8, ..Deployment::new(3, provider) };
    let nodes: Vec<Node> = (0..3).map(|node| deployment.start(node)).collect();
    nodes.iter().for_each(|node| node.wait(LONG).expect("all nodes"));
    (deployment, nodes)
}

fn join(deployment: &Deployment, seed: u16, name: &str) -> Node {
    let node = deployment.join(seed, name).expect("a number");
    node.wait(LONG).expect("all nodes");
    node
}

fn value(node: &Node, key: &[u8]) -> Option<Vec<u8>> {
    eventually(|| node.get(key)).map(|value| value.to_vec())
}

#[test]
fn a_node_that_joins_stores_values_and_takes_none_with_it_when_it_leaves() {
    for provider in PROVIDERS {
        let (deployment, nodes) = deployment(provider, 2);
        eventually(|| nodes[0].put(b"old", b"of before"));
        let joined = join(&deployment, 1, "four");
        assert_eq!(joined.number(), 3);
        assert_eq!(value(&joined, b"old").as_deref(), Some(&b"of before"[..]));
        for key in 0..100_u8 {
            eventually(|| joined.put(&[key], &[key; 3]));
        }
        // Its values are in its own table.
        assert!(joined.stats().stores >= 100);
        for node in &nodes {
            assert_eq!(value(node, &[7]), Some(vec![7; 3]));
        }
        eventually(|| nodes[2].put(&[8], b"new"));
        assert_eq!(value(&joined, &[8]).as_deref(), Some(&b"new"[..]));

        joined.leave().expect("room at the others");
        assert!(matches!(joined.put(b"late", b""), Err(NessieError::Leaving { node: 3 })));
        drop(joined);
        for key in 0..100_u8 {
            let wanted = if key == 8 { b"new".to_vec() } else { vec![key; 3] };
            assert_eq!(value(&nodes[usize::from(key) % 3], &[key]), Some(wanted), "{provider:?}, key {key}");
        }
        assert!(nodes.iter().map(|node| node.stats().adopted).sum::<u64>() >= 99);

        // A number is given out once, by any seed.
        let next = join(&deployment, 0, "five");
        assert_eq!(next.number(), 4);
        assert_eq!(value(&next, b"old").as_deref(), Some(&b"of before"[..]));
        let refused = deployment.join(0, "six").map(|node| node.number()).unwrap_err();
        let text = "the seed refused this node: all 2 spare numbers were given out: \
                    start all nodes with a larger --spare";
        assert_eq!(refused.to_string(), text);
    }
}

#[test]
fn nodes_that_join_through_different_seeds_find_each_other() {
    let (deployment, nodes) = deployment(PROVIDERS[0], 4);
    let (one, two) = (join(&deployment, 0, "a"), join(&deployment, 0, "b"));
    eventually(|| one.put(b"key", b"one"));
    // Read from the table of a node that joined before and of one that joined later.
    assert_eq!(value(&two, b"key").as_deref(), Some(&b"one"[..]));
    eventually(|| two.put(b"key", b"two"));
    assert_eq!(value(&one, b"key").as_deref(), Some(&b"two"[..]));
    assert_eq!(value(&nodes[1], b"key").as_deref(), Some(&b"two"[..]));
    let listed = nodes[0].leave().unwrap_err();
    assert!(matches!(listed, NessieError::Listed { node: 0 }), "{listed}");
    let no_seed = deployment.join(0, "c").expect("a number");
    drop(nodes);
    drop(no_seed);
    let refused = deployment.join(0, "d").map(|node| node.number()).unwrap_err();
    assert!(matches!(refused, NessieError::Seed { .. }), "{refused}");
}

/// The keys of a node that dies are lost until they are stored again, and an empty node takes its
/// place.
#[test]
fn a_joined_node_that_dies_loses_its_values_and_another_one_joins() {
    for provider in PROVIDERS {
        let (deployment, nodes) = deployment(provider, 2);
        let joined = join(&deployment, 0, "four");
        eventually(|| joined.put(b"lost", b"value"));
        eventually(|| nodes[0].put(b"kept", b"value"));
        drop(joined);
        let lost = eventually(|| match nodes[1].get(b"lost") {
            Err(NessieError::Lost) => Ok(true),
            Ok(_) => Ok(false),
            Err(other) => Err(other),
        });
        assert!(lost, "the value was on the node that died");
        assert_eq!(value(&nodes[1], b"kept").as_deref(), Some(&b"value"[..]));
        let other = join(&deployment, 0, "five");
        assert!(matches!(other.get(b"lost"), Err(NessieError::Lost | NessieError::Unreachable { .. })));
        eventually(|| other.put(b"lost", b"again"));
        assert_eq!(value(&nodes[2], b"lost").as_deref(), Some(&b"again"[..]));
    }
}

#[test]
fn histories_are_linearizable_while_nodes_join_and_leave() {
    const KEYS: usize = 100;
    for provider in PROVIDERS {
        let (deployment, nodes) = deployment(provider, 3);
        for round in 0..3_u64 {
            let histories = Histories::new(KEYS);
            // Entries of an earlier round have no history.
            for key in 0..KEYS {
                eventually(|| nodes[0].delete(&Histories::key(key)));
            }
            thread::scope(|scope| {
                for (client, node) in nodes.iter().enumerate() {
                    let histories = &histories;
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(round * 10 + client as u64);
                        (0..700).for_each(|_| _ = histories.step(&mut rng, node as &dyn Store));
                    });
                }
                let joined = join(&deployment, round as u16, &format!("joined-{round}"));
                let mut rng = fastrand::Rng::with_seed(100 + round);
                (0..300).for_each(|_| _ = histories.step(&mut rng, &joined as &dyn Store));
                joined.leave().expect("room at the others");
            });
            assert!(histories.check() > 1500);
        }
    }
}

#[test]
fn the_programs_join_and_leave() {
    let (deployment, _nodes) = deployment(PROVIDERS[0], 1);
    let listen = format!("unix:{}", deployment.dir.path().join("four").display());
    let seed = deployment.address(0).to_string();
    let program = env!("CARGO_BIN_EXE_nessie-node");
    let mut child = Process::new(program)
        .args(["--join", &seed, "--listen", &listen, "--data", "64k"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let run = |arguments: &[&str]| {
        let output =
            Process::new(env!("CARGO_BIN_EXE_nessie")).args(arguments).output().expect("the program");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let begun = Instant::now();
    while run(&["--node", &listen, "put", "colour", "blue"]).0 != Some(0) {
        assert!(begun.elapsed() < LONG, "the node does not serve");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(run(&["--node", &listen, "leave"]), (Some(0), String::new()));
    assert_eq!(run(&["--node", &seed, "get", "colour"]), (Some(0), "blue\n".into()));
    let (code, text) = run(&["--node", &seed, "leave"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("only nodes that joined can leave"), "{text}");
    let _ = child.kill();
    let _ = child.wait();
    let output =
        Process::new(program).args(["--join", &seed, "--data", "64k"]).output().expect("the program");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--listen <ADDRESS>"));
}
