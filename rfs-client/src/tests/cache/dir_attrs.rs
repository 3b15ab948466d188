//! Tests of directory attributes that come with replies to changes.

use super::*;

/// Creates a client that may cache the directory's attributes, at a server that sends them along.
/// Records are not mapped.
fn told_along() -> CachingClient {
    let k = CachingClient::with(Fake::new(256, false));
    may_keep(&k);
    k
}

fn may_keep(k: &CachingClient) {
    k.client
        .caching
        .inodes
        .get(DIR)
        .expect("the root")
        .caller
        .lock()
        .attr_caching
        .answered(true, Instant::now());
}

/// Returns the server's directory, with this size.
fn directory(size: u64) -> Attr {
    Attr { kind: FileKind::Directory, size, marks: Marks::KEEP, ..new_attr(DIR, 0o755) }
}

fn send_along(k: &CachingClient, size: u64) {
    *k.server.directory.lock() = Some(directory(size));
}

/// Returns the size that came along, or `None` if the client reads the record, which this server
/// does not have.
fn came(k: &CachingClient) -> Option<u64> {
    k.client.attributes.getattr(DIR).ok().map(|attr| {
        assert_eq!(attr, directory(attr.size));
        attr.size
    })
}

#[test]
fn the_directorys_attributes_come_with_the_reply_to_a_change() {
    let k = told_along();
    send_along(&k, 1);
    create(&k.client, "f");
    let reads = Arc::new(AtomicU64::new(0));
    let count = reads.clone();
    k.interceptor.each(OpKind::Read, move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(k.calls(|_| assert_eq!(came(&k), Some(1))), 0);
    send_along(&k, 2);
    k.client.names.unlink(DIR, b"f").expect("removed");
    assert_eq!(k.calls(|_| assert_eq!(came(&k), Some(2))), 0);
    assert_eq!(reads.load(Ordering::Relaxed), 0);
    // A second query may ask for the access time, which reads change without a recall.
    assert_eq!(came(&k), None);
}

#[test]
fn directory_attributes_are_valid_until_the_directory_changes() {
    type Happens = fn(&CachingClient);
    let table: [(&str, Happens); 7] = [
        ("a read of this client's own", |k| {
            assert_eq!(k.client.access_times.reads_directory(&directory(1)), Ok(true))
        }),
        ("another client's change", |k| k.recall(Recall::Name { parent: DIR, name: b"x".into() })),
        ("a change of its attributes", |k| k.recall(Recall::Attr { ino: DIR })),
        ("a server that was started again", |k| k.client.caching.void_all()),
        ("a change of this client's own with which nothing came", |k| {
            *k.server.directory.lock() = None;
            create(&k.client, "g");
        }),
        ("a removal", |k| drop(k.client.names.rmdir(OTHER, b"d"))),
        ("a renaming, over a directory perhaps", |k| {
            drop(k.client.names.rename(
                (OTHER, b"d"),
                (OTHER, b"e"),
                RenameFlags::empty(),
                None,
                (None, None),
            ));
        }),
    ];
    for (what, happens) in table {
        let k = told_along();
        send_along(&k, 1);
        create(&k.client, "f");
        happens(&k);
        may_keep(&k);
        assert_eq!(came(&k), None, "{what}");
    }
    let k = told_along();
    send_along(&k, 1);
    create(&k.client, "f");
    k.recall(Recall::Attr { ino: OTHER });
    assert_eq!(came(&k), Some(1), "another inode");
}

#[test]
fn an_event_during_a_change_voids_the_attributes_in_its_reply() {
    type Happens = fn(&CachingClient);
    let table: [(&str, Happens); 3] = [
        ("a recall", |k| {
            k.recall(Recall::Attr { ino: DIR });
            may_keep(k);
        }),
        ("a change of this client's own", |k| {
            create(&k.client, "g");
        }),
        ("a removal", |k| drop(k.client.names.rmdir(OTHER, b"d"))),
    ];
    for (what, happens) in table {
        let k = Arc::new(told_along());
        send_along(&k, 1);
        let meanwhile = k.clone();
        k.interceptor.once(OpKind::Reply, move || {
            // The buffers of the calling thread are in use.
            thread::spawn(move || happens(&meanwhile)).join().expect("done");
            Ok(())
        });
        create(&k.client, "f");
        assert_eq!(came(&k), None, "{what}");
    }
}

#[test]
fn only_cacheable_attributes_of_the_directory_are_used() {
    let file = Attr { kind: FileKind::Regular, ..directory(1) };
    let not_kept = Attr { marks: Marks::empty(), ..directory(1) };
    for attr in [file, not_kept, Attr { ino: OTHER, ..directory(1) }] {
        let k = told_along();
        *k.server.directory.lock() = Some(attr);
        create(&k.client, "f");
        assert_eq!(came(&k), None, "{attr:?}");
    }
    // Nothing may be cached at all.
    let k = CachingClient::with(Fake::new(256, false));
    send_along(&k, 1);
    create(&k.client, "f");
    assert_eq!(came(&k), None);
}
