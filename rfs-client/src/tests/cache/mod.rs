//! Tests of the cache: replies, recalls, and their order.

mod dir_attrs;
mod layouts;

use std::{
    sync::{atomic::AtomicU64, mpsc},
    thread,
    time::{Duration, Instant},
};

use rdmabox::Cancel;
use rfs_proto::{Attr, FileKind, Marks, Owner, Recall, RenameFlags, Request, encode_request};

use crate::tests::*;
use crate::{CallOptions, QueueHint, RecallHandler, Remote, tests::fake::new_attr};

const DIR: u64 = 1;
/// The server of these tests has the same names in all directories.
const OTHER: u64 = 999;

/// A client that caches, and a thread that obeys recalls for it.
struct CachingClient {
    server: Arc<Fake>,
    interceptor: Arc<Interceptor>,
    client: Arc<Client>,
    cancel: Cancel,
    obeys: Option<thread::JoinHandle<()>>,
}

/// Makes a request as another client.
fn ask(server: &Fake, request: &Request<'_>) {
    let (mut out, mut back) = (Vec::new(), Vec::new());
    encode_request(request, &mut out);
    server.call(&out, &mut back, CallOptions::default()).expect("answered");
}

/// Creates a file as another client.
fn make(server: &Fake, name: &str) {
    let name = name.as_bytes();
    ask(
        server,
        &Request::Create { parent: DIR, name, perm: 0o600, umask: 0, uid: 0, gid: 0, exclusive: true },
    );
}

/// A recall handler without a cache.
struct NoCache;

impl RecallHandler for NoCache {
    fn drop_all(&self, _: &[Recall]) {}
}

impl CachingClient {
    fn new() -> CachingClient {
        CachingClient::with(Fake::new(256, true))
    }

    fn with(server: Arc<Fake>) -> CachingClient {
        let interceptor = Interceptor::new(&server);
        let options = AttachOptions { caches: true, ..AttachOptions::default() };
        let client = Arc::new(Client::attach(interceptor.clone(), &options).expect("attached"));
        // The thread below may do so later than the test needs it.
        client.caching.inodes.recalls().begin();
        let (cancel, asks) = (Cancel::new(), client.clone());
        let until = cancel.clone();
        let obeys = thread::spawn(move || asks.recalls.obey(&NoCache, &until).expect("obeyed"));
        CachingClient { server, interceptor, client, cancel, obeys: Some(obeys) }
    }

    fn make(&self, names: std::ops::Range<u32>) {
        for name in names {
            self.elsewhere(&name.to_string());
        }
    }

    fn elsewhere(&self, name: &str) {
        make(&self.server, name);
    }

    fn recall(&self, recall: Recall) {
        self.server.recalls.send(&[recall]);
    }

    fn calls(&self, act: impl FnOnce(&Client)) -> u64 {
        let before = self.server.calls();
        act(&self.client);
        self.server.calls() - before
    }

    fn finds(&self, name: &str) -> bool {
        match self.client.lookups.lookup(DIR, name.as_bytes()) {
            Ok(_) => true,
            Err(ClientError::Errno(Errno::ENOENT)) => false,
            Err(e) => panic!("{e}"),
        }
    }
}

impl Drop for CachingClient {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.obeys.take().expect("a thread").join().expect("it ends");
    }
}

fn name(name: &str) -> Recall {
    Recall::Name { parent: DIR, name: name.into() }
}

#[test]
fn attributes_are_kept_until_they_are_recalled() {
    let k = CachingClient::new();
    k.elsewhere("f");
    let since = k.client.caching.since();
    let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
    let keeps = || {
        let guard = k.client.caching.hold_recalls();
        (guard.may_cache_attr_of(since, ino), guard.may_cache_name(since, DIR, b"f"))
    };
    assert_eq!(keeps(), (true, true));
    assert_eq!(k.calls(|c| assert_eq!(c.attributes.getattr(ino).expect("attributes").ino, ino)), 0);
    k.recall(Recall::Attr { ino });
    assert_eq!(keeps(), (false, true));
    let since = k.client.caching.since();
    k.client.attributes.getattr(ino).expect("attributes");
    k.client.attributes.getattr(ino).expect("attributes, asked for to be kept");
    assert!(k.client.caching.hold_recalls().may_cache_attr_of(since, ino));
    k.recall(name("f"));
    assert_eq!(keeps(), (false, false), "asked for before");
    assert!(k.client.caching.hold_recalls().may_cache_attr_of(since, ino));
}

