//! Rights after another mount has changed the owner or the group of a file.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{MetadataExt, PermissionsExt, chown, fchown},
            process::CommandExt,
        },
    },
    path::Path,
    process::Command,
    thread,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, Uid, XattrFlags,
        fcntl_setfl, fsetxattr, futimens, linkat, renameat_with, setxattr,
    },
    thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities},
};

use super::actors::{
    LONG_AGO, MEMBER, OWNER, ROOT, STRANGER, chmod, create, mkdir, node, reference, set_times,
};
use crate::common::{NOBODY, each, pairs};

const MIB: u64 = 1 << 20;

/// An ACL in the kernel's form that is equivalent to mode 640.
const PLAIN_ACL: [u8; 28] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255,
    255,
];

/// A change that only an owner may make, by name and through an open file.
type Change = (&'static str, fn(&Path) -> io::Result<()>, fn(&File) -> io::Result<()>);

const OWNERS_CHANGES: [Change; 4] = [
    ("chmod", |path| chmod(path, 0o640), |file| file.set_permissions(Permissions::from_mode(0o640))),
    (
        "chgrp",
        |path| chown(path, None, Some(rustix::process::getegid().as_raw())),
        |file| fchown(file, None, Some(rustix::process::getegid().as_raw())),
    ),
    (
        "utimens",
        |path| set_times(path, Timespec { tv_sec: LONG_AGO, tv_nsec: 0 }),
        |file| {
            let time = Timespec { tv_sec: LONG_AGO, tv_nsec: 0 };
            Ok(futimens(file, &Timestamps { last_access: time, last_modification: time })?)
        },
    ),
    (
        "setfacl",
        |path| Ok(setxattr(path, "system.posix_acl_access", &PLAIN_ACL, XattrFlags::empty())?),
        |file| Ok(fsetxattr(file, "system.posix_acl_access", &PLAIN_ACL, XattrFlags::empty())?),
    ),
];

/// Returns the outcomes of a change to a file that another mount has given from the owner to the
/// stranger.
fn given_away(
    (first, second): (&Path, &Path),
    change: impl Fn(&Path, &File) -> io::Result<()> + Sync,
) -> Vec<(&'static str, Option<i32>)> {
    let outcomes = [OWNER, STRANGER].map(|actor| {
        let (first, second) = (first.join(actor.name), second.join(actor.name));
        create(&first, 0o644).expect("made");
        chown(&first, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
        let file = File::open(&second).expect("opened");
        assert_eq!(file.metadata().expect("attributes").uid(), OWNER.uid);
        chown(&first, Some(STRANGER.uid), Some(STRANGER.gid)).expect("chown");
        let outcome = actor.does(|| change(&second, &file));
        fs::remove_file(&first).expect("removed");
        (actor.name, outcome.err().map(|e| e.raw_os_error().expect("the kernel's")))
    });
    outcomes.to_vec()
}

const EPERM: Option<i32> = Some(1);

#[test]
fn a_former_owner_loses_its_rights() {
    let reference = reference();
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |_, a, b| {
            for (what, by_name, _) in OWNERS_CHANGES {
                let given = |first, second| given_away((first, second), |path, _| by_name(path));
                assert_eq!(given(reference.path(), reference.path()), [("owner", EPERM), ("stranger", None)]);
                assert_eq!(
                    given(&a.point, &b.point),
                    [("owner", EPERM), ("stranger", None)],
                    "{what}, with {options:?}"
                );
            }
        });
    }
}

/// The kernel refuses the new owner until it has queried the attributes.
#[test]
fn a_former_owner_loses_its_rights_on_an_open_file() {
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |_, a, b| {
            for (what, _, through) in OWNERS_CHANGES {
                let outcomes = given_away((&a.point, &b.point), |_, file| through(file));
                assert_eq!(outcomes, [("owner", EPERM), ("stranger", EPERM)], "{what}, with {options:?}");
                let outcomes = given_away((&a.point, &b.point), |_, file| {
                    file.metadata().expect("attributes");
                    through(file)
                });
                assert_eq!(outcomes, [("owner", EPERM), ("stranger", None)], "{what}, with {options:?}");
            }
        });
    }
}

