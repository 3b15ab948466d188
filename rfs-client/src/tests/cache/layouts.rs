//! Tests of layouts: recalls, and changes of size.

use super::*;
use crate::remote::address::Epoch;

#[test]
fn a_layout_is_given_back_when_no_operation_uses_it() {
    const OLD: &[u8] = b"before";
    let k = CachingClient::with(Fake::new(256, false));
    k.elsewhere("f");
    let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
    k.client.files.open(ino, true).expect("opened");
    k.client.writes.write(ino, 0, OLD).expect("written");
    assert_eq!(read(&k.client, ino, 0, 100), OLD);
    k.interceptor.hold();
    let other = k.client.async_io.transfers.count();
    let (send, answered) = mpsc::channel();
    let answer = move |data: Result<ReadData<'_>, ClientError>| {
        let Ok(ReadData::Bytes(bytes)) = data else { panic!("{data:?}") };
        send.send(bytes.to_vec()).expect("the receiver listens");
    };
    assert!(k.client.async_io.start_read(ino, 0, OLD.len(), || QueueHint::Nothing, answer).is_ok());
    drop(other);
    // Another client rewrites the file in other space.
    let another = client(&k.server);
    another.files.open(ino, true).expect("opened");
    let generation = another.attributes.setattr(ino, &TRUNCATE).expect("truncated").layout_generation;
    another.writes.write(ino, 0, b"after").expect("written");
    let recall = || k.recall(Recall::Layout { ino, generation });
    thread::scope(|scope| {
        let recalled = scope.spawn(recall);
        (0..1000).for_each(|_| thread::yield_now());
        assert!(!recalled.is_finished(), "a read of the old space is under way");
        k.interceptor.release(&Ok(()));
        recalled.join().expect("no panic");
    });
    assert_eq!(answered.recv().expect("answered"), OLD);
    // At once, although the size was known a moment ago.
    assert_eq!(read(&k.client, ino, 0, 100), b"after");
    // A write in flight is waited for, too.
    let (client, written) = (Arc::clone(&k.client), Arc::new(AtomicU64::new(0)));
    let (began, begins) = mpsc::channel();
    let counts = Arc::clone(&written);
    k.interceptor.once(OpKind::Write, move || {
        began.send(()).expect("the receiver listens");
        (0..1000).for_each(|_| thread::yield_now());
        counts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let writing = thread::spawn(move || client.writes.write(ino, 0, b"AFTER"));
    begins.recv().expect("it begins");
    recall();
    assert_eq!(written.load(Ordering::Relaxed), 1);
    writing.join().expect("no panic").expect("written");
    assert_eq!(read(&k.client, ino, 0, 100), b"AFTER");
}

/// After a restart the server has no earlier generations, and cannot name the layouts that it
/// recalls.
#[test]
fn a_recall_of_everything_voids_all_layouts() {
    for mapped in [false, true] {
        let k = CachingClient::with(Fake::new(256, mapped));
        k.elsewhere("f");
        let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
        k.client.files.open(ino, true).expect("opened");
        k.client.writes.write(ino, 0, b"before").expect("written");
        assert_eq!(read(&k.client, ino, 0, 100), b"before");
        let old = k.server.place(ino, 0);
        let another = client(&k.server);
        another.files.open(ino, true).expect("opened");
        another.attributes.setattr(ino, &TRUNCATE).expect("truncated");
        another.writes.write(ino, 0, b"after").expect("written");
        k.recall(Recall::All);
        // The old space belongs to another file by now.
        k.server.put(old, b"theirs");
        k.client.writes.write(ino, 0, b"AFT").expect("written");
        assert_eq!(read(&k.client, ino, 0, 100), b"AFTer");
        assert_eq!(k.server.bytes(old, 6), b"theirs");
        // A layout in flight becomes void.
        let client = Arc::clone(&k.client);
        k.client.files.close(ino).expect("closed");
        k.interceptor.once(OpKind::Reply, move || {
            client.recalls.layouts.give_layouts_back(Epoch(0), &[Recall::All]);
            Ok(())
        });
        k.client.files.open(ino, true).expect("opened");
        assert_eq!(k.calls(|c| assert_eq!(read(c, ino, 0, 100), b"AFTer")), 1, "it is fetched again");
    }
}

/// The change may have taken effect, or may do so later, and free space that the layout names.
#[test]
fn a_layout_is_void_after_a_failed_change_of_size() {
    let k = CachingClient::with(Fake::new(256, false));
    k.elsewhere("f");
    let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
    k.client.files.open(ino, true).expect("opened");
    k.client.writes.write(ino, 0, b"bytes").expect("written");
    assert_eq!(k.calls(|c| assert_eq!(read(c, ino, 0, 100), b"bytes")), 0);
    k.interceptor.once(OpKind::Reply, || Err(RequestError::Timeout(Duration::ZERO)));
    assert!(k.client.attributes.setattr(ino, &TRUNCATE).is_err());
    assert!(k.calls(|c| c.writes.write(ino, 0, b"b").expect("written")) > 0);
    assert_eq!(read(&k.client, ino, 0, 100), b"b");
}

#[test]
fn only_the_first_open_for_writing_is_another_call() {
    let k = CachingClient::new();
    k.elsewhere("f");
    let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
    let open = |write| k.calls(|c| assert!(c.files.open(ino, write).is_ok()));
    assert_eq!([open(false), open(false), open(true), open(true), open(false)], [1, 0, 1, 0, 0]);
    let opens = k.server.opens(ino);
    assert_eq!(opens, 3, "and one of the client that created it");
    for _ in 0..5 {
        k.client.files.close(ino).expect("closed");
    }
    assert_eq!(k.server.opens(ino), 1);
}