#[test]
fn a_reply_that_a_recall_overtook_is_not_cached() {
    let k = CachingClient::new();
    k.elsewhere("f");
    for recall in [name("f"), Recall::Names { ino: DIR }, Recall::Attr { ino: 2 }, Recall::Pages { ino: 2 }] {
        let of_name = matches!(recall, Recall::Name { .. } | Recall::Names { .. });
        let since = k.client.caching.since();
        let attr = k.client.lookups.lookup(DIR, b"f").expect("found");
        // The kernel has not been told yet.
        k.recall(recall);
        let guard = k.client.caching.hold_recalls();
        assert_eq!(guard.may_cache_name(since, DIR, b"f"), !of_name);
        assert_eq!(guard.may_cache_attr_of(since, attr.ino), of_name);
    }
}

#[test]
fn recalls_are_not_noted_while_the_caller_is_told() {
    let k = CachingClient::new();
    let guard = k.client.caching.hold_recalls();
    let recalls = thread::scope(|scope| {
        let sent = scope.spawn(|| k.recall(name("x")));
        thread::yield_now();
        let early = sent.is_finished();
        drop(guard);
        sent.join().expect("obeyed");
        early
    });
    assert!(!recalls, "the recall waits for the guard");
}

#[test]
fn attributes_from_before_an_own_change_are_not_cached() {
    let k = CachingClient::new();
    k.elsewhere("f");
    let since = k.client.caching.since();
    let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
    let before = k.client.caching.since();
    k.client.attributes.setattr(ino, &TRUNCATE).expect("cut");
    assert!(!k.client.caching.hold_recalls().may_cache_attr_of(before, ino));
    let after = k.client.caching.since_but_changed(since);
    assert!(k.client.caching.hold_recalls().may_cache_attr_of(after, ino), "what the change brought");
}

