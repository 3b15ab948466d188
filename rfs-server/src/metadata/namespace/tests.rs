use std::collections::HashMap;

use rfs_proto::{Owner, ROOT_INO, RenameFlags, acl::Acl};

use super::*;

const NONE: RenameFlags = RenameFlags::empty();

fn new(kind: FileKind) -> New<'static> {
    New { kind, perm: 0o755, umask: 0, uid: 10, gid: 20, rdev: 9, target: b"to", slot: 0 }
}

/// Inodes of a single test.
struct Alone(HashMap<u64, Inode>);

impl Inodes for Alone {
    type Stop = Errno;

    fn need(&mut self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn get(&self, ino: u64) -> Result<&Inode, Errno> {
        self.0.get(&ino).ok_or(Errno::ESTALE)
    }
}

impl InodesMut for Alone {
    fn get_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.0.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn fresh(&mut self) -> Result<u64, Errno> {
        Ok(self.0.keys().max().unwrap() + 1)
    }

    fn insert(&mut self, ino: u64, inode: Inode) {
        assert!(self.0.insert(ino, inode).is_none());
    }

    fn remove(&mut self, ino: u64) -> Option<Inode> {
        self.0.remove(&ino)
    }

    fn is_within(&mut self, directory: u64, ancestor: u64) -> Result<bool, Errno> {
        let mut at = directory;
        while at != ancestor && at != ROOT_INO {
            at = self.get(at)?.directory().ok_or(Errno::ENOTDIR)?.parent;
        }
        Ok(at == ancestor)
    }
}

type Namespace = super::Namespace<Alone>;

fn namespace() -> Namespace {
    let root = Inode::new(new(FileKind::Directory), ROOT_INO, 1);
    Namespace::new(Alone(HashMap::from([(ROOT_INO, root)])))
}

/// Makes `path`, components separated by `/`; the last is a directory if it ends in `/`.
fn make(ns: &mut Namespace, path: &str) -> u64 {
    let (path, kind) = match path.strip_suffix('/') {
        Some(path) => (path, FileKind::Directory),
        None => (path, FileKind::Regular),
    };
    let (parent, name) = place(ns, path);
    ns.make(parent, name.as_bytes(), new(kind), 2).unwrap().0
}

fn place<'a>(ns: &Namespace, path: &'a str) -> (u64, &'a str) {
    let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
    let directories = directories.split('/').filter(|name| !name.is_empty());
    (directories.fold(ROOT_INO, |at, name| ns.lookup(at, name.as_bytes()).unwrap()), name)
}

fn rename(ns: &mut Namespace, from: &str, to: &str, flags: RenameFlags) -> Result<Effects, Errno> {
    let ((from_parent, from), (to_parent, to)) = (place(ns, from), place(ns, to));
    let from = Place { parent: from_parent, name: from.as_bytes() };
    let to = Place { parent: to_parent, name: to.as_bytes() };
    ns.rename(from, to, flags, None, 50)
}

/// Returns the same, with a whiteout of user 7 and group 8 at the old name.
fn rename_over(ns: &mut Namespace, from: &str, to: &str, flags: RenameFlags) -> Result<Effects, Errno> {
    let ((from_parent, from), (to_parent, to)) = (place(ns, from), place(ns, to));
    let from = Place { parent: from_parent, name: from.as_bytes() };
    let to = Place { parent: to_parent, name: to.as_bytes() };
    let may = ns.may_rename(from, to, flags, true);
    let left = New::whiteout(Owner { uid: 7, gid: 8 }, 33);
    let renamed = ns.rename(from, to, flags, Some(left), 50);
    assert_eq!(may, renamed.as_ref().map(|effects| *effects != Effects::default()).map_err(|&errno| errno));
    renamed
}

fn ino(ns: &Namespace, path: &str) -> Result<u64, Errno> {
    let (parent, name) = place(ns, path);
    ns.lookup(parent, name.as_bytes())
}

fn nlink(ns: &Namespace, ino: u64) -> u32 {
    ns.get(ino).unwrap().nlink
}

/// Returns mtime and ctime.
fn times(ns: &Namespace, ino: u64) -> (i64, i64) {
    let inode = ns.get(ino).unwrap();
    (inode.mtime, inode.ctime)
}

