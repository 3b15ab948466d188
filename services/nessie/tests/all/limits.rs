//! Full tables, reuse of entries, wrong options, and the commands.

use std::{collections::HashMap, process::Command as Process, time::Duration};

use nessie::{NessieError, Node};
use proptest::prelude::*;
use rdmabox::{ProviderKind, Session};

use crate::support::{Deployment, LONG, eventually};

fn one_node(change: impl FnOnce(&mut nessie::NodeOptions)) -> (Deployment, Node) {
    let deployment = Deployment::new(1, ProviderKind::Shm);
    let mut options = deployment.options(0);
    options.reuse_delay = Duration::from_millis(400);
    change(&mut options);
    let node = Node::start(options).expect("a node");
    node.wait(LONG).expect("ready");
    (deployment, node)
}

/// Repeats work that an overloaded machine did not end in time.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, NessieError>) -> Result<T, NessieError> {
    loop {
        match attempt() {
            Err(e) if e.is_retryable() => {}
            other => return other,
        }
    }
}

#[test]
fn memory_stays_within_what_was_given() {
    // 10 entries; 8 keys are stored and removed 1,000 times.
    let (_deployment, node) = one_node(|options| {
        options.data_bytes = 10 * 104;
        options.reuse_delay = Duration::from_millis(16);
    });
    assert_eq!(node.entries().2, 10);
    for round in 0..1000u32 {
        for key in 0..8u8 {
            // The entries of a PUT that took too long are free after its repair.
            eventually(|| node.put(&[key], &round.to_le_bytes()));
        }
        for key in 0..8u8 {
            assert_eq!(eventually(|| node.get(&[key])).as_deref(), Some(&round.to_le_bytes()[..]));
            eventually(|| node.delete(&[key]));
        }
    }
    let (_, _, all) = node.entries();
    assert_eq!(all, 10);
}

#[test]
fn a_value_that_no_reply_has_room_for_is_refused_and_the_session_goes_on() {
    let (deployment, node) = one_node(|options| {
        options.max_value = 128 << 10;
        options.data_bytes = 4 << 20;
    });
    let largest = vec![1; rdmabox::MAX_CALL - 1];
    eventually(|| node.put(b"fits", &largest));
    eventually(|| node.put(b"long", &vec![2; rdmabox::MAX_CALL]));
    assert_eq!(eventually(|| node.get(b"long")).map(|value| value.len()), Some(rdmabox::MAX_CALL));
    let session = Session::builder().provider(ProviderKind::Shm).connect(deployment.address(0));
    let session = session.expect("a session");
    let mut reply = Vec::new();
    let get = |key: &[u8]| nessie::Command::Get(key.to_vec()).encode();
    match session.call(&get(b"long"), &mut reply) {
        Err(rdmabox::RequestError::Rejected { reason }) => assert!(reason.contains("65537"), "{reason}"),
        other => panic!("{other:?}"),
    }
    session.call(&get(b"fits"), &mut reply).expect("the session goes on");
    assert_eq!(reply[1..], largest);
}

#[test]
fn a_full_data_table_says_so() {
    let (_deployment, node) = one_node(|options| options.data_bytes = 3 * 104);
    for key in 0..3u8 {
        node.put(&[key], b"value").expect("room");
    }
    let error = node.put(&[3], b"value").expect_err("full");
    assert_eq!(error.to_string(), "data table full: delete keys, or make it larger (option --data)");
    assert_eq!(error.code(), 5);
    node.delete(&[0]).expect("removed");
    patiently(|| node.put(&[3], b"value")).expect("room again");
}

#[test]
fn a_full_index_says_so() {
    let (_deployment, node) = one_node(|options| options.index_bytes = 16 * 8);
    let mut stored = Vec::new();
    let error = (0..17u8).find_map(|key| match patiently(|| node.put(&[key], &[key])) {
        Ok(()) => {
            stored.push(key);
            None
        }
        Err(e) => Some(e),
    });
    assert_eq!(error.expect("full").to_string(), "index full: make it larger (option --index)");
    assert!(stored.len() >= 10, "{} of 16 slots", stored.len());
    for key in stored {
        assert_eq!(patiently(|| node.get(&[key])).expect("a value").as_deref(), Some(&[key][..]));
    }
}

#[test]
fn long_keys_and_values_are_refused() {
    let (_deployment, node) = one_node(|_| {});
    let error = node.put(&[0; 17], b"").expect_err("too long").to_string();
    assert_eq!(error, "key of 17 bytes: this store takes up to 16 (option --max-key)");
    let error = node.put(b"key", &[0; 65]).expect_err("too long").to_string();
    assert_eq!(error, "value of 65 bytes: this store takes up to 64 (option --max-value)");
    // The longest ones, and the shortest.
    node.put(&[1; 16], &[2; 64]).expect("stored");
    node.put(b"", b"").expect("stored");
    assert_eq!(node.get(&[1; 16]).expect("a value").as_deref(), Some(&[2; 64][..]));
    assert_eq!(node.get(b"").expect("a value").as_deref(), Some(&b""[..]));
}

