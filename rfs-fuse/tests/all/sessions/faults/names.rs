//! Names under faults: sessions end at any moment and new ones follow. Each change happens
//! exactly once, and its caller gets the outcome. If the caller gets no outcome within its time
//! limit, the change happened once or not at all.

use std::{collections::BTreeMap, thread, time::Duration};

use rdmabox::{
    CallsBy, ProviderKind,
    provider::fault::{Chance, Faults, Plan, seeds},
};
use rfs_client::{AttachOptions, Client, ClientError};
use rfs_proto::{Errno, FileKind, Owner, ROOT_INO, RenameFlags, SetAttr, XattrSet};
use rfs_server::Server;

use super::{BY, address, on_threads, options, server};

const CHANGES: usize = 30;
/// Only a few names, so that most changes meet existing names or fail.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// An attribute that every inode may have.
const MARK: &[u8] = b"trusted.mark";
/// Owner of whiteouts.
const OWNER: Owner = Owner { uid: 3, gid: 4 };
/// Maximum attempts to get a first session, and to read the final state.
const ATTEMPTS: usize = 1000;
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Create(&'static str),
    Mkdir(&'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str, RenameFlags),
    /// Leaves a whiteout at the old name.
    RenameOver(&'static str, &'static str),
    Link(&'static str, &'static str),
    Chmod(&'static str, u32),
    Mark(&'static str),
    Unmark(&'static str),
}

/// The inode of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inode {
    ino: u64,
    directory: bool,
    nlink: u32,
    perm: u32,
    marked: bool,
}

/// The names of a directory.
type Names = BTreeMap<&'static str, Inode>;

fn change_all(names: &mut Names, ino: u64, change: impl Fn(&mut Inode)) {
    names.values_mut().filter(|inode| inode.ino == ino).for_each(change);
}

fn remove(names: &mut Names, name: &str) -> Option<Inode> {
    let inode = names.remove(name)?;
    change_all(names, inode.ino, |same| same.nlink -= 1);
    Some(inode)
}

/// Returns the directory's state after a change. `made` is the number of a new inode.
fn changed(before: &Names, change: Change, made: u64) -> Result<Names, Errno> {
    let mut names = before.clone();
    let there = |name| before.get(name).copied().ok_or(Errno::ENOENT);
    let make = |names: &mut Names, name, inode| match names.contains_key(name) {
        true => Err(Errno::EEXIST),
        false => Ok(names.insert(name, inode)),
    };
    let inode = |directory, nlink, perm| Inode { ino: made, directory, nlink, perm, marked: false };
    match change {
        Change::Create(name) => drop(make(&mut names, name, inode(false, 1, 0o600))?),
        Change::Mkdir(name) => drop(make(&mut names, name, inode(true, 2, 0o700))?),
        Change::Unlink(name) => match there(name)?.directory {
            true => return Err(Errno::EISDIR),
            false => drop(remove(&mut names, name)),
        },
        Change::Rmdir(name) => match there(name)?.directory {
            true => drop(names.remove(name)),
            false => return Err(Errno::ENOTDIR),
        },
        Change::Rename(from, to, RenameFlags::EXCHANGE) => {
            let (one, other) = (there(from)?, there(to)?);
            names.extend([(to, one), (from, other)]);
        }
        Change::Rename(from, to, flags) => {
            let inode = there(from)?;
            match before.get(to) {
                Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EEXIST),
                Some(same) if same.ino == inode.ino => return Ok(names),
                Some(other) if inode.directory && !other.directory => return Err(Errno::ENOTDIR),
                Some(other) if !inode.directory && other.directory => return Err(Errno::EISDIR),
                _ => {}
            }
            remove(&mut names, to);
            names.remove(from);
            names.insert(to, inode);
        }
        Change::RenameOver(from, to) => {
            names = changed(before, Change::Rename(from, to, RenameFlags::empty()), made)?;
            if !names.contains_key(from) {
                names.insert(from, inode(false, 1, 0));
            }
        }
        Change::Link(of, name) => {
            let of = there(of)?;
            make(&mut names, name, of)?;
            change_all(&mut names, of.ino, |same| same.nlink += 1);
        }
        Change::Chmod(name, perm) => change_all(&mut names, there(name)?.ino, |same| same.perm = perm),
        Change::Mark(name) => match there(name)? {
            Inode { marked: true, .. } => return Err(Errno::EEXIST),
            Inode { ino, .. } => change_all(&mut names, ino, |same| same.marked = true),
        },
        Change::Unmark(name) => match there(name)? {
            Inode { marked: false, .. } => return Err(Errno::ENODATA),
            Inode { ino, .. } => change_all(&mut names, ino, |same| same.marked = false),
        },
    }
    Ok(names)
}

/// Returns a random change. Changes by inode number use only existing inodes, and only files are
/// linked.
fn any(names: &Names, random: &mut Chance) -> Change {
    let name = |random: &mut Chance| NAMES[random.index(NAMES.len())];
    let there: Vec<_> = names.keys().copied().collect();
    let files: Vec<_> = names.iter().filter(|(_, inode)| !inode.directory).map(|(name, _)| *name).collect();
    loop {
        let which = random.index(13);
        return match which {
            0 | 1 => Change::Create(name(random)),
            2 => Change::Mkdir(name(random)),
            3 => Change::Unlink(name(random)),
            4 => Change::Rmdir(name(random)),
            5 => Change::Rename(name(random), name(random), RenameFlags::NOREPLACE),
            6 => Change::Rename(name(random), name(random), RenameFlags::EXCHANGE),
            7 => Change::Rename(name(random), name(random), RenameFlags::empty()),
            12 => Change::RenameOver(name(random), name(random)),
            8 if !files.is_empty() => Change::Link(files[random.index(files.len())], name(random)),
            9 if !there.is_empty() => {
                Change::Chmod(there[random.index(there.len())], random.below(0o1000) as u32)
            }
            10 if !there.is_empty() => Change::Mark(there[random.index(there.len())]),
            11 if !there.is_empty() => Change::Unmark(there[random.index(there.len())]),
            _ => continue,
        };
    }
}

/// Requests a change. Returns the number of a new inode, or zero.
fn ask(client: &Client, dir: u64, names: &Names, change: Change) -> Result<u64, ClientError> {
    let made = |attr: rfs_proto::Attr| {
        client.lookups.forget(attr.ino, 1);
        attr.ino
    };
    let done = |()| 0;
    match change {
        Change::Create(name) => client.files.create(dir, name.as_bytes(), 0o600, BY, true).map(|attr| {
            // The test does not depend on this close.
            let _ = client.files.close(attr.ino);
            made(attr)
        }),
        Change::Mkdir(name) => client.names.mkdir(dir, name.as_bytes(), 0o700, BY).map(made),
        Change::Unlink(name) => client.names.unlink(dir, name.as_bytes()).map(done),
        Change::Rmdir(name) => client.names.rmdir(dir, name.as_bytes()).map(done),
        Change::Rename(from, to, flags) => client
            .names
            .rename((dir, from.as_bytes()), (dir, to.as_bytes()), flags, None, (None, None))
            .map(done),
        Change::RenameOver(from, to) => {
            let (old, new) = ((dir, from.as_bytes()), (dir, to.as_bytes()));
            client.names.rename(old, new, RenameFlags::empty(), Some(OWNER), (None, None))?;
            // The reply does not contain the new inode.
            Ok(made(at_last(|| client.lookups.lookup(dir, from.as_bytes()))))
        }
        Change::Link(of, name) => client.names.link(names[of].ino, dir, name.as_bytes()).map(made),
        Change::Chmod(name, perm) => {
            let changes = SetAttr { perm: Some(perm), ..SetAttr::default() };
            client.attributes.setattr(names[name].ino, &changes).map(|_| 0)
        }
        Change::Mark(name) => {
            client.xattrs.set_xattr(names[name].ino, MARK, b"x", XattrSet::Create, false, None).map(done)
        }
        Change::Unmark(name) => client.xattrs.remove_xattr(names[name].ino, MARK, None).map(done),
    }
}

/// Returns the current names.
fn look(client: &Client, dir: u64) -> Result<Names, ClientError> {
    let page = client.directories.readdir(dir, 0, 100)?;
    assert!(page.end, "so many names there never were");
    let mut names = Names::new();
    for entry in page.entries {
        let name = NAMES.into_iter().find(|name| name.as_bytes() == &*entry.name);
        let name = name.unwrap_or_else(|| panic!("an unexpected name: {:?}", entry.name));
        let marked = match client.xattrs.get_xattr(entry.attr.ino, MARK) {
            Ok(value) => value == b"x",
            Err(ClientError::Errno(Errno::ENODATA)) => false,
            Err(e) => return Err(e),
        };
        let rfs_proto::Attr { ino, kind, nlink, perm, .. } = entry.attr;
        let inode = Inode { ino, directory: kind == FileKind::Directory, nlink, perm, marked };
        assert_eq!(names.insert(name, inode), None, "it is there twice");
    }
    Ok(names)
}

/// Repeats an operation that must succeed, until it does.
fn at_last<T>(mut attempt: impl FnMut() -> Result<T, ClientError>) -> T {
    for _ in 0..ATTEMPTS {
        match attempt() {
            Ok(done) => return done,
            // There is no session at the moment.
            Err(ClientError::Request(_)) => thread::sleep(PAUSE),
            Err(e) => panic!("{e}"),
        }
    }
    panic!("it is never done: {:?}", attempt().err());
}

/// Runs a thread's work in its directory. Returns the final names, and how often the outcome of a
/// change was unknown.
fn work(client: &Client, number: usize, seed: u64) -> (Names, usize) {
    let mut random = Chance::new(seed ^ (number as u64) << 32);
    let directory = format!("directory-{number}");
    let dir = at_last(|| match client.names.mkdir(ROOT_INO, directory.as_bytes(), 0o700, BY) {
        // An earlier attempt has made it.
        Err(ClientError::Errno(Errno::EEXIST)) => client.lookups.lookup(ROOT_INO, directory.as_bytes()),
        outcome => outcome,
    })
    .ino;
    let (mut names, mut unheard) = (Names::new(), 0);
    for _ in 0..CHANGES {
        let change = any(&names, &mut random);
        match ask(client, dir, &names, change) {
            Ok(made) => names = changed(&names, change, made).unwrap_or_else(|e| panic!("{change:?}: {e}")),
            Err(ClientError::Errno(errno)) => {
                assert_eq!(changed(&names, change, 0), Err(errno), "{change:?} in {names:?}");
            }
            Err(ClientError::Request(_)) => {
                unheard += 1;
                let now = at_last(|| look(client, dir));
                let made = match change {
                    Change::Create(name) | Change::Mkdir(name) | Change::RenameOver(name, _) => {
                        now.get(name).map_or(0, |inode| inode.ino)
                    }
                    _ => 0,
                };
                let one = now == names || changed(&names, change, made).is_ok_and(|after| now == after);
                assert!(one, "{change:?} in {names:?} made {now:?}");
                names = now;
            }
            Err(e) => panic!("{change:?}: {e}"),
        }
    }
    assert_eq!(at_last(|| look(client, dir)), names);
    (names, unheard)
}

/// Returns the number of reconnects, and the number of changes with an unknown outcome.
fn run(server: &Server, provider: ProviderKind, calls: CallsBy, seed: u64) -> (u64, usize) {
    let mut faults = Faults::varied(seed);
    faults.calls = true;
    let plan = Plan::new(faults);
    let faulty = options(provider, calls, Some(plan), false);
    let attach = AttachOptions { reconnects: true, ..AttachOptions::default() };
    // Connecting may fail as well.
    let mut attempts = (0..ATTEMPTS).map(|_| Client::connect(address(server, provider), &faulty, &attach));
    let client = attempts.find_map(Result::ok).expect("a session");
    let done = on_threads(|number| work(&client, number, seed));
    let returns = client.counters().iter().find(|(name, _)| *name == "returns").expect("counted").1;
    drop(client);
    let other = options(provider, calls, None, true);
    let other = Client::connect(address(server, provider), &other, &AttachOptions::default()).unwrap();
    for (number, (names, _)) in done.iter().enumerate() {
        let dir = other.lookups.lookup(ROOT_INO, format!("directory-{number}").as_bytes()).unwrap();
        assert_eq!(look(&other, dir.ino).unwrap(), *names);
    }
    (returns, done.iter().map(|(_, unheard)| unheard).sum())
}

#[test]
fn each_change_happens_once_and_its_outcome_is_reported() {
    let mut returned = 0;
    for seed in seeds() {
        for (provider, calls) in [
            (ProviderKind::Shm, CallsBy::Reply),
            (ProviderKind::Shm, CallsBy::Fetch),
            (ProviderKind::Tcp, CallsBy::Reply),
        ] {
            eprintln!("RDMABOX_FAULT_SEED={seed} over {provider}, calls by {calls}");
            let (server, _directory) = server();
            let (returns, unheard) = run(&server, provider, calls, seed);
            eprintln!("  came back {returns} times, unheard of {unheard}");
            returned += returns;
        }
    }
    // A device that only delays, and a device that refuses memory and cuts connections, usually end
    // no session.
    let quiet = seeds().iter().all(|seed| [0, 5].contains(&(seed % 8)));
    assert!(returned > 0 || quiet, "the device has no faults");
}
