//! Random operations against a model of paths: a set of full paths, each with a number for its
//! file.
//!
//! Directories are paths that other paths begin with.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rfs_proto::FileKind;

use super::*;

pub(super) type Path = Vec<&'static str>;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Mkdir(Path),
    Create(Path, bool),
    Symlink(Path),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, u32),
}

pub(super) fn path() -> impl Strategy<Value = Path> {
    proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 1..4)
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => path().prop_map(Step::Mkdir),
        3 => (path(), any::<bool>()).prop_map(|(p, exclusive)| Step::Create(p, exclusive)),
        1 => path().prop_map(Step::Symlink),
        2 => (path(), path()).prop_map(|(p, q)| Step::Link(p, q)),
        2 => path().prop_map(Step::Unlink),
        2 => path().prop_map(Step::Rmdir),
        5 => (path(), path(), 0..8u32).prop_map(|(p, q, flags)| Step::Rename(p, q, flags)),
    ]
}

#[derive(Default)]
struct Model {
    paths: BTreeMap<Path, u32>,
    kinds: BTreeMap<u32, FileKind>,
}

impl Model {
    fn kind(&self, path: &Path) -> Option<FileKind> {
        if path.is_empty() {
            return Some(FileKind::Directory);
        }
        self.paths.get(path).map(|id| self.kinds[id])
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.kind(path) == Some(FileKind::Directory)
    }

    fn has_children(&self, path: &Path) -> bool {
        self.paths.keys().any(|p| p.len() > path.len() && p.starts_with(path))
    }

