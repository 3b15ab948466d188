//! An overlayfs with layers on a mount.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{Mount, TestServer, directory, each, is_mounted, pairs, providers};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, XattrFlags, lgetxattr, open, renameat_with, setxattr};

const MIB: u64 = 1 << 20;

/// An overlayfs, unmounted when dropped.
struct Overlay {
    point: tempfile::TempDir,
}

impl Overlay {
    /// Mounts over `lower`, with changes in `upper` and the work directory `work`. Returns the
    /// message of mount(8) if it fails.
    fn over(lower: &Path, upper: &Path, work: &Path) -> Result<Overlay, String> {
        Overlay::with("index=off", [lower, upper, work])
    }

    /// Mounts with a further option.
    fn with(option: &str, [lower, upper, work]: [&Path; 3]) -> Result<Overlay, String> {
        let point = directory();
        let [lower, upper, work] = [lower, upper, work].map(Path::display);
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work},{option}");
        let mut command = Command::new("mount");
        command.args(["--internal-only", "-t", "overlay", "-o", &options, "overlay"]).arg(point.path());
        let out = command.env("LC_ALL", "C").output().expect("mount");
        match out.status.success() {
            true => Ok(Overlay { point }),
            false => Err(String::from_utf8(out.stderr).expect("UTF-8")),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        Command::new("umount").args(["--internal-only", "--"]).arg(self.point.path()).status().ok();
        assert!(std::thread::panicking() || !is_mounted(self.point.path()));
    }
}

fn made(mount: &Mount, names: [&str; 3]) -> [PathBuf; 3] {
    names.map(|name| {
        fs::create_dir(mount.path(name)).expect("made");
        mount.path(name)
    })
}

/// The changes go to another file system, so the layer on the mount is only read.
#[test]
fn a_lower_layer_is_read_and_stays_as_it_is() {
    each(32 * MIB, |_, mount| {
        let [lower, ..] = made(mount, ["lower", "a", "b"]);
        fs::create_dir(lower.join("dir")).expect("made");
        for (name, bytes) in [("file", "old"), ("gone", "x"), ("dir/inner", "kept")] {
            fs::write(lower.join(name), bytes).expect("written");
        }
        // A file system in the memory of this machine.
        let above = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let [upper, work] = ["upper", "work"].map(|name| {
            fs::create_dir(above.path().join(name)).expect("made");
            above.path().join(name)
        });
        let overlay = Overlay::over(&lower, &upper, &work).expect("mounted");
        assert_eq!(fs::read(overlay.path("file")).expect("read"), b"old");
        fs::write(overlay.path("file"), "new").expect("copied up");
        fs::remove_file(overlay.path("gone")).expect("hidden");
        fs::rename(overlay.path("dir/inner"), overlay.path("dir/outer")).expect("renamed");
        let names = |path: PathBuf| {
            let entries = fs::read_dir(path).expect("listed").map(|entry| entry.expect("entry").file_name());
            let mut names: Vec<_> = entries.collect();
            names.sort();
            names
        };
        assert_eq!(names(overlay.path("")), ["dir", "file"]);
        assert_eq!(names(overlay.path("dir")), ["outer"]);
        assert_eq!(fs::read(overlay.path("file")).expect("read"), b"new");
        assert_eq!(names(lower.clone()), ["dir", "file", "gone"]);
        assert_eq!(names(lower.join("dir")), ["inner"]);
        assert_eq!(fs::read(lower.join("file")).expect("read"), b"old");
    });
}

/// Fills the lower layer with files and directories.
fn fill(lower: &Path) {
    for directory in ["emptied", "replaced/inner", "moved", "kept"] {
        fs::create_dir_all(lower.join(directory)).expect("made");
    }
    for name in [
        "changed",
        "gone",
        "renamed",
        "over",
        "linked",
        "chmodded",
        "emptied/x",
        "replaced/y",
        "replaced/inner/z",
        "moved/m",
        "kept/k",
    ] {
        fs::write(lower.join(name), name).expect("written");
    }
    symlink("kept/k", lower.join("link")).expect("linked");
}

