//! Tests of a client with exclusive use, whose caller caches written data and its times.

use std::time::Duration;

use rfs_proto::InUse;

use crate::tests::*;

fn written_at(time: i64) -> SetAttr {
    SetAttr { mtime: Some(SetTime::At(time)), ctime: Some(time), ..SetAttr::default() }
}

#[test]
fn the_caller_sets_the_write_time() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        c.write_back.write(ino, 0, b"1").expect("written");
        assert_eq!(server.size_and_time(ino), (1, 0));
        let before = server.calls();
        let attr = c.write_back.set_write_time(ino, &written_at(5000)).expect("set").expect("one-sidedly");
        assert_eq!((attr.mtime, attr.ctime, attr.size), (5000, 5000, 1));
        assert_eq!(server.calls(), before);
        assert_eq!(c.attributes.getattr(ino).expect("attributes"), attr);
        // The caller decides: a later time counts, and so does an earlier one.
        for time in [6000, 4000] {
            assert!(c.write_back.set_write_time(ino, &written_at(time)).expect("set").is_some());
            assert_eq!(server.size_and_time(ino), (1, time));
        }
    });
}

#[test]
fn a_time_that_a_record_cannot_show_is_set_by_a_call() {
    both(|server| {
        let c = client(&server);
        let ino = create(&c, "f");
        c.attributes.setattr(ino, &SetAttr { ctime: Some(9000), ..SetAttr::default() }).expect("set");
        assert_eq!(c.write_back.set_write_time(ino, &written_at(8000)), Ok(None));
        let attr = c.attributes.setattr(ino, &written_at(8000)).expect("set");
        assert_eq!((attr.mtime, attr.ctime), (8000, 8000));
        // The caller was told of such a time, so the client attempts nothing.
        c.attributes.told(&Attr { ctime: 9000, ..attr }, 1);
        let before = server.lists.load(Ordering::Relaxed);
        assert_eq!(c.write_back.set_write_time(ino, &written_at(8500)), Ok(None));
        assert_eq!(server.lists.load(Ordering::Relaxed), before);
        c.attributes.told(&attr, 1);
        assert!(c.write_back.set_write_time(ino, &written_at(8500)).expect("set").is_some());
        c.files.close(ino).expect("closed");
        assert_eq!(
            c.write_back.set_write_time(ino, &written_at(8600)),
            Ok(None),
            "the record may be another one's"
        );
    });
}

#[test]
fn an_attach_that_is_refused_is_retried_for_its_patience() {
    let server = Fake::new(16, true);
    let alone = |busy_timeout| AttachOptions {
        caches: true,
        exclusive: true,
        busy_timeout,
        ..AttachOptions::default()
    };
    server.others.store(3, Ordering::Relaxed);
    let attached = Client::attach(server.clone(), &alone(Duration::from_secs(600)));
    assert!(attached.is_ok_and(|client| client.locks.exclusive));
    assert_eq!(server.others.load(Ordering::Relaxed), 0);

    let server = Fake::new(16, true);
    server.others.store(1, Ordering::Relaxed);
    let refused = Client::attach(server, &alone(Duration::ZERO)).expect_err("there is one");
    assert_eq!(refused, ClientError::InUse(InUse { sessions: 1, alone: false }));
}