/// In these cases the kernel decides alone, by the owner that it has cached.
#[test]
fn a_former_owner_keeps_a_few_rights_on_an_open_file() {
    pairs(16 * MIB, &[], |_, a, b| {
        let touched = given_away((&a.point, &b.point), |_, file| {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            Ok(futimens(file, &Timestamps { last_access: now, last_modification: now })?)
        });
        assert_eq!(touched[0], ("owner", None));
        let unread = given_away((&a.point, &b.point), |_, file| Ok(fcntl_setfl(file, OFlags::NOATIME)?));
        assert_eq!(unread, [("owner", None), ("stranger", EPERM)]);
        // Linking a fifo through the former owner's descriptor. Links to files of other users are
        // refused otherwise.
        mkdir(&a.path("links"), 0o777).expect("made");
        chmod(&a.path("links"), 0o777).expect("chmod");
        node(&a.path("fifo"), FileType::Fifo, 0).expect("made");
        chmod(&a.path("fifo"), 0o600).expect("chmod");
        chown(a.path("fifo"), Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
        let fifo = OpenOptions::new().read(true).write(true).open(b.path("fifo")).expect("opened");
        assert_eq!(fifo.metadata().expect("attributes").uid(), OWNER.uid);
        chown(a.path("fifo"), Some(STRANGER.uid), Some(STRANGER.gid)).expect("chown");
        let link = |name: &str| {
            let path = format!("/proc/thread-self/fd/{}", fifo.as_raw_fd());
            linkat(CWD, path, CWD, b.path("links").join(name), AtFlags::SYMLINK_FOLLOW)
        };
        OWNER.does(|| link("owners")).expect("linked");
        drop(fifo);
    });
}

/// Holds for all names of the file, not only for those that were looked up.
#[test]
fn a_former_owner_loses_its_rights_under_all_names() {
    pairs(16 * MIB, &[], |_, a, b| {
        mkdir(&b.path("d"), 0o777).expect("made");
        chmod(&b.path("d"), 0o777).expect("chmod");
        for name in ["file", "other"] {
            create(&b.path(name), 0o644).expect("made");
            chown(b.path(name), Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
        }
        fs::rename(b.path("file"), b.path("d/renamed")).expect("renamed");
        fs::hard_link(b.path("d/renamed"), b.path("linked")).expect("linked");
        renameat_with(CWD, b.path("linked"), CWD, b.path("other"), RenameFlags::EXCHANGE).expect("exchanged");
        // "linked" is the former "other".
        let names = ["d/renamed", "other"];
        assert!(names.iter().all(|name| fs::metadata(b.path(name)).expect("attributes").nlink() == 2));
        for (from, to) in [(OWNER, STRANGER), (STRANGER, OWNER)] {
            chown(a.path("d/renamed"), Some(to.uid), Some(to.gid)).expect("chown");
            for name in names {
                let tried = from.does(|| chmod(&b.path(name), 0o600));
                assert_eq!(tried.map_err(|e| e.raw_os_error()), Err(EPERM), "{name}, {}", from.name);
                to.does(|| chmod(&b.path(name), 0o640))
                    .unwrap_or_else(|e| panic!("{name}, {}: {e}", to.name));
            }
        }
        chown(a.path("linked"), Some(STRANGER.uid), Some(STRANGER.gid)).expect("chown");
        STRANGER.does(|| chmod(&b.path("linked"), 0o640)).expect("chmod");
    });
}

/// Returns a file of the owner, opened through `second`, and then given to the stranger through
/// `first`.
fn given_to_the_stranger(first: &Path, second: &Path) -> File {
    create(first, 0o644).expect("made");
    chown(first, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
    let file = File::open(second).expect("opened");
    assert_eq!(file.metadata().expect("attributes").uid(), OWNER.uid);
    chown(first, Some(STRANGER.uid), Some(STRANGER.gid)).expect("chown");
    file
}

/// A former owner with a capability for files of other users keeps the rights of that capability,
/// and loses the others.
#[test]
fn a_former_owner_with_the_capability_keeps_its_rights() {
    pairs(16 * MIB, &[], |_, a, b| {
        for (name, capability, refused) in [
            ("any", CapabilitySet::FOWNER, &["chgrp"][..]),
            ("giver", CapabilitySet::CHOWN, &["chmod", "utimens", "setfacl"]),
        ] {
            let file = given_to_the_stranger(&a.path(name), &b.path(name));
            let act = || {
                set_keep_capabilities(true).expect("prctl");
                let uid = Uid::from_raw(NOBODY);
                rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid, of this thread");
                let none = CapabilitySet::empty();
                let sets = CapabilitySets { effective: capability, permitted: capability, inheritable: none };
                set_capabilities(None, sets).expect("capset");
                for (what, by_name, through) in OWNERS_CHANGES {
                    let expected = if refused.contains(&what) { Err(EPERM) } else { Ok(()) };
                    let found = [through(&file), by_name(&b.path(name))];
                    let found = found.map(|outcome| outcome.map_err(|e| e.raw_os_error()));
                    assert_eq!(found, [expected, expected], "{what}, {name}");
                }
            };
            thread::scope(|scope| scope.spawn(act).join().expect("thread"));
        }
        assert_eq!(fs::metadata(a.path("any")).expect("attributes").mode(), 0o100_640);
    });
}

/// Root of a user namespace has all capabilities there.
#[test]
fn a_former_owner_gains_no_rights_in_its_own_user_namespace() {
    const PROGRAM: &str = "chmod 640 /proc/self/fd/0 && echo changed; grep CapEff /proc/self/status";
    pairs(16 * MIB, &[], |_, a, b| {
        let file = given_to_the_stranger(&a.path("file"), &b.path("file"));
        let mut command = Command::new("unshare");
        let out = command
            .args(["--user", "--map-root-user", "sh", "-c", PROGRAM])
            .uid(OWNER.uid)
            .gid(OWNER.gid)
            .stdin(file);
        let out = out.output().expect("it runs");
        let (said, why) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(said.starts_with("CapEff:") && said.contains("fff"), "{said}{why}");
        assert_eq!(fs::metadata(a.path("file")).expect("attributes").mode(), 0o100_644);
    });
}

/// Setgid may be set by members of the file's current group, not of its previous group.
#[test]
fn set_group_id_is_for_members_of_the_group_that_a_file_has() {
    let modes = |first: &Path, second: &Path| {
        let mut modes = Vec::new();
        for (group, open) in [(MEMBER.gid, true), (MEMBER.gid, false), (OWNER.gid, true), (OWNER.gid, false)]
        {
            let (first, second) = (first.join("file"), second.join("file"));
            create(&first, 0o644).expect("made");
            chown(&first, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
            let file = File::open(&second).expect("opened");
            chown(&first, None, Some(group)).expect("chgrp");
            let mode = Permissions::from_mode(0o2755);
            let change = || if open { file.set_permissions(mode) } else { chmod(&second, 0o2755) };
            OWNER.does(change).expect("chmod");
            modes.push(fs::metadata(&first).expect("attributes").mode() & 0o7777);
            fs::remove_file(&first).expect("removed");
        }
        modes
    };
    let reference = reference();
    let should = modes(reference.path(), reference.path());
    assert_eq!(should, [0o755, 0o755, 0o2755, 0o2755]);
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |_, a, b| assert_eq!(modes(&a.point, &b.point), should, "with {options:?}"));
    }
}

/// chown(2) without an owner and a group also clears suid. The kernel leaves the check for owner
/// or root to the file system. Its request looks like a write, which does not clear suid for
/// root. So the call has an effect only for the owner.
#[test]
fn a_change_of_owner_that_changes_no_owner_takes_suid_away() {
    let outcomes = |directory: &Path| {
        [ROOT, OWNER, MEMBER, STRANGER].map(|actor| {
            let path = directory.join(actor.name);
            create(&path, 0o700).expect("made");
            chown(&path, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
            chmod(&path, 0o6755).expect("chmod");
            let outcome = actor.does(|| chown(&path, None, None).map_err(|e| e.raw_os_error()));
            (actor.name, outcome, fs::metadata(&path).expect("attributes").mode() & 0o7777)
        })
    };
    let reference = reference();
    let [root, owner, others @ ..] = outcomes(reference.path());
    assert_eq!([root, owner], [("root", Ok(()), 0o755), ("owner", Ok(()), 0o755)]);
    assert!(others.iter().all(|(_, outcome, mode)| (*outcome, *mode) == (Err(EPERM), 0o6755)));
    each(16 * MIB, |_, mount| {
        let [of_root, of_owner, others @ ..] = outcomes(&mount.point);
        assert_eq!((of_root, of_owner), (("root", Ok(()), 0o6755), owner));
        assert!(others.iter().all(|(_, outcome, mode)| (*outcome, *mode) == (Ok(()), 0o6755)), "{others:?}");
    });
}
