//! Messages to sessions about evictions.

use rfs_proto::Recall;

use super::*;

#[test]
fn sessions_hear_of_evicted_names() {
    let fixture = evicting(100, 1000, LRU);
    let (writer, reader) = (fixture.client(1), fixture.attached(2, true));
    let directory = writer.mkdir(ROOT_INO, "d").ino;
    let ino = writer.put(directory, "old", 80);
    let waits = reader.start(Request::Recalls { done: 0 });
    reader.attr(lookup(directory, "old"));
    writer.put(ROOT_INO, "new", 12);
    assert!(waits.try_recv().is_err());
    fixture.evict();
    let Ok(Reply::Recalls(told)) = waits.try_recv() else { panic!("no recalls") };
    assert!(told.recalls.contains(&Recall::Name { parent: directory, name: b"old".into() }), "{told:?}");
    assert!(told.recalls.contains(&Recall::Unlinked { ino }), "{told:?}");
    assert_eq!(fixture.dispatcher.idle_inodes(), 1, "until the reader has forgotten it");
    // A writer gets the space nevertheless, and the reader finds no file any more.
    let big = writer.create("big");
    writer.allocate(big.attr.ino, 0, 70 * B);
    assert_eq!(reader.error(Request::Open { ino, write: false }), Errno::ESTALE);
}

/// A mount that is away keeps its session, because no request waits for the recalls of an eviction.
/// A request that makes a file of the same name waits for them.
#[test]
fn recalls_of_an_eviction_start_no_timeout() {
    let fixture = evicting(100, 1000, LRU);
    let (writer, reader) = (fixture.client(1), fixture.attached(2, true));
    let directory = writer.mkdir(ROOT_INO, "d").ino;
    writer.put(directory, "old", 80);
    let waits = reader.start(Request::Recalls { done: 0 });
    reader.attr(lookup(directory, "old"));
    writer.put(ROOT_INO, "new", 12);
    fixture.evict();
    assert!(matches!(waits.try_recv(), Ok(Reply::Recalls(_))));
    let timeout = Duration::from_secs(8);
    assert_eq!(fixture.dispatcher.recalls().deadline(timeout), None);
    let created = writer.start(create(directory, "old", true));
    assert!(created.try_recv().is_err(), "the reader may still use the old name");
    assert!(fixture.dispatcher.recalls().deadline(timeout).is_some());
}

/// A mount with exclusive use would keep names of evicted files after a restart of the server.
#[test]
fn no_session_has_an_export_with_eviction_alone() {
    for policy in [LRU, ttl(10)] {
        let fixture = evicting(16, 8, policy);
        let client = Client { fixture: &fixture, id: 1 };
        fixture.dispatcher.attachments().began(1, regions());
        assert_eq!(client.attach(true, true), Reply::Error(Errno::EOPNOTSUPP));
        assert!(matches!(client.attach(true, false), Reply::Attached(_)));
    }
}
