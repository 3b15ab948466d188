//! Requests that find no space: the files that they evict, and their waits.

use std::thread;

use super::*;
use crate::space::eviction::Eviction;

const FREED_SPACE_TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn a_request_that_finds_no_space_evicts_as_much_as_it_needs() {
    let fixture = evicting(100, 1000, LRU);
    let client = fixture.client(1);
    for at in 0..9 {
        client.put(ROOT_INO, &format!("f{at}"), 10);
    }
    let big = client.create("big").attr.ino;
    client.allocate(big, 0, 35 * B);
    let names = client.names(ROOT_INO);
    assert_eq!(names, ["f3", "f4", "f5", "f6", "f7", "f8", "big"], "25 blocks were missing");
    // No eviction would suffice for this request, so none is made.
    assert_eq!(client.error(Request::Allocate { ino: big, offset: 0, len: 101 * B }), Errno::ENOSPC);
    assert_eq!(client.names(ROOT_INO).len(), 7);
    let counts = fixture.dispatcher.eviction().unwrap().counts();
    assert_eq!((counts.waits, counts.failures, counts.evicted_bytes), (2, 1, 30 * B));
    // An open file is never evicted for another one.
    client.allocate(big, 0, 99 * B);
    assert_eq!(client.names(ROOT_INO), ["big"]);
    let second = client.create("second").attr.ino;
    assert_eq!(client.error(Request::Allocate { ino: second, offset: 0, len: 2 * B }), Errno::ENOSPC);
}

/// Space that a truncation freed is quarantined until the other session has let go of it. A request
/// waits for it, and evicts nothing more.
#[test]
fn a_request_waits_for_space_in_quarantine() {
    let fixture = evicting(100, 1000, LRU);
    let (writer, reader) = (fixture.client(1), fixture.attached(2, true));
    let directory = writer.mkdir(ROOT_INO, "d").ino;
    writer.put(directory, "kept", 10);
    let ino = writer.put(directory, "shared", 70);
    writer.opened(Request::Open { ino, write: true });
    reader.open(ino);
    let waits = reader.start(Request::Recalls { done: 0 });
    let changes = SetAttr { size: Some(0), ..SetAttr::default() };
    let truncated = writer.start(Request::SetAttr { ino, changes });
    let Ok(Reply::Recalls(told)) = waits.try_recv() else { panic!("no recalls") };
    let new = writer.create("new").attr.ino;
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            drop(reader.start(Request::Recalls { done: told.number }));
        });
        writer.allocate(new, 0, 60 * B);
    });
    assert!(truncated.try_recv().is_ok());
    let counts = fixture.dispatcher.eviction().unwrap().counts();
    assert_eq!((counts.waits, counts.failures, counts.evicted_files), (1, 0, 0));
    assert_eq!(writer.names(directory), ["kept", "shared"]);
}

/// A request that waits for quarantined space holds up no request of another export, and a request
/// that can never be met does not wait. Beside the one that waits, a request evicts more files.
#[test]
fn one_request_of_the_process_waits_for_quarantine() {
    let fixture = evicting(100, 1000, LRU);
    let (writer, reader) = (fixture.client(1), fixture.attached(2, true));
    let ino = writer.put(ROOT_INO, "shared", 40);
    for at in 0..5 {
        writer.put(ROOT_INO, &format!("f{at}"), 10);
    }
    writer.opened(Request::Open { ino, write: true });
    reader.open(ino);
    let _waits = reader.start(Request::Recalls { done: 0 });
    let changes = SetAttr { size: Some(0), ..SetAttr::default() };
    let _truncated = writer.start(Request::SetAttr { ino, changes });
    let new = writer.create("new").attr.ino;
    let start = Instant::now();
    assert_eq!(writer.error(Request::Allocate { ino: new, offset: 0, len: 101 * B }), Errno::ENOSPC);
    assert!(start.elapsed() < FREED_SPACE_TIMEOUT / 2, "it waited in vain: {:?}", start.elapsed());
    let other_export = Eviction::try_wait().expect("no request waits");
    writer.allocate(new, 0, 30 * B);
    let counts = fixture.dispatcher.eviction().unwrap().counts();
    assert_eq!((counts.evicted_files, counts.failures), (2, 1), "10 blocks were free");
    assert!(start.elapsed() < FREED_SPACE_TIMEOUT / 2);
    drop(other_export);
}