    /// Returns the error of looking up the directory of `path`.
    fn parent(&self, path: &Path) -> Result<(), Errno> {
        for len in 1..path.len() {
            match self.kind(&path[..len].to_vec()) {
                None => return Err(Errno::ENOENT),
                Some(FileKind::Directory) => {}
                Some(_) => return Err(Errno::ENOTDIR),
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, kind: FileKind) -> Result<(), Errno> {
        self.parent(path)?;
        if self.paths.contains_key(path) {
            return Err(Errno::EEXIST);
        }
        let id = self.kinds.len() as u32;
        self.kinds.insert(id, kind);
        self.paths.insert(path.clone(), id);
        Ok(())
    }

    /// Removes a path and all below it from the model.
    fn lift(&mut self, path: &Path) -> Vec<(Path, u32)> {
        let below: Vec<Path> = self.paths.keys().filter(|p| p.starts_with(path)).cloned().collect();
        below
            .into_iter()
            .map(|p| {
                let id = self.paths.remove(&p).unwrap();
                (p[path.len()..].to_vec(), id)
            })
            .collect()
    }

    fn drop_at(&mut self, path: &Path, lifted: Vec<(Path, u32)>) {
        for (rest, id) in lifted {
            self.paths.insert([path.clone(), rest].concat(), id);
        }
    }

    fn apply(&mut self, step: &Step) -> Result<(), Errno> {
        match step {
            Step::Mkdir(p) => self.add(p, FileKind::Directory),
            Step::Symlink(p) => self.add(p, FileKind::Symlink),
            Step::Create(p, exclusive) => match self.add(p, FileKind::Regular) {
                Err(Errno::EEXIST) if !exclusive => match self.kind(p) {
                    Some(FileKind::Regular) => Ok(()),
                    Some(FileKind::Directory) => Err(Errno::EISDIR),
                    _ => Err(Errno::EEXIST),
                },
                other => other,
            },
            Step::Link(from, to) => {
                self.parent(from)?;
                let kind = self.kind(from).ok_or(Errno::ENOENT)?;
                self.parent(to)?;
                if self.paths.contains_key(to) {
                    return Err(Errno::EEXIST);
                }
                if kind == FileKind::Directory {
                    return Err(Errno::EPERM);
                }
                self.paths.insert(to.clone(), self.paths[from]);
                Ok(())
            }
            Step::Unlink(p) => {
                self.parent(p)?;
                match self.kind(p) {
                    None => Err(Errno::ENOENT),
                    Some(FileKind::Directory) => Err(Errno::EISDIR),
                    Some(_) => {
                        self.paths.remove(p);
                        Ok(())
                    }
                }
            }
            Step::Rmdir(p) => {
                self.parent(p)?;
                match self.kind(p) {
                    None => Err(Errno::ENOENT),
                    Some(FileKind::Directory) if self.has_children(p) => Err(Errno::ENOTEMPTY),
                    Some(FileKind::Directory) => {
                        self.paths.remove(p);
                        Ok(())
                    }
                    Some(_) => Err(Errno::ENOTDIR),
                }
            }
            Step::Rename(from, to, flags) => self.rename(from, to, *flags),
        }
    }

    fn rename(&mut self, from: &Path, to: &Path, flags: u32) -> Result<(), Errno> {
        self.parent(from)?;
        self.parent(to)?;
        let (flags, whiteout) = (flags & !WHITEOUT, flags & WHITEOUT != 0);
        if flags == 3 || flags == 2 && whiteout {
            return Err(Errno::EINVAL);
        }
        let source = self.kind(from).ok_or(Errno::ENOENT)?;
        let target = self.kind(to);
        if flags == 1 && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if source == FileKind::Directory && to.len() > from.len() && to.starts_with(from) {
            return Err(Errno::EINVAL);
        }
        if target.is_some() && from.len() > to.len() && from.starts_with(to) {
            return Err(if flags == 2 { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        let Some(target) = target else {
            if flags == 2 {
                return Err(Errno::ENOENT);
            }
            let lifted = self.lift(from);
            self.drop_at(to, lifted);
            return if whiteout { self.add(from, FileKind::CharDevice) } else { Ok(()) };
        };
        if self.paths[from] == self.paths[to] {
            return Ok(());
        }
        if flags == 2 {
            let (one, other) = (self.lift(from), self.lift(to));
            self.drop_at(to, one);
            self.drop_at(from, other);
            return Ok(());
        }
        match (source == FileKind::Directory, target == FileKind::Directory) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (true, true) if self.has_children(to) => Err(Errno::ENOTEMPTY),
            _ => {
                self.lift(to);
                let lifted = self.lift(from);
                self.drop_at(to, lifted);
                if whiteout { self.add(from, FileKind::CharDevice) } else { Ok(()) }
            }
        }
    }
}

/// Finds the directory of a path as a kernel does, name by name.
pub(super) fn walk(client: &Client<'_>, path: &[&'static str]) -> Result<u64, Errno> {
    path.iter().try_fold(ROOT_INO, |at, name| match client.ask(lookup(at, name)) {
        Reply::Attr(attr) => Ok(attr.ino),
        Reply::Error(errno) => Err(errno),
        other => panic!("{other:?}"),
    })
}

/// Returns directory and name of a path, and checks the directory as a kernel does.
fn place(client: &Client<'_>, path: &Path) -> Result<(u64, &'static str), Errno> {
    let (name, directories) = path.split_last().unwrap();
    let parent = walk(client, directories)?;
    match client.stat(parent).kind {
        FileKind::Directory => Ok((parent, name)),
        _ => Err(Errno::ENOTDIR),
    }
}

pub(super) fn perform(client: &Client<'_>, step: &Step) -> Result<(), Errno> {
    let reply = match step {
        Step::Mkdir(p) => {
            let (parent, name) = place(client, p)?;
            client.ask(Request::Mkdir {
                parent,
                name: name.as_bytes(),
                perm: 0o755,
                umask: 0,
                uid: 0,
                gid: 0,
            })
        }
        Step::Create(p, exclusive) => {
            let (parent, name) = place(client, p)?;
            let reply = client.ask(create(parent, name, *exclusive));
            if let Reply::Opened(opened) = &reply {
                client.close(opened.attr.ino);
            }
            reply
        }
        Step::Symlink(p) => {
            let (parent, name) = place(client, p)?;
            client.ask(Request::Symlink { parent, name: name.as_bytes(), target: b"t", uid: 0, gid: 0 })
        }
        Step::Link(from, to) => {
            let (parent, name) = place(client, from)?;
            let ino = match client.ask(lookup(parent, name)) {
                Reply::Attr(attr) => attr.ino,
                reply => return outcome(reply),
            };
            let (parent, name) = place(client, to)?;
            client.ask(Request::Link { ino, parent, name: name.as_bytes() })
        }
        Step::Unlink(p) => {
            let (parent, name) = place(client, p)?;
            client.ask(Request::Unlink { parent, name: name.as_bytes() })
        }
        Step::Rmdir(p) => {
            let (parent, name) = place(client, p)?;
            client.ask(Request::Rmdir { parent, name: name.as_bytes() })
        }
        Step::Rename(from, to, flags) => {
            let (from, to) = (place(client, from)?, place(client, to)?);
            client.ask(rename_as(from, to, *flags))
        }
    };
    outcome(reply)
}

fn outcome(reply: Reply) -> Result<(), Errno> {
    match reply {
        Reply::Error(errno) => Err(errno),
        _ => Ok(()),
    }
}

/// Compares the whole tree with the model: names, kinds, identity and link counts. No other inode
/// exists.
fn compare(fixture: &Fixture, client: &Client<'_>, model: &Model) {
    let mut seen: BTreeMap<Path, u64> = BTreeMap::new();
    let mut queue: Vec<(Path, u64, u64)> = vec![(vec![], ROOT_INO, ROOT_INO)];
    while let Some((path, ino, parent)) = queue.pop() {
        let page = client.page(ino, 0, 100);
        assert!(page.end);
        assert_eq!(page.parent, parent, "{path:?}");
        let mut subdirectories = 0;
        for entry in page.entries {
            let name = ["a", "b", "c"].into_iter().find(|n| n.as_bytes() == entry.name).unwrap();
            let child = [path.clone(), vec![name]].concat();
            assert_eq!(Some(entry.attr.kind), model.kind(&child), "{child:?}");
            if entry.attr.kind == FileKind::Directory {
                subdirectories += 1;
                queue.push((child.clone(), entry.attr.ino, ino));
            } else {
                let id = model.paths[&child];
                let links = model.paths.values().filter(|&&other| other == id).count();
                assert_eq!(entry.attr.nlink as usize, links, "{child:?}");
            }
            seen.insert(child, entry.attr.ino);
        }
        assert_eq!(client.stat(ino).nlink, 2 + subdirectories, "{path:?}");
        assert!(model.is_directory(&path));
    }
    assert!(seen.keys().eq(model.paths.keys()));
    let pairs: BTreeSet<(u64, u32)> = seen.values().copied().zip(model.paths.values().copied()).collect();
    let inos: BTreeSet<u64> = pairs.iter().map(|pair| pair.0).collect();
    let ids: BTreeSet<u32> = pairs.iter().map(|pair| pair.1).collect();
    assert_eq!((pairs.len(), pairs.len()), (inos.len(), ids.len()), "identities differ");
    assert_eq!(fixture.free_inodes(), 199 - inos.len() as u64);
}

proptest! {
    #[test]
    fn agrees_with_a_model_of_paths(
        steps in proptest::collection::vec(step(), 1..80),
        in_order_only in any::<bool>(),
    ) {
        let mut fixture = fixture(4, 200);
        if in_order_only {
            fixture.dispatcher.store.shards.lock_in_order_only();
        }
        let client = fixture.client(1);
        let mut model = Model::default();
        for step in &steps {
            let expected = model.apply(step);
            prop_assert_eq!(perform(&client, step), expected, "{:?}", step);
        }
        compare(&fixture, &client, &model);
    }
}
