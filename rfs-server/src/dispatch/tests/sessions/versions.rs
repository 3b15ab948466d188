//! Sessions of the two versions of the protocol that the server speaks.

use rfs_proto::OLDEST_VERSION;

use super::{recovery::Object, *};

fn attach(f: &Fixture, id: u64, version: u32) -> Reply {
    f.dispatcher.attachments().began(id, regions());
    let mount = Some(Identity([id as u8; 16]));
    Client { fixture: f, id }.ask(Request::Attach {
        version,
        client: "test",
        export: "",
        keeps: false,
        alone: false,
        mount,
    })
}

const BIRTH: Request<'_> = Request::Birth { ino: ROOT_INO };

/// Detects a server that refuses clients of the last release, or accepts those of the one before.
#[test]
fn clients_one_version_back_attach() {
    let f = fixture(16, 8);
    for (id, version) in (1..).zip(OLDEST_VERSION..=VERSION) {
        assert!(matches!(attach(&f, id, version), Reply::Attached(_)), "{version}");
    }
    for (id, version) in [(5, OLDEST_VERSION - 1), (6, VERSION + 1)] {
        assert_eq!(attach(&f, id, version), Reply::Error(Errno::EPROTONOSUPPORT), "{version}");
    }
}

/// Detects a request that the version of a session does not have, and an answer that its client
/// cannot decode.
#[test]
fn a_session_has_the_requests_of_its_version() {
    let f = fixture(16, 8);
    let [new, old] = [(1, VERSION), (2, OLDEST_VERSION)].map(|(id, version)| {
        attach(&f, id, version);
        Client { fixture: &f, id }
    });
    assert!(matches!(new.ask(BIRTH), Reply::Birth(Some(_))));
    assert_eq!(old.error(BIRTH), Errno::EPROTO);
    // The client was upgraded, and the other one was downgraded.
    f.dispatcher.attachments().resume(1, OLDEST_VERSION, regions());
    f.dispatcher.attachments().resume(2, VERSION, regions());
    assert!(matches!(old.ask(BIRTH), Reply::Birth(Some(_))));
    assert_eq!(new.error(BIRTH), Errno::EPROTO);
}

/// Detects a mount of the last release that loses its state with an upgrade of the server. Detects
/// a version in the log that is not that of the mount, too: the server after the next one would
/// give the mount up.
#[test]
fn the_next_server_continues_mounts_of_both_versions() {
    for anew in [false, true] {
        let object = Object::new();
        let f = object.start(1, true).unwrap();
        for (id, version) in [(1, VERSION), (2, OLDEST_VERSION), (3, OLDEST_VERSION)] {
            attach(&f, id, version);
        }
        f.dispatcher.attachments().resume(3, VERSION, regions());
        if anew {
            f.dispatcher.log_upkeep().write_log_anew().unwrap();
        }
        let next = object.copy().start(2, false).unwrap();
        assert!(!next.dispatcher.previous_mounts().has_abandoned());
        let versions = [1, 2, 3].map(|id| next.dispatcher.sessions.get(id).unwrap().version());
        assert_eq!(versions, [VERSION, OLDEST_VERSION, VERSION]);
    }
}