#[test]
fn the_absence_of_extended_attributes_is_cached_with_the_attributes() {
    let k = CachingClient::with(Fake::new(256, false));
    k.elsewhere("f");
    let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
    let looked = || {
        let reads = Arc::new(AtomicU64::new(0));
        let count = reads.clone();
        k.interceptor.once(OpKind::Read, move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        assert_eq!(k.client.xattrs.get_xattr(ino, b"user.x"), Err(Errno::ENODATA.into()));
        assert_eq!(k.client.xattrs.list_xattr(ino), Ok(vec![]));
        reads.load(Ordering::Relaxed) > 0
    };
    assert!(!looked(), "they came with the name");
    k.client.attributes.setattr(ino, &TRUNCATE).expect("cut");
    assert!(looked(), "a change of its own may have brought some");
    assert!(!looked(), "it had a look");
    k.recall(Recall::Attr { ino });
    assert!(looked());
    k.client.attributes.getattr(ino).expect("attributes, asked for to be kept");
    assert!(!looked());
    // The record is recalled while it is read.
    k.client.attributes.setattr(ino, &TRUNCATE).expect("cut");
    let server = k.server.clone();
    k.interceptor.once(OpKind::Read, move || {
        server.recalls.send(&[Recall::Attr { ino }]);
        Ok(())
    });
    assert_eq!(k.client.xattrs.get_xattr(ino, b"user.x"), Err(Errno::ENODATA.into()));
    assert!(looked(), "what was read is not known to be so still");
}

#[test]
fn a_directory_becomes_known_by_failed_lookups() {
    let k = CachingClient::new();
    k.make(0..1000);
    let misses: u64 = (0..100).map(|i| k.calls(|_| assert!(!k.finds(&format!("no{i}"))))).sum();
    assert!((6..=9).contains(&misses), "{misses}");
    assert_eq!(k.calls(|_| assert!(!k.finds("another"))), 0);
    assert!(k.finds("999"));
    // An own change.
    assert_eq!(k.calls(|c| assert!(c.files.create(DIR, b"new", 0o600, OWNER, true).is_ok())), 1);
    assert!(k.finds("new"));
    k.client.names.unlink(DIR, b"new").expect("removed");
    assert_eq!(k.calls(|_| assert!(!k.finds("new"))), 0);
    // A change by another client.
    k.elsewhere("other");
    k.recall(name("other"));
    assert!(k.finds("other") && !k.finds("none"));
    k.recall(Recall::Names { ino: DIR });
    assert_eq!(k.calls(|_| assert!(!k.finds("none"))), 1);
    let long = [b'x'; 256];
    assert_eq!(k.client.lookups.lookup(DIR, &long), Err(Errno::ENAMETOOLONG.into()));
}

/// Another client has just linked the old name's inode to the new name. Neither name goes then.
#[test]
fn a_name_that_is_renamed_to_a_link_of_its_inode_still_exists() {
    let k = CachingClient::new();
    k.make(0..10);
    for name in ["a", "b", "c"] {
        k.elsewhere(name);
    }
    // All names of the directory are known.
    (0..100).for_each(|i| assert!(!k.finds(&format!("no{i}"))));
    assert_eq!(k.calls(|_| assert!(!k.finds("another"))), 0);
    let (server, ino) = (Arc::clone(&k.server), k.client.lookups.lookup(DIR, b"a").expect("found").ino);
    k.interceptor.once(OpKind::Call, move || {
        ask(&server, &Request::Link { ino, parent: OTHER, name: b"b" });
        server.recalls.send(&[Recall::Name { parent: OTHER, name: (*b"b").into() }]);
        Ok(())
    });
    let none = RenameFlags::empty();
    k.client.names.rename((DIR, b"a"), (OTHER, b"b"), none, None, (None, None)).expect("nothing to do");
    assert!(k.finds("a"));
    // A renamed name is gone, and known to be absent if the new name did not exist.
    k.client.names.rename((DIR, b"a"), (OTHER, b"c"), none, None, (None, None)).expect("renamed");
    assert!(!k.finds("a") && k.finds("c"));
    k.client
        .names
        .rename((DIR, b"c"), (OTHER, b"d"), RenameFlags::NOREPLACE, None, (None, None))
        .expect("renamed");
    assert_eq!(k.calls(|_| assert!(!k.finds("c"))), 0);
    // A whiteout takes the old name.
    let whiteout = Some(Owner { uid: 1, gid: 2 });
    assert!(k.finds("b"));
    k.client
        .names
        .rename((DIR, b"b"), (OTHER, b"e"), RenameFlags::NOREPLACE, whiteout, (None, None))
        .expect("renamed");
    assert_ne!(k.client.lookups.lookup(DIR, b"b").expect("a whiteout").ino, ino);
}

#[test]
fn a_name_that_is_created_during_its_lookup_is_not_cached_as_absent() {
    for obeyed in [true, false] {
        let k = CachingClient::new();
        let server = k.server.clone();
        k.interceptor.once(OpKind::Reply, move || {
            make(&server, "x");
            if obeyed {
                server.recalls.send(&[name("x")]);
            }
            Ok(())
        });
        assert!(!k.finds("x"), "the answer is from before");
        if !obeyed {
            k.recall(name("x"));
        }
        assert!(k.finds("x"));
    }
}

#[test]
fn names_looked_up_in_order_are_prefetched() {
    let k = CachingClient::new();
    k.make(0..2000);
    let calls: u64 = (0..2000).map(|i: u32| k.calls(|_| assert!(k.finds(&i.to_string())))).sum();
    assert!(calls <= 2000 / 100, "{calls}");
    assert_eq!(k.client.known_inodes(), ROOT + 2000);
}

#[test]
fn prefetched_entries_are_recalled() {
    let k = CachingClient::new();
    k.make(0..10);
    for i in ["0", "1", "2", "3"] {
        assert!(k.finds(i));
    }
    assert_eq!(k.calls(|_| assert!(k.finds("4"))), 0);
    let since = k.client.caching.since();
    k.recall(name("5"));
    assert_eq!(k.calls(|_| assert!(k.finds("5"))), 1);
    // The first file is inode 2.
    k.recall(Recall::Attr { ino: 2 + 7 });
    assert_eq!(k.calls(|_| assert!(k.finds("7"))), 1);
    k.client.names.unlink(DIR, b"8").expect("removed");
    assert!(!k.finds("8"));
    let ino = k.client.lookups.lookup(DIR, b"9").expect("found").ino;
    assert!(k.client.caching.hold_recalls().may_cache_attr_of(since, ino));
}

#[test]
fn nothing_is_cached_after_the_session_has_ended() {
    let mut k = CachingClient::new();
    k.elsewhere("f");
    let since = k.client.caching.since();
    let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
    k.cancel.cancel();
    let obeys = k.obeys.replace(thread::spawn(|| {})).expect("a thread");
    obeys.join().expect("it ends");
    let guard = k.client.caching.hold_recalls();
    assert!(!guard.may_cache_attr_of(since, ino) && !guard.may_cache_name(since, DIR, b"f"));
}

#[test]
fn pages_are_current_while_the_server_recalls_them() {
    let k = CachingClient::new();
    k.elsewhere("f");
    let ino = k.client.lookups.lookup(DIR, b"f").expect("found").ino;
    let open = |handle| {
        let since = k.client.caching.since();
        let attr = k.client.files.open(ino, false).expect("opened");
        k.client.caching.hold_recalls().opens_pages(since, &attr, handle)
    };
    assert!(!open(4));
    k.client.pages.used(ino, 4);
    assert!(open(8));
    k.recall(Recall::Pages { ino });
    assert!(
        k.client.pages.lacks_hold(ino) && k.client.pages.is_contested(ino),
        "pages that it keeps would not be recalled"
    );
    assert!(!open(12));
    assert!(!k.client.pages.lacks_hold(ino) && k.client.pages.is_contested(ino));
    k.recall(Recall::Written { ino });
    assert!(k.client.pages.lacks_hold(ino));
    assert!(!open(14));
    k.client.pages.used(ino, 14);
    assert!(open(16), "the open asked for caching");
}
