//! Random operations on an export with eviction, compared with models.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::dispatch::tests::model::{perform, step};

/// An operation on a cache of files.
#[derive(Clone, Debug)]
enum Act {
    /// Reads a file, or makes it if it is missing.
    Get(usize, u64),
    /// Opens a file, and keeps it open.
    Hold(usize),
    LetGo(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..30usize, 1..6u64).prop_map(|(file, blocks)| Act::Get(file, blocks)),
        1 => (0..4usize).prop_map(Act::Hold),
        1 => (0..4usize).prop_map(Act::LetGo),
    ]
}

/// Finds all names of each regular file.
fn homes(client: &Client<'_>) -> BTreeMap<u64, BTreeSet<(u64, Vec<u8>)>> {
    let (mut homes, mut queue) = (BTreeMap::<_, BTreeSet<_>>::new(), vec![ROOT_INO]);
    while let Some(directory) = queue.pop() {
        for entry in client.page(directory, 0, 1000).entries {
            match entry.attr.kind {
                FileKind::Directory => queue.push(entry.attr.ino),
                FileKind::Regular => {
                    _ = homes.entry(entry.attr.ino).or_default().insert((directory, entry.name))
                }
                _ => {}
            }
        }
    }
    homes
}

proptest! {
    /// The files that are left are those of an exact LRU with the same marks, in which files that
    /// are held open count but stay.
    #[test]
    fn agrees_with_an_exact_lru(acts in proptest::collection::vec(act(), 1..150)) {
        let fixture = evicting(100, 1000, LRU);
        let client = fixture.client(1);
        // Files with their blocks, the least recently used first; and the files that are held.
        let mut model: Vec<(usize, u64)> = Vec::new();
        let mut held: BTreeMap<usize, u64> = BTreeMap::new();
        for act in acts {
            let (Act::Get(file, _) | Act::Hold(file) | Act::LetGo(file)) = act;
            let name = format!("f{file}");
            let at = model.iter().position(|(other, _)| *other == file);
            match act {
                Act::Get(_, blocks) => {
                    let blocks = at.map_or(blocks, |at| model.remove(at).1);
                    match client.ask(lookup(ROOT_INO, &name)) {
                        Reply::Attr(attr) => {
                            prop_assert!(at.is_some(), "{} is left", name);
                            client.open(attr.ino);
                            client.close(attr.ino);
                        }
                        reply => {
                            prop_assert_eq!((reply, at), (Reply::Error(Errno::ENOENT), None), "{} is gone", name);
                            client.put(ROOT_INO, &name, blocks);
                        }
                    }
                    model.push((file, blocks));
                }
                Act::Hold(_) if at.is_some() && !held.contains_key(&file) => {
                    let ino = client.attr(lookup(ROOT_INO, &name)).ino;
                    client.open(ino);
                    held.insert(file, ino);
                }
                Act::LetGo(_) => {
                    if let (Some(ino), Some(at)) = (held.remove(&file), at) {
                        client.close(ino);
                        let last = model.remove(at);
                        model.push(last);
                    }
                }
                Act::Hold(_) => {}
            }
            let used = |model: &[(usize, u64)]| model.iter().map(|(_, blocks)| blocks).sum::<u64>();
            if used(&model) > 90 {
                while used(&model) > 85 {
                    let oldest = model.iter().position(|(file, _)| !held.contains_key(file));
                    match oldest {
                        Some(oldest) => _ = model.remove(oldest),
                        None => break,
                    }
                }
            }
            fixture.evict();
            let mut expected: Vec<String> = model.iter().map(|(file, _)| format!("f{file}")).collect();
            let mut names = client.names(ROOT_INO);
            expected.sort_unstable();
            names.sort_unstable();
            prop_assert_eq!(names, expected);
        }
    }

    /// After any operations on names, the candidates are all files with all their names.
    #[test]
    fn candidates_have_the_names_of_files(steps in proptest::collection::vec(step(), 1..80)) {
        let fixture = evicting(4, 2000, LRU);
        let client = fixture.client(1);
        for step in &steps {
            // Whether a step succeeds is no matter here.
            let _ = perform(&client, step);
        }
        let candidates = fixture.dispatcher.eviction().unwrap().candidates().all();
        let found: BTreeMap<u64, BTreeSet<(u64, Vec<u8>)>> = candidates
            .into_iter()
            .map(|file| {
                let names = file.homes.into_iter().map(|home| (home.parent, home.name.to_vec())).collect();
                (file.file.ino, names)
            })
            .collect();
        prop_assert_eq!(found, homes(&client));
    }
}
