//! Exercises a tree of names through two mounts in turn, and compares it with the same tree on a
//! local file system. A mount must see each change of the other at its first look.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink},
    path::{Path, PathBuf},
};

use crate::common::{
    TestServer, combinations, pattern,
    random::{Random, seed},
};
use rustix::fs::{CWD, RenameFlags, XattrFlags, lgetxattr, removexattr, renameat_with, setxattr};

const STEPS: u32 = 1500;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const TARGETS: [&str; 5] = ["a", "b", "c/d", "a/b/c", "nowhere"];
const XATTR: &str = "user.x";

/// A step of the exercise on a path below a root.
#[derive(Debug)]
enum Step {
    Create {
        exclusive: bool,
        len: u64,
    },
    Mkdir,
    Unlink,
    Rmdir,
    Rename {
        to: PathBuf,
        flags: RenameFlags,
    },
    Link {
        to: PathBuf,
    },
    Symlink {
        target: &'static str,
    },
    Chmod(u32),
    Chown(u32),
    Lchown(u32),
    Truncate(u64),
    Append(u64),
    SetXattr(u64),
    RemoveXattr,
    /// Opens a file and keeps it open, independent of the step's path.
    Hold,
    WriteHeld {
        at: u64,
        len: u64,
    },
    TruncateHeld(u64),
    ChmodHeld(u32),
    LetGo,
}

fn path(random: &mut Random) -> PathBuf {
    (0..=random.below(3)).map(|_| random.pick(&NAMES)).collect()
}

fn draw(random: &mut Random) -> Step {
    let mode = random.pick(&[0o600, 0o644, 0o755, 0o2775, 0o1777]);
    match random.below(23) {
        0..=2 => Step::Create { exclusive: random.below(2) == 0, len: random.below(9000) },
        3..=4 => Step::Mkdir,
        5..=6 => Step::Unlink,
        7 => Step::Rmdir,
        8..=10 => {
            let flags = random.pick(&[
                RenameFlags::empty(),
                RenameFlags::empty(),
                RenameFlags::NOREPLACE,
                RenameFlags::EXCHANGE,
                RenameFlags::WHITEOUT,
                RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
                RenameFlags::WHITEOUT | RenameFlags::EXCHANGE,
            ]);
            Step::Rename { to: path(random), flags }
        }
        11 => Step::Link { to: path(random) },
        12 => Step::Symlink { target: random.pick(&TARGETS) },
        13 => Step::Chmod(mode),
        14 => match random.below(2) {
            0 => Step::Chown(random.below(3) as u32),
            _ => Step::Lchown(random.below(3) as u32),
        },
        15 => Step::Truncate(random.below(20_000)),
        16 => Step::Append(random.below(5000)),
        17 => Step::SetXattr(random.below(100)),
        18 => Step::RemoveXattr,
        19 => Step::Hold,
        20 => Step::WriteHeld { at: random.below(20_000), len: random.below(5000) },
        21 => match random.below(2) {
            0 => Step::TruncateHeld(random.below(20_000)),
            _ => Step::ChmodHeld(mode),
        },
        _ => Step::LetGo,
    }
}

/// Runs a step below `root`. `held` is the open file of that tree.
fn carry_out(step: &Step, root: &Path, path: &Path, held: &mut Option<File>) -> io::Result<()> {
    let path = &root.join(path);
    let writing = || OpenOptions::new().write(true).open(path);
    match step {
        Step::Create { exclusive, len } => {
            let mut options = OpenOptions::new();
            options.write(true);
            let file =
                if *exclusive { options.create_new(true) } else { options.create(true).truncate(true) };
            file.open(path)?.write_all_at(&pattern(*len as usize, *len), 0)
        }
        Step::Mkdir => fs::create_dir(path),
        Step::Unlink => fs::remove_file(path),
        Step::Rmdir => fs::remove_dir(path),
        Step::Rename { to, flags } => Ok(renameat_with(CWD, path, CWD, root.join(to), *flags)?),
        Step::Link { to } => fs::hard_link(path, root.join(to)),
        Step::Symlink { target } => symlink(target, path),
        Step::Chmod(mode) => fs::set_permissions(path, Permissions::from_mode(*mode)),
        Step::Chown(id) => chown(path, Some(*id), Some(*id)),
        Step::Lchown(id) => lchown(path, Some(*id), Some(*id)),
        Step::Truncate(len) => writing()?.set_len(*len),
        Step::Append(len) => {
            let mut file = OpenOptions::new().append(true).open(path)?;
            io::Write::write_all(&mut file, &pattern(*len as usize, *len))
        }
        Step::SetXattr(value) => Ok(setxattr(path, XATTR, &value.to_le_bytes(), XattrFlags::empty())?),
        Step::RemoveXattr => Ok(removexattr(path, XATTR)?),
        Step::Hold => {
            *held = None;
            *held = Some(OpenOptions::new().read(true).write(true).open(path)?);
            Ok(())
        }
        Step::WriteHeld { at, len } => {
            held.as_ref().map_or(Ok(()), |file| file.write_all_at(&pattern(*len as usize, *at), *at))
        }
        Step::TruncateHeld(len) => held.as_ref().map_or(Ok(()), |file| file.set_len(*len)),
        Step::ChmodHeld(mode) => {
            held.as_ref().map_or(Ok(()), |file| file.set_permissions(Permissions::from_mode(*mode)))
        }
        Step::LetGo => {
            *held = None;
            Ok(())
        }
    }
}