#[test]
fn names_from_outside() {
    let mut ns = namespace();
    assert_eq!(ns.lookup(ROOT_INO, b""), Err(Errno::ENOENT));
    assert_eq!(ns.lookup(ROOT_INO, &[b'x'; 255]), Err(Errno::ENOENT));
    assert_eq!(ns.lookup(ROOT_INO, &[b'x'; 256]), Err(Errno::ENAMETOOLONG));
    assert_eq!(ns.lookup(ROOT_INO, b"a/b"), Err(Errno::EINVAL));
    assert_eq!(ns.lookup(ROOT_INO, b"a\0"), Err(Errno::EINVAL));
    let make = |ns: &mut Namespace, name: &[u8]| ns.make(ROOT_INO, name, new(FileKind::Regular), 2).err();
    assert_eq!(make(&mut ns, &[b'x'; 255]), None);
    assert_eq!(make(&mut ns, &[b'x'; 256]), Some(Errno::ENAMETOOLONG));
    assert_eq!(make(&mut ns, b""), Some(Errno::ENOENT));
    assert_eq!(make(&mut ns, b"."), Some(Errno::EEXIST));
    assert_eq!(make(&mut ns, b".."), Some(Errno::EEXIST));
    assert_eq!(make(&mut ns, b"/"), Some(Errno::EINVAL));
    assert_eq!(ns.unlink(ROOT_INO, b".", 2), Err(Errno::EISDIR));
    assert_eq!(ns.rmdir(ROOT_INO, b".", 2), Err(Errno::EINVAL));
    assert_eq!(ns.rmdir(ROOT_INO, b"..", 2), Err(Errno::ENOTEMPTY));
    assert_eq!(rename(&mut ns, ".", "x", NONE), Err(Errno::EBUSY));
    assert_eq!(rename(&mut ns, "x", "..", NONE), Err(Errno::EBUSY));
}

#[test]
fn parents_that_are_none() {
    let mut ns = namespace();
    let file = make(&mut ns, "f");
    assert_eq!(ns.lookup(file, b"x"), Err(Errno::ENOTDIR));
    assert_eq!(ns.lookup(999, b"x"), Err(Errno::ESTALE));
    assert_eq!(ns.make(file, b"x", new(FileKind::Regular), 2).err(), Some(Errno::ENOTDIR));
    assert_eq!(ns.link(file, file, b"x", 2), Err(Errno::ENOTDIR));
    assert_eq!(ns.link(999, ROOT_INO, b"x", 2), Err(Errno::ESTALE));
    assert_eq!(ns.unlink(file, b"x", 2), Err(Errno::ENOTDIR));
    assert_eq!(ns.rmdir(ROOT_INO, b"f", 2), Err(Errno::ENOTDIR));
    assert_eq!(ns.rmdir(ROOT_INO, b"x", 2), Err(Errno::ENOENT));
}

#[test]
fn dot_and_dot_dot() {
    let mut ns = namespace();
    let inner = {
        make(&mut ns, "a/");
        make(&mut ns, "a/b/")
    };
    let outer = ino(&ns, "a").unwrap();
    assert_eq!((ns.lookup(inner, b"."), ns.lookup(inner, b"..")), (Ok(inner), Ok(outer)));
    assert_eq!(ns.lookup(ROOT_INO, b".."), Ok(ROOT_INO));
    rename(&mut ns, "a/b", "b", NONE).unwrap();
    assert_eq!(ns.lookup(inner, b".."), Ok(ROOT_INO));
}

#[test]
fn setgid_directories_hand_their_group_on() {
    let mut ns = namespace();
    let dir = make(&mut ns, "d/");
    ns.get_mut(dir).unwrap().perm = 0o2770;
    ns.get_mut(dir).unwrap().gid = 77;
    let (file, inner) = (make(&mut ns, "d/f"), make(&mut ns, "d/e/"));
    let seen = |ino| (ns.get(ino).unwrap().gid, ns.get(ino).unwrap().perm);
    assert_eq!(seen(file), (77, 0o755));
    assert_eq!(seen(inner), (77, 0o2755));
    assert_eq!(ns.get(dir).unwrap().uid, 10);
}

