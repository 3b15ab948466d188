//! Floods and attacks a server that runs in the process of the test.
//!
//! Own program: its floods load all processors, which the timeouts of `targets` would feel.

use std::{collections::HashMap, fs, os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use rdmabox::{
    Address, CallError, Domain, Grant, Host, Key, KeyId, Limits, Peer, ProviderKind, Reply, Secret, Service,
    fuzzing::Intruder,
};
use rfs_fuzz::flood::{AT_A_TIME, ATTACKS, Flood};
use rfs_server::{Config, ExportConfig, Server, dispatch::Root};

fn export(name: &str) -> ExportConfig {
    let root = Root { perm: 0o755, uid: 0, gid: 0 };
    ExportConfig {
        name: name.into(),
        memory: 16 << 20,
        max: None,
        inodes: None,
        root,
        eviction: Default::default(),
    }
}

#[test]
fn a_flooded_server_serves_a_good_client() {
    let listen = vec![Address::Tcp { host: "127.0.0.1".into(), port: 0 }];
    let exports = vec![export("flooded"), export("good")];
    let server =
        Server::start(Config { listen, exports, allow_without_keys: true, ..Config::new(0) }).unwrap();
    let address = server.addresses().iter().find(|address| address.provider() == ProviderKind::Tcp).unwrap();
    let flood = Flood {
        address: address.clone(),
        unix: None,
        process: None,
        exports: ["flooded", "good"].map(String::from),
        keys: [None, None],
        connections: 300,
        messages: 4000,
        seed: 1,
    };
    let report = flood.run().unwrap();
    assert_eq!((report.strangers.connections, report.members.messages), (300, 4000));
    // Each member has one more session than unreadable messages, unless its last message was one.
    let more = report.members.sessions - report.members.unreadable;
    assert!(more <= AT_A_TIME, "{:?}", report.members);
    // Each member begins with the seeds, which decode. There is a seed for each kind of request, so
    // each new kind lowers the number of unreadable messages.
    assert!(report.members.refused > 500 && report.members.unreadable > 1800, "{:?}", report.members);
    assert!(report.good.checked > 1 << 20, "{:?}", report.good);
}

fn key(name: &str, secret: u8) -> Key {
    Key { id: name.parse().unwrap(), secret: Secret::new(&[secret; 32]).unwrap() }
}

/// Duration of each attack.
const ATTACK: Duration = Duration::from_millis(1500);
/// Time limit of a client with another key to connect, attach and get a reply.
const SERVED: Duration = Duration::from_secs(2);

#[test]
fn a_server_withstands_the_attacks_of_one_key() {
    let directory = tempfile::tempdir().unwrap();
    let key =
        |name: &str, secret| Key { id: name.parse().unwrap(), secret: Secret::new(&[secret; 32]).unwrap() };
    let keys = [key("flooded", 1), key("good", 2)];
    let lines = keys.each_ref().map(|key| format!("{} {} {} rw\n", key.id, *key.secret.to_hex(), key.id));
    let file = directory.path().join("keys");
    fs::write(&file, lines.concat()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let unix = Address::Unix(directory.path().join("socket"));
    let server = Server::start(Config {
        listen: vec![Address::Tcp { host: "127.0.0.1".into(), port: 0 }, unix.clone()],
        exports: vec![export("flooded"), export("good")],
        keys: Some(file),
        ..Config::new(0)
    });
    let server = server.unwrap();
    let address = server.addresses().iter().find(|address| address.provider() == ProviderKind::Tcp).unwrap();
    let flood = Flood {
        address: address.clone(),
        unix: Some(unix),
        process: None,
        exports: ["flooded", "good"].map(String::from),
        keys: keys.map(Some),
        connections: 0,
        messages: 0,
        seed: 1,
    };
    for attack in ATTACKS {
        let withstood = flood.attack(attack, ATTACK).unwrap();
        assert!(withstood.taken > 0 && withstood.slowest < SERVED, "{withstood:?}");
    }
}

/// A service that replies to every call with an empty message.
struct Mute;

impl Service for Mute {
    fn call(&self, _: &Peer, _: &[u8], _: &mut Reply<'_>) -> Result<(), CallError> {
        Ok(())
    }
}

#[test]
fn one_key_cannot_occupy_all_pending_sessions() {
    let keys = [key("bad", 1), key("good", 2)];
    let grant = |key: &Key| Grant::new(key.secret.clone(), Domain::default());
    let ring: HashMap<KeyId, Grant> = keys.iter().map(|key| (key.id, grant(key))).collect();
    // Half of the pending connections can be sessions in setup; one key has a quarter of these.
    let mut limits = Limits::default();
    limits.pending_connections = 16;
    let listen = [Address::Tcp { host: "127.0.0.1".into(), port: 0 }];
    let host = Host::new().unwrap().keys(Arc::new(ring)).limits(limits);
    let running = host.listen(&listen, Arc::new(Mute)).unwrap();
    let open = |key| Intruder::open(&running.addresses()[0], Some(key), 1);
    let _unmade: Vec<_> = (0..2).map(|_| open(&keys[0]).unwrap()).collect();
    let refusal = open(&keys[0]).unwrap_err().to_string();
    assert_eq!(refusal, "too many clients are connecting with the key bad: try again");
    let mut other = open(&keys[1]).unwrap();
    other.complete(1).unwrap();
}