/// The visible state of a path.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: &'static str,
    mode: u32,
    nlink: u64,
    owner: (u32, u32),
    /// `None` for directories.
    size: Option<u64>,
    xattr: Option<Vec<u8>>,
    /// Bytes of a file, target of a link, or names of a directory.
    content: Vec<Vec<u8>>,
}

fn look(path: &Path) -> Result<Seen, Option<i32>> {
    look_at(path).map_err(|e| e.raw_os_error())
}

fn look_at(path: &Path) -> io::Result<Seen> {
    let attr = fs::symlink_metadata(path)?;
    let kind = attr.file_type();
    let (kind, content) = if kind.is_dir() {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_encoded_bytes()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        ("directory", names)
    } else if kind.is_symlink() {
        ("symlink", vec![fs::read_link(path)?.into_os_string().into_encoded_bytes()])
    } else if kind.is_char_device() {
        assert_eq!(attr.rdev(), 0, "only whiteouts are made");
        ("whiteout", Vec::new())
    } else {
        assert!(!kind.is_fifo() && !kind.is_socket());
        ("file", vec![fs::read(path)?])
    };
    let mut value = [0; 64];
    let xattr = match lgetxattr(path, XATTR, &mut value[..]) {
        Ok(len) => Some(value[..len].to_vec()),
        Err(_) => None,
    };
    Ok(Seen {
        kind,
        mode: attr.mode(),
        nlink: attr.nlink(),
        owner: (attr.uid(), attr.gid()),
        size: (kind != "directory").then_some(attr.size()),
        xattr,
        content,
    })
}

/// Returns every path of a tree, including the root.
fn paths(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        let below = root.join(&path);
        if fs::symlink_metadata(&below).expect("attributes").is_dir() {
            let entries = fs::read_dir(&below).expect("listed");
            found.extend(entries.map(|entry| path.join(entry.expect("entry").file_name())));
        }
    }
    found
}

fn exercise(mounts: [&Path; 2], reference: &Path, seed: u64) {
    let mut random = Random::new(seed);
    let mut held = [None, None];
    let mut held_there: [Option<File>; 2] = [None, None];
    let mut done: Vec<String> = Vec::new();
    // tmpfs supports user attributes from Linux 6.6 on.
    let has_xattrs = setxattr(reference, XATTR, b"", XattrFlags::empty()).is_ok();
    removexattr(reference, XATTR).ok();
    for number in 0..STEPS {
        let (by, path, step) = (random.below(2) as usize, path(&mut random), draw(&mut random));
        if !has_xattrs && matches!(step, Step::SetXattr(_) | Step::RemoveXattr) {
            continue;
        }
        let is = carry_out(&step, mounts[by], &path, &mut held[by]);
        let should = carry_out(&step, reference, &path, &mut held_there[by]);
        let errno = |outcome: &io::Result<()>| outcome.as_ref().err().and_then(io::Error::raw_os_error);
        done.push(format!("{} {} {step:?}: {:?}", ["A", "B"][by], path.display(), errno(&is)));
        let last = || {
            let last = done[done.len().saturating_sub(12)..].join("\n  ");
            format!("RFS_EXERCISER_SEED={seed} repeats it: step {number}; the last were\n  {last}\n")
        };
        assert_eq!(errno(&is), errno(&should), "{}", last());
        // Mostly looks at one path, first through the other mount. Now and then looks at all paths.
        let looks: Vec<(usize, PathBuf)> = if number % 50 == 49 {
            paths(reference).into_iter().flat_map(|path| [(0, path.clone()), (1, path)]).collect()
        } else {
            let parent = path.parent().expect("a name").to_owned();
            let mut looks = vec![(1 - by, path), (random.below(2) as usize, parent)];
            looks.push((random.below(2) as usize, self::path(&mut random)));
            if let Step::Rename { to, .. } | Step::Link { to } = &step {
                looks.push((1 - by, to.clone()));
            }
            looks
        };
        for (who, path) in looks {
            let (is, should) = (look(&mounts[who].join(&path)), look(&reference.join(&path)));
            assert!(
                is == should,
                "{}{} sees {} as\n  {is:?}, not\n  {should:?}",
                last(),
                ["A", "B"][who],
                path.display()
            );
        }
    }
    drop((held, held_there));
    let seen = |root: &Path| {
        let mut paths = paths(root);
        paths.sort();
        let times = paths.iter().map(|path| {
            let attr = fs::symlink_metadata(root.join(path)).expect("attributes");
            (attr.ino(), attr.mtime(), attr.mtime_nsec(), attr.ctime(), attr.ctime_nsec())
        });
        (times.collect::<Vec<_>>(), paths)
    };
    assert_eq!(seen(mounts[0]), seen(mounts[1]));
}

/// Uses a fixed seed, then a new one.
#[test]
fn a_tree_on_two_mounts_is_as_on_one_file_system() {
    let fresh = seed();
    for (first, second) in combinations() {
        for seed in [42, fresh] {
            eprintln!("{first:?} and {second:?}, seed {seed}");
            let server = TestServer::new(64 << 20);
            // With --dev, opening device nodes has the same results as on the reference.
            let (a, b) = (server.mount(first, &["--dev"]), server.mount(second, &["--dev"]));
            // tmpfs has the same rules, and extended attributes.
            let reference = tempfile::tempdir_in("/dev/shm").expect("temporary directory");
            fs::set_permissions(reference.path(), Permissions::from_mode(0o777)).expect("chmod");
            exercise([&a.point, &b.point], reference.path(), seed);
            b.unmount();
            a.unmount();
        }
    }
}