#[test]
fn device_numbers_are_for_devices() {
    let mut ns = namespace();
    for (name, kind, rdev) in
        [("c", FileKind::CharDevice, 9), ("b", FileKind::BlockDevice, 9), ("p", FileKind::Fifo, 0)]
    {
        let (ino, _) = ns.make(ROOT_INO, name.as_bytes(), new(kind), 2).unwrap();
        assert_eq!(ns.get(ino).unwrap().attr(ino).rdev, rdev);
    }
    let (link, _) = ns.make(ROOT_INO, b"l", new(FileKind::Symlink), 2).unwrap();
    assert_eq!(ns.get(link).unwrap().attr(link).size, 2);
}

#[test]
fn link_counts_and_times() {
    let mut ns = namespace();
    assert_eq!(nlink(&ns, ROOT_INO), 2);
    let dir = make(&mut ns, "d/");
    let file = make(&mut ns, "d/f");
    assert_eq!((nlink(&ns, ROOT_INO), nlink(&ns, dir), nlink(&ns, file)), (3, 2, 1));
    assert_eq!((times(&ns, ROOT_INO), times(&ns, dir), times(&ns, file)), ((2, 2), (2, 2), (2, 2)));

    let effects = ns.link(file, ROOT_INO, b"g", 10).unwrap();
    assert_eq!(effects, Effects { touched: vec![ROOT_INO, file], ..Effects::default() });
    assert_eq!((nlink(&ns, file), times(&ns, file), times(&ns, ROOT_INO)), (2, (2, 10), (10, 10)));
    assert_eq!(ns.link(file, dir, b"f", 11), Err(Errno::EEXIST));
    assert_eq!(ns.link(dir, ROOT_INO, b"h", 11), Err(Errno::EPERM));
    assert_eq!(ns.link(dir, ROOT_INO, b"g", 11), Err(Errno::EEXIST));

    let effects = ns.unlink(dir, b"f", 20).unwrap();
    assert_eq!(effects, Effects { touched: vec![dir, file], ..Effects::default() });
    assert_eq!((times(&ns, file), times(&ns, dir), times(&ns, ROOT_INO)), ((2, 20), (20, 20), (10, 10)));
    let effects = ns.unlink(ROOT_INO, b"g", 30).unwrap();
    assert_eq!(effects.orphaned, Some(file));
    assert_eq!((nlink(&ns, file), times(&ns, file)), (0, (2, 30)));
    assert_eq!(ns.link(file, ROOT_INO, b"back", 31), Err(Errno::ENOENT));

    assert_eq!(ns.unlink(ROOT_INO, b"d", 40), Err(Errno::EISDIR));
    let effects = ns.rmdir(ROOT_INO, b"d", 40).unwrap();
    assert_eq!(effects, Effects { touched: vec![ROOT_INO, dir], orphaned: Some(dir), ..Effects::default() });
    assert_eq!((nlink(&ns, ROOT_INO), nlink(&ns, dir), times(&ns, ROOT_INO)), (2, 0, (40, 40)));
}

#[test]
fn too_many_links() {
    let mut ns = namespace();
    ns.max_links = 3;
    let file = make(&mut ns, "f");
    ns.link(file, ROOT_INO, b"f2", 2).unwrap();
    ns.link(file, ROOT_INO, b"f3", 2).unwrap();
    assert_eq!(ns.link(file, ROOT_INO, b"f4", 2), Err(Errno::EMLINK));
    make(&mut ns, "d/");
    make(&mut ns, "d/e/");
    assert_eq!(ns.may_make(ROOT_INO, b"d2", FileKind::Directory), Err(Errno::EMLINK));
    assert_eq!(ns.may_make(ROOT_INO, b"d2", FileKind::Regular), Ok(()));
    assert_eq!(rename(&mut ns, "d/e", "e", NONE), Err(Errno::EMLINK));
    assert_eq!(rename(&mut ns, "d/e", "f", RenameFlags::EXCHANGE), Err(Errno::EMLINK));
    // Within one directory, and over an empty one, the count is unchanged.
    rename(&mut ns, "d", "x", NONE).unwrap();
    make(&mut ns, "x/g");
    assert_eq!(
        rename(&mut ns, "x/g", "x/e", RenameFlags::EXCHANGE),
        Ok(Effects {
            touched: vec![
                ino(&ns, "x").unwrap(),
                ino(&ns, "x").unwrap(),
                ino(&ns, "x/e").unwrap(),
                ino(&ns, "x/g").unwrap()
            ],
            ..Effects::default()
        })
    );
}

