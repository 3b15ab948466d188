//! Mounts that come back hear again of the unlinked inodes that they may use.

use rfs_proto::{Recall, Recalls};

use super::{
    reconnect::{attach, back, killed},
    recovery::Object,
    *,
};

/// Detects unlinked inodes that stay because the connection was lost, and with it their Forget.
#[test]
fn a_mount_that_comes_back_hears_of_unlinked_inodes_again() {
    let f = fixture(16, 8);
    let (one, other) = (attach(&f, 1, true), attach(&f, 2, false));
    one.done(Request::Forget { inos: b"" });
    let [gone, known] = ["gone", "known"].map(|name| {
        let ino = one.create(name).attr.ino;
        one.close(ino);
        drop(other.start(Request::Unlink { parent: ROOT_INO, name: name.as_bytes() }));
        ino
    });
    let hears = Client { fixture: &f, id: 1 };
    let unlinked = |done| match hears.ask(Request::Recalls { done }) {
        Reply::Recalls(Recalls { number, recalls }) => {
            let is_unlinked = |recall: &Recall| matches!(recall, Recall::Unlinked { .. });
            let mut unlinked: Vec<_> = recalls.into_iter().filter(is_unlinked).collect();
            unlinked.sort_by_key(Recall::inode);
            (number, unlinked)
        }
        reply => panic!("{reply:?}"),
    };
    let both = [gone, known].map(|ino| Recall::Unlinked { ino });
    let (number, told) = unlinked(0);
    assert_eq!(told, both);
    drop(one.start(Request::Recalls { done: number }));
    // The connection is lost, and with it that the mount has forgotten both.
    let one = back(&f, 1);
    let (number, told) = unlinked(number);
    assert_eq!(told, both);
    one.done(Request::Forget { inos: &gone.to_le_bytes() });
    assert_eq!(f.dispatcher.idle_inodes(), 1);
    drop(one.start(Request::Recalls { done: number }));
    back(&f, 1);
    assert_eq!(unlinked(number).1, [Recall::Unlinked { ino: known }]);
}

#[test]
fn a_mount_that_comes_back_to_the_next_server_twice_hears_of_unlinked_inodes_each_time() {
    let object = Object::new();
    let f = object.start(1, true).unwrap();
    let (one, other) = (attach(&f, 1, true), attach(&f, 2, false));
    one.done(Request::Forget { inos: b"" });
    let ino = one.create("gone").attr.ino;
    one.close(ino);
    drop(other.start(Request::Unlink { parent: ROOT_INO, name: b"gone" }));
    let (_object, f) = killed(&object, &f, 2, false);
    let mut done = 0;
    for _ in 0..3 {
        let one = back(&f, 1);
        let Reply::Recalls(Recalls { number, recalls }) = one.ask(Request::Recalls { done }) else {
            panic!()
        };
        assert!(recalls.contains(&Recall::Unlinked { ino }), "{recalls:?}");
        drop(one.start(Request::Recalls { done: number }));
        done = number;
    }
}