#[test]
fn wrong_options_are_named() {
    let deployment = Deployment::new(2, ProviderKind::Shm);
    let fault = |change: fn(&mut nessie::NodeOptions)| {
        let mut options = deployment.options(0);
        change(&mut options);
        Node::start(options).expect_err("wrong").to_string()
    };
    assert_eq!(fault(|options| options.ways = 5), "invalid option: ways = 5: choose 2 to 4");
    assert_eq!(fault(|options| options.id = 2), "invalid option: node 2: the list has nodes 0 to 1");
    assert_eq!(
        fault(|options| options.index_bytes = 8),
        "invalid option: index = 8 bytes: choose 32 bytes to 32 GiB"
    );
    assert_eq!(
        fault(|options| options.data_bytes = 8),
        "invalid option: data = 8 bytes: choose 104 bytes (one entry) to 2147483647 entries"
    );
}

#[test]
fn nodes_with_other_options_do_not_meet() {
    let deployment = Deployment::new(2, ProviderKind::Shm);
    let one = deployment.start(0);
    let mut options = deployment.options(1);
    options.ways = 2;
    let _other = Node::start(options).expect("a node");
    let error = one.wait(Duration::from_secs(3)).expect_err("no match").to_string();
    assert_eq!(error, "node 1 does not answer: node 1 does not fit: ways 2, here 3");
}

#[test]
fn a_restarted_node_does_not_serve_with_its_old_number() {
    let deployment = Deployment::new(3, ProviderKind::Shm);
    let nodes: Vec<Node> = (0..2).map(|node| deployment.start(node)).collect();
    let mut third = deployment.spawn(2);
    nodes.iter().for_each(|node| node.wait(LONG).expect("all nodes"));
    // It serves when one of the others knows it.
    let session = rdmabox::Session::builder().connect(&third.address).expect("a session");
    let begun = std::time::Instant::now();
    loop {
        let status = third.command(&session, &nessie::Command::Status).expect("an answer");
        let status = String::from_utf8_lossy(&status).into_owned();
        if status.contains("node 2: serves") {
            break;
        }
        assert!(begun.elapsed() < LONG, "{status}");
    }
    third.kill();
    let again = deployment.start(2);
    let error = again.wait(LONG).expect_err("its number is used up");
    assert!(matches!(error, NessieError::Condemned { node: 2 }), "{error}");
}

#[test]
fn commands_read_and_write_keys() {
    let deployment = Deployment::new(2, ProviderKind::Shm);
    let _nodes = [deployment.spawn(0), deployment.spawn(1)];
    let nessie = |node: u16, args: &[&str]| {
        let output = Process::new(env!("CARGO_BIN_EXE_nessie"))
            .args(["--node", &deployment.address(node).to_string()])
            .args(args)
            .output()
            .expect("a process");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let begun = std::time::Instant::now();
    // The nodes meet first.
    while nessie(0, &["put", "colour", "blue"]).0 != Some(0) {
        assert!(begun.elapsed() < LONG, "{:?}", nessie(0, &["status"]));
    }
    let found = || (Some(0), "blue\n".to_string(), String::new());
    while nessie(1, &["get", "colour"]) != found() {
        assert!(begun.elapsed() < LONG, "{:?}", nessie(1, &["get", "colour"]));
    }
    assert_eq!(nessie(1, &["delete", "colour"]).0, Some(0));
    assert_eq!(nessie(0, &["get", "colour"]), (Some(1), String::new(), String::new()));
    let long = "k".repeat(17);
    let error = "nessie: key of 17 bytes: this store takes up to 16 (option --max-key)\n".to_string();
    assert_eq!(nessie(0, &["get", &long]), (Some(2), String::new(), error));
    assert!(nessie(0, &["status"]).1.contains("node 0: serves"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn a_node_behaves_like_a_map(steps in prop::collection::vec((0u8..3, 0u8..20, any::<u64>()), 1..200)) {
        let (_deployment, node) = one_node(|_| {});
        let mut map = HashMap::new();
        for (kind, key, value) in steps {
            match kind {
                0 => {
                    patiently(|| node.put(&[key], &value.to_le_bytes())).expect("stored");
                    map.insert(key, value.to_le_bytes());
                }
                1 => {
                    patiently(|| node.delete(&[key])).expect("removed");
                    map.remove(&key);
                }
                _ => {
                    let found = patiently(|| node.get(&[key])).expect("read");
                    prop_assert_eq!(found.as_deref(), map.get(&key).map(|value| &value[..]));
                }
            }
        }
    }
}