#[test]
fn rename_moves() {
    let mut ns = namespace();
    let (a, b) = (make(&mut ns, "a/"), make(&mut ns, "b/"));
    let (dir, file) = (make(&mut ns, "a/d/"), make(&mut ns, "a/f"));
    let effects = rename(&mut ns, "a/d", "b/d2", NONE).unwrap();
    assert_eq!(effects, Effects { touched: vec![a, b, dir], moved: vec![dir], ..Effects::default() });
    assert_eq!((nlink(&ns, a), nlink(&ns, b), nlink(&ns, dir)), (2, 3, 2));
    assert_eq!((times(&ns, a), times(&ns, b), times(&ns, dir)), ((50, 50), (50, 50), (2, 50)));
    rename(&mut ns, "a/f", "b/f", NONE).unwrap();
    assert_eq!((ino(&ns, "a/f"), ino(&ns, "b/f")), (Err(Errno::ENOENT), Ok(file)));
    assert_eq!(rename(&mut ns, "a/f", "b/x", NONE), Err(Errno::ENOENT));
}

#[test]
fn rename_replaces() {
    let mut ns = namespace();
    for path in ["empty/", "full/", "full/x", "d/", "e/", "e/in"] {
        make(&mut ns, path);
    }
    let (f, g) = (make(&mut ns, "f"), make(&mut ns, "g"));
    assert_eq!(rename(&mut ns, "f", "empty", NONE), Err(Errno::EISDIR));
    assert_eq!(rename(&mut ns, "d", "f", NONE), Err(Errno::ENOTDIR));
    assert_eq!(rename(&mut ns, "d", "full", NONE), Err(Errno::ENOTEMPTY));
    assert_eq!(rename(&mut ns, "f", "g", RenameFlags::NOREPLACE), Err(Errno::EEXIST));

    let effects = rename(&mut ns, "f", "g", NONE).unwrap();
    assert_eq!(
        effects,
        Effects { touched: vec![ROOT_INO, ROOT_INO, f, g], orphaned: Some(g), ..Effects::default() }
    );
    assert_eq!((times(&ns, f), times(&ns, g), nlink(&ns, g)), ((2, 50), (2, 50), 0));
    assert_eq!((ino(&ns, "f"), ino(&ns, "g")), (Err(Errno::ENOENT), Ok(f)));

    let (e, empty) = (ino(&ns, "e").unwrap(), ino(&ns, "empty").unwrap());
    let before = nlink(&ns, ROOT_INO);
    assert_eq!(rename(&mut ns, "e", "empty", NONE).unwrap().orphaned, Some(empty));
    assert_eq!((ino(&ns, "empty"), nlink(&ns, ROOT_INO)), (Ok(e), before - 1));
    assert_eq!(ino(&ns, "empty/in").unwrap(), ns.lookup(e, b"in").unwrap());
}

#[test]
fn rename_of_one_inode_onto_itself_does_nothing() {
    let mut ns = namespace();
    let file = make(&mut ns, "f");
    ns.link(file, ROOT_INO, b"g", 3).unwrap();
    assert_eq!(rename(&mut ns, "f", "g", NONE), Ok(Effects::default()));
    assert_eq!(rename(&mut ns, "f", "f", NONE), Ok(Effects::default()));
    assert_eq!(rename(&mut ns, "f", "g", RenameFlags::EXCHANGE), Ok(Effects::default()));
    assert_eq!(rename(&mut ns, "f", "g", RenameFlags::NOREPLACE), Err(Errno::EEXIST));
    assert_eq!((nlink(&ns, file), times(&ns, file)), (2, (2, 3)));
    assert_eq!((ino(&ns, "f"), ino(&ns, "g")), (Ok(file), Ok(file)));
}