/// Makes all kinds of changes that an upper layer has to record.
fn change(overlay: &Overlay) -> Vec<(&'static str, Option<i32>)> {
    let path = |name: &str| overlay.path(name);
    let append = |name| OpenOptions::new().append(true).open(path(name))?.write_all(b", and more");
    let flags = |from, to, flags| Ok(renameat_with(CWD, path(from), CWD, path(to), flags)?);
    let outcomes: [(&str, io::Result<()>); 17] = [
        ("append", append("changed")),
        ("remove", fs::remove_file(path("gone"))),
        ("rename", fs::rename(path("renamed"), path("new"))),
        ("rename over", fs::rename(path("over"), path("link"))),
        ("link", fs::hard_link(path("linked"), path("kept/other"))),
        ("chmod", fs::set_permissions(path("chmodded"), Permissions::from_mode(0o601))),
        (
            "xattr",
            setxattr(path("chmodded"), "user.x", b"value", XattrFlags::empty()).map_err(io::Error::from),
        ),
        ("empty", fs::remove_file(path("emptied/x"))),
        ("remove an emptied directory", fs::remove_dir(path("emptied"))),
        ("remove a full directory", fs::remove_dir(path("replaced"))),
        ("remove all of it", fs::remove_dir_all(path("replaced"))),
        ("make it again", fs::create_dir(path("replaced"))),
        ("fill it", fs::write(path("replaced/other"), b"other")),
        ("rename a directory of below", fs::rename(path("moved"), path("elsewhere"))),
        ("exchange", flags("new", "changed", RenameFlags::EXCHANGE)),
        ("whiteout", flags("kept/k", "kept/l", RenameFlags::WHITEOUT)),
        ("make again what was removed", fs::write(path("gone"), b"again")),
    ];
    outcomes.map(|(what, outcome)| (what, outcome.err().and_then(|e| e.raw_os_error()))).to_vec()
}

/// The visible state of a path.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    /// `None` for directories.
    nlink: Option<u64>,
    device: u64,
    /// Bytes of a file, or target of a link.
    content: Vec<u8>,
    /// Xattr of an upper directory that hides the lower one.
    opaque: Option<Vec<u8>>,
}

fn look(path: &Path) -> io::Result<Seen> {
    let attr = fs::symlink_metadata(path)?;
    let kind = attr.file_type();
    let content = match () {
        () if kind.is_symlink() => fs::read_link(path)?.into_os_string().into_encoded_bytes(),
        () if kind.is_file() => fs::read(path)?,
        () => Vec::new(),
    };
    let mut value = [0; 16];
    let opaque = lgetxattr(path, "trusted.overlay.opaque", &mut value[..]).ok();
    Ok(Seen {
        mode: attr.mode(),
        nlink: (!kind.is_dir()).then_some(attr.nlink()),
        device: attr.rdev(),
        content,
        opaque: opaque.map(|len| value[..len].to_vec()),
    })
}

/// Returns the visible state of everything below a directory.
fn tree(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let seen = look(&path).expect("seen");
        if seen.nlink.is_none() {
            left.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.expect("entry").path()));
        }
        found.insert(path.strip_prefix(root).expect("below").to_owned(), seen);
    }
    found
}

/// Removed names, opaque directories and copied-up files look as in a file system in memory, also
/// after the overlay is mounted again.
#[test]
fn an_upper_layer_is_as_in_a_file_system_in_memory() {
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| {
        fs::create_dir(memory.path().join(name)).expect("made");
        memory.path().join(name)
    });
    fill(&lower);
    let reference = Overlay::over(&lower, &upper, &work).expect("mounted");
    let should = change(&reference);
    assert!(
        should.contains(&("remove", None)) && should.contains(&("rename a directory of below", Some(18)))
    );
    let (seen, kept) = (tree(reference.point.path()), tree(&upper));
    let whiteout = &kept[Path::new("renamed")];
    assert_eq!((whiteout.mode, whiteout.device), (0o020_000, 0));
    assert_eq!(kept[Path::new("replaced")].opaque.as_deref(), Some(&b"y"[..]));
    for over in providers() {
        let server = TestServer::new(32 * MIB);
        let mount = server.mount(over, &[]);
        let [own, upper, work] = made(&mount, ["lower", "upper", "work"]);
        fill(&own);
        // The lower layer is on another file system, or on the same mount.
        for lower in [&lower, &own] {
            let overlay = Overlay::over(lower, &upper, &work).expect("mounted");
            assert_eq!(change(&overlay), should);
            assert_eq!(tree(overlay.point.path()), seen);
            let nameless = open(overlay.point.path(), OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR);
            drop(nameless.expect("a file without a name"));
            drop(overlay);
            assert_eq!(tree(&upper), kept);
            let again = Overlay::over(lower, &upper, &work).expect("mounted");
            assert_eq!(tree(again.point.path()), seen);
            drop(again);
            for directory in [&upper, &work] {
                fs::remove_dir_all(directory).expect("removed");
                fs::create_dir(directory).expect("made");
            }
        }
        mount.unmount();
    }
}

/// The kernel compares its own mounts: another mount of the same server is another file system to
/// it.
#[test]
fn an_upper_layer_in_use_is_known_to_one_mount() {
    pairs(32 * MIB, &[], |_, a, b| {
        let names = ["lower", "upper", "work"];
        made(a, names);
        let through = |mount: &Mount| {
            let [lower, upper, work] = names.map(|name| mount.path(name));
            Overlay::with("index=on", [&lower, &upper, &work])
        };
        let overlay = through(a).expect("mounted");
        let refused = through(a).map(drop).expect_err("in use");
        // The message of mount(8) for EBUSY.
        assert!(refused.contains("already mounted"), "{refused}");
        drop(through(b).expect("mounted all the same"));
        drop(overlay);
    });
}
