//! Times of birth.

use rfs_proto::{RenameFlags, SetTime};

use super::*;

fn birth(client: &Client<'_>, ino: u64) -> Option<i64> {
    match client.ask(Request::Birth { ino }) {
        Reply::Birth(birth) => birth,
        other => panic!("{other:?}"),
    }
}

/// Detects a birth that a change moves, and one that another inode with the same name inherits.
#[test]
fn a_birth_is_the_time_of_the_creation_and_stays() {
    let f = fixture(16, 8);
    let client = f.client(1);
    assert_eq!(birth(&client, ROOT_INO), Some(client.stat(ROOT_INO).ctime));
    let file = client.create("file").attr;
    let directory = client.mkdir(ROOT_INO, "directory");
    let born = [file, directory].map(|attr| {
        assert_eq!(birth(&client, attr.ino), Some(attr.ctime));
        attr.ctime
    });
    f.clock.set(1_000_000);
    client.attr(Request::Link { ino: file.ino, parent: directory.ino, name: b"second" });
    client.unlink("file");
    let flags = RenameFlags::empty();
    client.ask(Request::Rename {
        parent: ROOT_INO,
        name: b"directory",
        new_parent: ROOT_INO,
        new_name: b"moved",
        flags,
        whiteout: None,
        moved: None,
        replaced: None,
    });
    let changes = SetAttr { perm: Some(0o600), mtime: Some(SetTime::At(5)), ..SetAttr::default() };
    assert!(client.attr(Request::SetAttr { ino: file.ino, changes }).ctime > born[0]);
    assert_eq!([file, directory].map(|attr| birth(&client, attr.ino)), born.map(Some));
    let next = client.create("file").attr;
    assert_eq!(birth(&client, next.ino), Some(next.ctime));
    assert_eq!(client.error(Request::Birth { ino: 99 }), Errno::ESTALE);
}

/// Detects a file without a name that is born when it gets its name.
#[test]
fn an_unnamed_file_is_born_when_it_is_made() {
    let f = fixture(16, 8);
    let client = f.client(1);
    let made =
        client.opened(Request::Tmpfile { parent: ROOT_INO, perm: 0o600, umask: 0, uid: 0, gid: 0 }).attr;
    let born = birth(&client, made.ino);
    assert!(born.is_some_and(|born| born <= made.ctime));
    f.clock.set(1_000_000);
    client.attr(Request::Link { ino: made.ino, parent: ROOT_INO, name: b"named" });
    assert_eq!(birth(&client, made.ino), born);
}
