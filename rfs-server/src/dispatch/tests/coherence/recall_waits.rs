//! Changes that wait for sessions to acknowledge recalls.

use super::*;

#[test]
fn a_change_waits_for_all_cache_holders_that_have_not_ended() {
    let fixture = fixture(64, 32);
    let [one, two, three] = [1, 2, 3].map(|id| fixture.attached(id, true));
    for client in [&one, &two, &three] {
        client.page(ROOT_INO, 0, 1);
    }
    let (one_asked, two_asked) = (one.recalls(0), two.recalls(0));
    let made = three.start(create(ROOT_INO, "f", true));
    let more = three.start(create(ROOT_INO, "g", true));
    assert_eq!(told(&one_asked).recalls, [name(ROOT_INO, "f")]);
    assert_eq!(told(&two_asked).recalls, [name(ROOT_INO, "f")]);
    // Recalls that came meanwhile are in the next reply.
    let one_asked = one.recalls(1);
    assert_eq!(told(&one_asked), Recalls { number: 2, recalls: vec![name(ROOT_INO, "g")] });
    assert!(made.try_recv().is_err());
    fixture.dispatcher.attachments().ended(2);
    assert!(matches!(made.try_recv(), Ok(Reply::Opened(_))));
    assert!(more.try_recv().is_err());
    fixture.dispatcher.attachments().ended(1);
    assert!(matches!(more.try_recv(), Ok(Reply::Opened(_))));
    // No session caches anything any more.
    three.create("h");
}

/// A session with an open recall is no cache holder any more, but may still use the old state.
#[test]
fn a_change_waits_for_recalls_that_an_earlier_one_caused() {
    let fixture = fixture(64, 32);
    let holder = fixture.attached(1, true);
    let (two, three) = (fixture.client(2), fixture.client(3));
    let ino = holder.opened(create(ROOT_INO, "f", true)).attr.ino;
    holder.close(ino);
    assert!(holder.keep(Request::GetAttr { ino }));
    let asked = holder.recalls(0);
    let chmod = |perm| set(ino, SetAttr { perm: Some(perm), ..SetAttr::default() });
    let (first, second) = (two.start(chmod(0o600)), three.start(chmod(0o640)));
    assert!(first.try_recv().is_err() && second.try_recv().is_err());
    assert_eq!(told(&asked).recalls, [attr(ino)], "once");
    holder.recalls(1);
    assert!(
        matches!(first.try_recv(), Ok(Reply::Attr(_))) && matches!(second.try_recv(), Ok(Reply::Attr(_)))
    );
}

#[test]
fn two_sessions_that_change_the_same_directory_do_not_deadlock() {
    let fixture = fixture(64, 32);
    let (one, two) = (fixture.attached(1, true), fixture.attached(2, true));
    one.page(ROOT_INO, 0, 1);
    two.page(ROOT_INO, 0, 1);
    let (one_asked, two_asked) = (one.recalls(0), two.recalls(0));
    let (one_made, two_made) =
        (one.start(create(ROOT_INO, "f", true)), two.start(create(ROOT_INO, "g", true)));
    assert!(one_made.try_recv().is_err() && two_made.try_recv().is_err());
    assert_eq!(told(&one_asked).recalls, [name(ROOT_INO, "g")]);
    assert_eq!(told(&two_asked).recalls, [name(ROOT_INO, "f")]);
    one.recalls(1);
    assert!(two_made.try_recv().is_ok() && one_made.try_recv().is_err());
    two.recalls(1);
    assert!(one_made.try_recv().is_ok());
}

#[test]
fn asking_for_recalls() {
    let fixture = fixture(64, 32);
    let (holder, other) = (fixture.attached(1, true), fixture.client(2));
    holder.page(ROOT_INO, 0, 1);
    assert_eq!(holder.error(Request::Recalls { done: 1 }), Errno::EPROTO);
    // A second request for recalls replaces the first.
    let (first, second) = (holder.recalls(0), holder.recalls(0));
    assert_eq!(first.try_recv(), Ok(Reply::Error(Errno::EINTR)));
    let made = other.start(create(ROOT_INO, "f", true));
    assert_eq!(told(&second), Recalls { number: 1, recalls: vec![name(ROOT_INO, "f")] });
    // The session has not acknowledged the reply, so the recall is sent again.
    let again = holder.recalls(0);
    assert_eq!(told(&again), Recalls { number: 2, recalls: vec![name(ROOT_INO, "f")] });
    assert!(made.try_recv().is_err());
    let last = holder.recalls(2);
    assert!(made.try_recv().is_ok());
    // The end of the session ends the request.
    fixture.dispatcher.attachments().ended(1);
    assert_eq!(last.try_recv(), Ok(Reply::Error(Errno::EPROTO)));
    assert_eq!(holder.error(Request::Recalls { done: 2 }), Errno::EPROTO);
}

#[test]
fn a_session_that_does_not_acknowledge_is_detached() {
    let fixture = fixture(64, 32);
    let [one, two] = [1, 2].map(|id| fixture.attached(id, true));
    let writer = fixture.client(3);
    let hour = Duration::from_secs(3600);
    one.page(ROOT_INO, 0, 1);
    one.opened(create(ROOT_INO, "open", true));
    two.page(ROOT_INO, 0, 1);
    assert_eq!(fixture.dispatcher.recalls().deadline(hour), None);
    let two_asked = two.recalls(0);
    let before = Instant::now();
    let made = writer.start(create(ROOT_INO, "f", true));
    let after = Instant::now();
    let deadline = fixture.dispatcher.recalls().deadline(hour).unwrap();
    assert!((before + hour..=after + hour).contains(&deadline));
    assert_eq!(told(&two_asked).recalls, [name(ROOT_INO, "f")]);
    two.recalls(1);
    assert!(fixture.dispatcher.recalls().give_up(hour, deadline - Duration::from_nanos(1)).is_empty());
    // Session 1 has not asked for recalls.
    assert_eq!(fixture.dispatcher.recalls().give_up(hour, deadline), [1]);
    assert!(matches!(made.try_recv(), Ok(Reply::Opened(_))));
    assert_eq!(fixture.dispatcher.recalls().deadline(hour), None);
    assert_eq!(one.error(lookup(ROOT_INO, "f")), Errno::EPROTO);
    assert_eq!(one.error(Request::Recalls { done: 0 }), Errno::EPROTO);
    // Its open files stay until it has ended.
    let free = fixture.free_inodes();
    let removed = writer.start(Request::Unlink { parent: ROOT_INO, name: b"open" });
    assert_eq!(fixture.free_inodes(), free);
    fixture.dispatcher.attachments().ended(1);
    assert_eq!(fixture.free_inodes(), free + 1);
    // Session 2 still caches names.
    assert!(removed.try_recv().is_err());
    assert_eq!(fixture.dispatcher.recalls().give_up(hour, deadline + hour), [2]);
    assert_eq!(removed.try_recv(), Ok(Reply::Done));
}