#[test]
fn rename_makes_no_loops() {
    let mut ns = namespace();
    for path in ["a/", "a/b/", "a/b/c/", "a/b/c/f"] {
        make(&mut ns, path);
    }
    assert_eq!(rename(&mut ns, "a", "a/b/x", NONE), Err(Errno::EINVAL));
    assert_eq!(rename(&mut ns, "a", "a/x", NONE), Err(Errno::EINVAL));
    assert_eq!(rename(&mut ns, "a", "a/b", RenameFlags::EXCHANGE), Err(Errno::EINVAL));
    assert_eq!(rename(&mut ns, "a/b/c", "a", NONE), Err(Errno::ENOTEMPTY));
    assert_eq!(rename(&mut ns, "a/b/c/f", "a/b", NONE), Err(Errno::ENOTEMPTY));
    assert_eq!(rename(&mut ns, "a/b/c", "a", RenameFlags::EXCHANGE), Err(Errno::EINVAL));
    assert_eq!(rename(&mut ns, "a/b/c", "c", NONE).map(|_| ()), Ok(()));
}

#[test]
fn rename_exchanges() {
    let mut ns = namespace();
    let (a, b) = (make(&mut ns, "a/"), make(&mut ns, "b/"));
    let (dir, file) = (make(&mut ns, "a/d/"), make(&mut ns, "b/f"));
    let effects = rename(&mut ns, "a/d", "b/f", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(effects, Effects { touched: vec![a, b, dir, file], moved: vec![dir], ..Effects::default() });
    assert_eq!((ino(&ns, "a/d"), ino(&ns, "b/f")), (Ok(file), Ok(dir)));
    assert_eq!((nlink(&ns, a), nlink(&ns, b)), (2, 3));
    assert_eq!(ns.lookup(dir, b".."), Ok(b));
    assert_eq!((times(&ns, dir), times(&ns, file), times(&ns, a)), ((2, 50), (2, 50), (50, 50)));
    assert_eq!(rename(&mut ns, "a/d", "nothing", RenameFlags::EXCHANGE), Err(Errno::ENOENT));
    assert_eq!(
        rename(&mut ns, "a/d", "b/f", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE),
        Err(Errno::EINVAL)
    );
    let unknown = RenameFlags::from_bits_retain(4);
    assert_eq!(rename(&mut ns, "a/d", "b/f", unknown), Err(Errno::EINVAL));
}

/// Returns attributes of a whiteout: kind, permission bits, links, owner, group, device, record,
/// times.
fn whiteout(ns: &Namespace, ino: u64) -> (FileKind, u32, u32, u32, u32, u32, u32, [i64; 3]) {
    let Inode { kind, perm, nlink, uid, gid, rdev, slot, atime, mtime, ctime, .. } = *ns.get(ino).unwrap();
    (kind, perm, nlink, uid, gid, rdev, slot, [atime, mtime, ctime])
}

const WHITEOUT: (FileKind, u32, u32, u32, u32, u32, u32, [i64; 3]) =
    (FileKind::CharDevice, 0, 1, 7, 8, 0, 33, [50; 3]);

#[test]
fn rename_leaves_a_whiteout() {
    let mut ns = namespace();
    let (a, b) = (make(&mut ns, "a/"), make(&mut ns, "b/"));
    let (dir, file, other) = (make(&mut ns, "a/d/"), make(&mut ns, "a/f"), make(&mut ns, "a/g"));
    // Within a directory, to a new name: the old one keeps its cookie.
    let cookie = |ns: &Namespace, name: &str| ns.directory(a).unwrap().cookie(name.as_bytes());
    let effects = rename_over(&mut ns, "a/f", "a/h", NONE).unwrap();
    let made = ino(&ns, "a/f").unwrap();
    let touched = vec![a, a, file];
    assert_eq!(effects, Effects { touched, made: Some(made), ..Effects::default() });
    assert_eq!((ino(&ns, "a/h"), whiteout(&ns, made), times(&ns, a)), (Ok(file), WHITEOUT, (50, 50)));
    assert_eq!(["f", "g", "h"].map(|name| cookie(&ns, name)), [Some(2), Some(3), Some(4)]);
    // Over another entry, and over a whiteout.
    let effects = rename_over(&mut ns, "a/h", "a/g", NONE).unwrap();
    assert_eq!((ino(&ns, "a/g"), effects.orphaned), (Ok(file), Some(other)));
    assert_eq!(effects.made, Some(ino(&ns, "a/h").unwrap()));
    assert_eq!(rename_over(&mut ns, "a/g", "a/f", NONE).unwrap().orphaned, Some(made));
    assert_eq!(["f", "g", "h"].map(|name| cookie(&ns, name)), [Some(2), Some(3), Some(4)]);
    // A directory moves to another one: its old parent has no directory left.
    let effects = rename_over(&mut ns, "a/d", "b/d", RenameFlags::NOREPLACE).unwrap();
    let made = ino(&ns, "a/d").unwrap();
    let (touched, moved) = (vec![a, b, dir], vec![dir]);
    assert_eq!(effects, Effects { touched, moved, made: Some(made), ..Effects::default() });
    assert_eq!((nlink(&ns, a), nlink(&ns, b), nlink(&ns, dir), whiteout(&ns, made)), (2, 3, 2, WHITEOUT));
    // It then replaces an empty directory in its own parent.
    let empty = make(&mut ns, "b/e/");
    assert_eq!(rename_over(&mut ns, "b/d", "b/e", NONE).unwrap().orphaned, Some(empty));
    assert_eq!((nlink(&ns, b), ino(&ns, "b/e")), (3, Ok(dir)));
}

#[test]
fn no_whiteout_is_left_where_nothing_is_renamed() {
    let mut ns = namespace();
    let file = make(&mut ns, "f");
    ns.link(file, ROOT_INO, b"g", 3).unwrap();
    make(&mut ns, "full/");
    make(&mut ns, "full/x");
    make(&mut ns, "d/");
    let before = ns.inodes().0.len();
    for (from, to) in [("f", "f"), ("f", "g")] {
        assert_eq!(rename_over(&mut ns, from, to, NONE), Ok(Effects::default()));
    }
    let exchange = RenameFlags::EXCHANGE;
    for (from, to, flags, errno) in [
        ("f", "full/x", exchange, Errno::EINVAL),
        ("f", "g", exchange, Errno::EINVAL),
        ("f", "full/x", RenameFlags::NOREPLACE, Errno::EEXIST),
        ("f", "d", NONE, Errno::EISDIR),
        ("d", "f", NONE, Errno::ENOTDIR),
        ("d", "full", NONE, Errno::ENOTEMPTY),
        ("d", "d/e", NONE, Errno::EINVAL),
        ("none", "x", NONE, Errno::ENOENT),
    ] {
        assert_eq!(rename_over(&mut ns, from, to, flags), Err(errno), "{from} {to}");
    }
    assert_eq!((ns.inodes().0.len(), ino(&ns, "f"), nlink(&ns, file)), (before, Ok(file), 2));
}

#[test]
fn a_whiteout_gets_group_and_acl_from_the_directory() {
    let mut ns = namespace();
    let dir = make(&mut ns, "d/");
    make(&mut ns, "d/f");
    // user::rwx, user 5:rwx, group::rwx, mask::rwx, other::rwx
    let entries = [(1u16, u32::MAX), (2, 5), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, id) in entries {
        value.extend([tag.to_le_bytes(), 7u16.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    let inode = ns.get_mut(dir).unwrap();
    (inode.perm, inode.gid) = (0o2777, 77);
    inode.set_acl(XattrName::Default, Acl::decode(&value).unwrap());
    rename_over(&mut ns, "d/f", "g", NONE).unwrap();
    let made = ino(&ns, "d/f").unwrap();
    let (kind, perm, nlink, uid, _, rdev, slot, times) = WHITEOUT;
    assert_eq!(whiteout(&ns, made), (kind, perm, nlink, uid, 77, rdev, slot, times));
    // The mask removes the permissions that the list gives to user 5.
    let access = ns.get(made).unwrap().xattrs.as_ref().unwrap().get(XattrName::Access).unwrap();
    assert_eq!(Acl::decode(&access).unwrap().unwrap().permissions(), 0);
    assert!(!Acl::decode(&access).unwrap().unwrap().is_minimal());
}
