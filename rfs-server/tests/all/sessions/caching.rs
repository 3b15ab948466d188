//! Caches and recalls between real sessions: a change waits for cache holders, and not for
//! sessions that have ended.

use std::{sync::mpsc, thread, time::Duration};

use rdmabox::{Cancel, Fencing, ProviderKind};
use rfs_proto::{ROOT_INO, Recall, Recalls, Reply, Request, decode_reply, encode_request};
use rfs_server::Config;

use crate::common::{Client, connect, name, start_with};

const PROVIDERS: [ProviderKind; 2] = [ProviderKind::Shm, ProviderKind::Tcp];

/// Asks for recalls, and blocks until there is one.
fn recalls(client: &Client, done: u64, cancel: &Cancel) -> Option<Recalls> {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    encode_request(&Request::Recalls { done }, &mut bytes);
    client.session.call_waiting(&bytes, &mut reply, cancel).ok()?;
    match decode_reply(&reply).unwrap() {
        Reply::Recalls(recalls) => Some(recalls),
        other => panic!("{other:?}"),
    }
}

/// Sets timeouts that never expire in a test.
fn patient(config: &mut Config) {
    config.fencing = Fencing::new(None, true);
    config.recall_timeout = Some(Duration::from_secs(100_000));
}

#[test]
fn a_change_waits_until_the_cache_holder_acknowledges() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_with(&directory, patient);
    for provider in PROVIDERS {
        let (holder, other) = (connect(&server, provider, true), connect(&server, provider, false));
        let file = name(provider);
        holder.ask(Request::Lookup { parent: ROOT_INO, name: &file });
        let (cancel, (changed, was_changed)) = (Cancel::new(), mpsc::channel());
        thread::scope(|scope| {
            let asked = scope.spawn(|| recalls(&holder, 0, &cancel));
            scope.spawn(|| {
                other.create(&file);
                changed.send(()).unwrap();
            });
            let told = asked.join().unwrap().unwrap();
            let expected = Recall::Name { parent: ROOT_INO, name: file.clone() };
            assert_eq!(told, Recalls { number: 1, recalls: vec![expected] });
            // The change is made, but its reply is deferred.
            assert!(matches!(holder.ask(Request::Lookup { parent: ROOT_INO, name: &file }), Reply::Attr(_)));
            assert_eq!(was_changed.try_recv(), Err(mpsc::TryRecvError::Empty));
            let done = told.number;
            let (holder, cancel) = (&holder, &cancel);
            let asked = scope.spawn(move || recalls(holder, done, cancel));
            was_changed.recv().unwrap();
            cancel.cancel();
            assert_eq!(asked.join().unwrap(), None);
        });
    }
}

#[test]
fn a_change_does_not_wait_for_a_session_that_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    // Only the end of the session ends the wait.
    let server = start_with(&directory, patient);
    for provider in PROVIDERS {
        let (holder, other) = (connect(&server, provider, true), connect(&server, provider, false));
        holder.ask(Request::Lookup { parent: ROOT_INO, name: b"x" });
        thread::scope(|scope| {
            let made = scope.spawn(|| other.create(&name(provider)));
            // The request is in progress when the session gets the recall.
            let told = recalls(&holder, 0, &Cancel::new()).unwrap();
            assert_eq!(told.recalls.len(), 1);
            holder.session.close(std::time::Duration::ZERO);
            made.join().unwrap();
        });
    }
}

#[test]
fn a_session_that_never_asks_for_recalls_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_with(&directory, |config| config.recall_timeout = Some(Duration::from_millis(50)));
    for provider in PROVIDERS {
        let (silent, other) = (connect(&server, provider, true), connect(&server, provider, true));
        let sessions = server.stats().sessions;
        silent.ask(Request::Lookup { parent: ROOT_INO, name: b"x" });
        other.create(&name(provider));
        while silent.session.is_connected() {
            thread::yield_now();
        }
        // The stream of the calls may close a moment later than the stream of the lease.
        while silent.session.call(&[0x12], &mut Vec::new()).is_ok() {
            thread::yield_now();
        }
        while server.stats().sessions == sessions {
            thread::yield_now();
        }
        assert!(matches!(other.ask(Request::GetAttr { ino: ROOT_INO }), Reply::Attr(_)));
    }
}

#[test]
fn changes_in_one_directory_by_all_at_once() {
    const CHANGES: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let server = start_with(&directory, patient);
    let clients: Vec<Client> =
        [PROVIDERS, PROVIDERS].concat().into_iter().map(|p| connect(&server, p, true)).collect();
    let cancel = Cancel::new();
    thread::scope(|scope| {
        for client in &clients {
            client.ask(Request::ReadDir { ino: ROOT_INO, cookie: 0, max_entries: 9 });
            let cancel = cancel.clone();
            scope.spawn(move || {
                let mut done = 0;
                while let Some(recalls) = recalls(client, done, &cancel) {
                    assert_eq!(recalls.number, done + 1);
                    done = recalls.number;
                }
            });
        }
        let changing = clients.iter().enumerate().flat_map(|(client_at, client)| {
            [0, 1].map(|thread| {
                scope.spawn(move || {
                    for at in 0..CHANGES {
                        let file = format!("{client_at} {thread} {at}").into_bytes();
                        client.create(&file);
                        // So that it caches the names there.
                        let found = client.ask(Request::Lookup { parent: ROOT_INO, name: &file });
                        assert!(matches!(found, Reply::Attr(_)));
                        let removed = client.ask(Request::Unlink { parent: ROOT_INO, name: &file });
                        assert!(matches!(removed, Reply::Done | Reply::Unlinked(_)), "{removed:?}");
                    }
                })
            })
        });
        let changing: Vec<_> = changing.collect();
        changing.into_iter().for_each(|thread| thread.join().unwrap());
        cancel.cancel();
    });
    assert_eq!(server.stats().sessions, clients.len() as u64, "no session was ended");
}
