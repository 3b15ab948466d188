//! Random steps in a directory, and a model of its content.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use crate::common::{pattern, random::Random};

const NAMES: u64 = 12;

/// Expected content of a directory: names, the file of each name, and the bytes of each file.
#[derive(Default)]
pub(super) struct Model {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
}

impl Model {
    fn links(&self, file: usize) -> u64 {
        self.names.values().filter(|number| **number == file).count() as u64
    }

    fn create(&mut self, random: &mut Random, dir: &Path, name: &str) {
        let made = OpenOptions::new().write(true).create_new(true).open(dir.join(name));
        match (made, self.names.get(name)) {
            (Ok(file), None) => {
                let bytes = pattern(random.below(20_000) as usize, random.below(1 << 20));
                file.write_all_at(&bytes, 0).expect("written");
                self.files.push(bytes);
                self.names.insert(name.into(), self.files.len() - 1);
            }
            (Err(e), Some(_)) => assert_eq!(e.kind(), ErrorKind::AlreadyExists),
            (made, known) => panic!("{name} should be {known:?}: {made:?}"),
        }
    }

    fn remove(&mut self, dir: &Path, name: &str) {
        match (fs::remove_file(dir.join(name)), self.names.remove(name)) {
            (Ok(()), Some(_)) => {}
            (Err(e), None) => assert_eq!(e.kind(), ErrorKind::NotFound),
            (removed, known) => panic!("{name} should be {known:?}: {removed:?}"),
        }
    }

    fn rename(&mut self, dir: &Path, from: &str, to: &str) {
        match (fs::rename(dir.join(from), dir.join(to)), self.names.get(from).copied()) {
            (Ok(()), Some(file)) => {
                // Renaming one link of a file over another one changes nothing.
                if self.names.get(to) != Some(&file) {
                    self.names.remove(from);
                    self.names.insert(to.into(), file);
                }
            }
            (Err(e), None) => assert_eq!(e.kind(), ErrorKind::NotFound),
            (renamed, known) => panic!("{from} should be {known:?}: {renamed:?}"),
        }
    }

    fn link(&mut self, dir: &Path, from: &str, to: &str) {
        let linked = fs::hard_link(dir.join(from), dir.join(to));
        match (linked, self.names.get(from).copied(), self.names.contains_key(to)) {
            (Ok(()), Some(file), false) => drop(self.names.insert(to.into(), file)),
            (Err(e), Some(_), true) => assert_eq!(e.kind(), ErrorKind::AlreadyExists),
            (Err(e), None, _) => {
                assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists), "{e}")
            }
            (linked, known, there) => panic!("{from} {known:?}, {to} {there}: {linked:?}"),
        }
    }

    fn append(&mut self, random: &mut Random, path: &Path, file: usize) {
        let bytes = pattern(random.below(9000) as usize + 1, random.below(1 << 20));
        let mut open = OpenOptions::new().append(true).open(path).expect("opened");
        open.write_all(&bytes).expect("appended");
        self.files[file].extend_from_slice(&bytes);
    }

    /// Writes under a lock.
    fn write(&mut self, random: &mut Random, path: &Path, file: usize) {
        let open = OpenOptions::new().read(true).write(true).open(path).expect("opened");
        flock(&open, FlockOperation::LockExclusive).expect("locked");
        let (at, bytes) = (random.below(40_000), pattern(3000, random.below(1 << 20)));
        open.write_all_at(&bytes, at).expect("written");
        flock(&open, FlockOperation::Unlock).expect("unlocked");
        let (at, model) = (at as usize, &mut self.files[file]);
        if model.len() < at + bytes.len() {
            model.resize(at + bytes.len(), 0);
        }
        model[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    fn truncate(&mut self, random: &mut Random, path: &Path, file: usize) {
        let len = random.below(30_000);
        OpenOptions::new().write(true).open(path).expect("opened").set_len(len).expect("cut");
        self.files[file].resize(len as usize, 0);
    }
}

/// Runs one step in the directory and on the model. Returns its description.
pub(super) fn step(random: &mut Random, dir: &Path, model: &mut Model) -> String {
    let [one, two] = [(); 2].map(|()| format!("n{}", random.below(NAMES)));
    let (path, known) = (dir.join(&one), model.names.get(&one).copied());
    match random.below(8) {
        0 | 1 => {
            model.create(random, dir, &one);
            format!("create {one}")
        }
        2 => {
            model.remove(dir, &one);
            format!("remove {one}")
        }
        3 => {
            model.rename(dir, &one, &two);
            format!("rename {one} {two}")
        }
        4 => {
            model.link(dir, &one, &two);
            format!("link {one} {two}")
        }
        5 => {
            known.into_iter().for_each(|file| model.append(random, &path, file));
            format!("append {one}")
        }
        6 => {
            known.into_iter().for_each(|file| model.write(random, &path, file));
            format!("write {one}")
        }
        _ => {
            known.into_iter().for_each(|file| model.truncate(random, &path, file));
            format!("truncate {one}")
        }
    }
}

pub(super) fn check(dir: &Path, model: &Model) {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("listed")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, model.names.keys().cloned().collect::<Vec<_>>());
    for (name, &file) in &model.names {
        assert!(fs::read(dir.join(name)).expect("read") == model.files[file], "bytes of {name}");
        assert_eq!(fs::metadata(dir.join(name)).expect("attributes").nlink(), model.links(file), "{name}");
    }
}
