//! A small flood: the server is here, and so is its process.

use rdmabox::{Address, ProviderKind};
use rfs_fuzz::flood::{AT_A_TIME, Flood};
use rfs_server::{Config, ExportConfig, Server, dispatch::Root};

fn export(name: &str) -> ExportConfig {
    let root = Root { perm: 0o755, uid: 0, gid: 0 };
    ExportConfig { name: name.into(), memory: 16 << 20, inodes: None, root }
}

#[test]
fn a_server_is_there_for_the_good_whatever_the_bad_send() {
    let listen = vec![Address::Tcp { host: "127.0.0.1".into(), port: 0 }];
    let exports = vec![export("flooded"), export("good")];
    let server =
        Server::start(Config { listen, exports, allow_without_keys: true, ..Config::new(0) }).unwrap();
    let address = server.addresses().iter().find(|address| address.provider() == ProviderKind::Tcp).unwrap();
    let flood = Flood {
        address: address.clone(),
        process: None,
        exports: ["flooded", "good"].map(String::from),
        keys: [None, None],
        connections: 300,
        messages: 4000,
        seed: 1,
    };
    let report = flood.run().unwrap();
    assert_eq!((report.strangers.connections, report.members.messages), (300, 4000));
    // One more for each, unless the last message ended it.
    let more = report.members.sessions - report.members.unreadable;
    assert!(more <= AT_A_TIME, "{:?}", report.members);
    // Each begins with the seeds, which can be decoded; of what follows it is more than half that cannot.
    assert!(report.members.refused > 500 && report.members.unreadable > 1900, "{:?}", report.members);
    assert!(report.good.checked > 1 << 20, "{:?}", report.good);
}
