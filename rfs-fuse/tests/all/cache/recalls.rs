//! Caches of a mount: with default options, a mount sees every change of another mount that has
//! returned. Cached state needs no call to the server.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::common::{Mount, Over, TestServer, WAIT_LIMIT, each, eventually, long, mapping::Mapping, pattern};
use rustix::{
    fs::{CWD, RenameFlags, XattrFlags, renameat_with},
    process::Signal,
};

const MIB: u64 = 1 << 20;
const ROUNDS: u32 = 50;

/// Runs a test for every combination of mounts, in both directions.
fn pairs(test: impl Fn(&TestServer, &Mount, &Mount)) {
    crate::common::pairs(64 * MIB, &[], |server, a, b| {
        test(server, a, b);
        test(server, b, a);
    });
}

fn missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

#[test]
fn names_come_and_go() {
    pairs(|_, a, b| {
        for round in 0..ROUNDS {
            let name = |mount: &Mount| mount.path(&format!("name{round}"));
            assert!(missing(&name(b)) && missing(&name(b)));
            match round % 4 {
                0 => fs::write(name(a), b"x").expect("written"),
                1 => fs::create_dir(name(a)).expect("made"),
                2 => symlink("/nowhere", name(a)).expect("made"),
                _ => fs::hard_link(a.path("name0"), name(a)).expect("linked"),
            }
            let seen = fs::symlink_metadata(name(b)).expect("there it is");
            assert_eq!(seen.ino(), fs::symlink_metadata(name(a)).expect("here, too").ino());
            if round == 0 {
                continue;
            }
            match round % 4 {
                1 => fs::remove_dir(name(a)).expect("removed"),
                _ => fs::remove_file(name(a)).expect("removed"),
            }
            assert!(missing(&name(b)));
        }
        fs::remove_file(a.path("name0")).expect("removed");
    });
}

/// The reply to a change contains the directory's attributes. Both mounts see these attributes,
/// regardless of which mount made the change.
#[test]
fn directory_attributes_are_those_after_the_last_change() {
    pairs(|_, a, b| {
        let dir = |mount: &Mount| mount.path("dir");
        let seen = |mount: &Mount| {
            let seen = fs::metadata(dir(mount)).expect("there it is");
            (seen.nlink(), seen.size(), seen.mtime(), seen.mtime_nsec(), seen.ctime_nsec(), seen.mode())
        };
        let in_it = |mount: &Mount, name: &str| dir(mount).join(name);
        fs::create_dir(dir(a)).expect("made");
        type Change<'a> = &'a dyn Fn(&Mount) -> io::Result<()>;
        let changes: [Change<'_>; 9] = [
            &|mount| fs::write(in_it(mount, "file"), b"x"),
            &|mount| fs::create_dir(in_it(mount, "sub")),
            &|mount| symlink("/nowhere", in_it(mount, "link")),
            &|mount| fs::hard_link(in_it(mount, "file"), in_it(mount, "hard")),
            &|mount| fs::rename(in_it(mount, "hard"), in_it(mount, "moved")),
            &|mount| fs::set_permissions(dir(mount), PermissionsExt::from_mode(0o750)),
            &|mount| fs::remove_file(in_it(mount, "moved")),
            &|mount| fs::remove_dir(in_it(mount, "sub")),
            &|mount| {
                fs::remove_file(in_it(mount, "file"))?;
                fs::remove_file(in_it(mount, "link"))?;
                fs::set_permissions(dir(mount), PermissionsExt::from_mode(0o755))
            },
        ];
        let mut before = seen(a);
        for round in 0..4 {
            for (at, change) in changes.iter().enumerate() {
                let (here, there) = if (round + at) % 3 == 0 { (b, a) } else { (a, b) };
                change(here).expect("changed");
                let after = seen(here);
                assert_ne!(after, before, "{at}");
                assert_eq!(after, seen(there), "{at}");
                before = after;
            }
        }
        // A directory that is open when it is removed.
        fs::write(in_it(a, "last"), b"").expect("written");
        let open = File::open(dir(a)).expect("open");
        fs::remove_file(in_it(a, "last")).expect("removed");
        fs::remove_dir(dir(a)).expect("removed");
        assert_eq!(open.metadata().expect("it is open").nlink(), 0);
    });
}

/// Regardless of the number of other changes in the directory, and of the mount that removed the
/// name.
#[test]
fn a_missing_name_appears_after_many_other_changes() {
    pairs(|_, a, b| {
        for round in 0..4 {
            let name = format!("name{round}");
            assert!(missing(&b.path(&name)));
            for other in 0..100 {
                fs::write(a.path(&format!("other{round}.{other}")), b"").expect("written");
            }
            fs::write(a.path(&name), b"x").expect("written");
            assert_eq!(fs::read(b.path(&name)).expect("there it is"), b"x");
            fs::remove_file(b.path(&name)).expect("removed");
            assert!(missing(&b.path(&name)) && missing(&a.path(&name)));
            fs::rename(a.path(&format!("other{round}.7")), a.path(&name)).expect("renamed");
            assert_eq!(fs::read(b.path(&name)).expect("there it is again"), b"");
            fs::rename(b.path(&name), b.path(&format!("moved{round}"))).expect("renamed");
            assert!(missing(&a.path(&name)) && missing(&b.path(&name)));
            fs::create_dir(a.path(&name)).expect("made");
            fs::remove_dir(b.path(&name)).expect("removed");
        }
    });
}

#[test]
fn names_move() {
    pairs(|_, a, b| {
        for dir in ["x", "y"] {
            fs::create_dir(a.path(dir)).expect("made");
            fs::write(a.path(&format!("{dir}/f")), dir).expect("written");
        }
        let content = |mount: &Mount, path: &str| fs::read_to_string(mount.path(path)).ok();
        for _ in 0..ROUNDS {
            assert_eq!(content(b, "x/f").as_deref(), Some("x"));
            assert!(missing(&b.path("y/g")));
            fs::rename(a.path("x/f"), a.path("y/g")).expect("renamed");
            assert!(missing(&b.path("x/f")));
            assert_eq!(content(b, "y/g").as_deref(), Some("x"));
            renameat_with(CWD, a.path("y/f"), CWD, a.path("y/g"), RenameFlags::EXCHANGE).expect("swapped");
            assert_eq!(content(b, "y/f").as_deref(), Some("x"));
            assert_eq!(content(b, "y/g").as_deref(), Some("y"));
            // Replaces an existing name.
            renameat_with(CWD, a.path("y/f"), CWD, a.path("x/f"), RenameFlags::NOREPLACE).expect("renamed");
            fs::rename(a.path("y/g"), a.path("y/f")).expect("renamed");
            assert!(missing(&b.path("y/g")));
            assert_eq!(content(b, "y/f").as_deref(), Some("y"));
            // A renamed directory keeps its content.
            fs::rename(a.path("x"), a.path("z")).expect("renamed");
            assert_eq!((content(b, "z/f").as_deref(), missing(&b.path("x/f"))), (Some("x"), true));
            fs::rename(a.path("z"), a.path("x")).expect("renamed");
        }
        fs::remove_dir_all(a.path("x")).expect("removed");
        fs::remove_dir_all(a.path("y")).expect("removed");
        assert_eq!(fs::read_dir(&b.point).expect("listed").count(), 0);
    });
}

#[test]
fn attributes_change() {
    pairs(|_, a, b| {
        fs::create_dir(a.path("d")).expect("made");
        fs::write(a.path("d/f"), b"x").expect("written");
        let stat = |path: &str| fs::metadata(b.path(path)).expect("attributes");
        for round in 0..ROUNDS {
            let (file, perm) = (a.path("d/f"), 0o600 + (round % 8));
            let before = stat("d/f");
            fs::set_permissions(&file, PermissionsExt::from_mode(perm)).expect("chmod");
            assert_eq!(stat("d/f").mode() & 0o7777, perm);
            assert!((stat("d/f").ctime(), stat("d/f").ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
            std::os::unix::fs::chown(&file, Some(round), Some(round + 1)).expect("chown");
            assert_eq!((stat("d/f").uid(), stat("d/f").gid()), (round, round + 1));
            fs::hard_link(&file, a.path("d/g")).expect("linked");
            assert_eq!(stat("d/f").nlink(), 2);
            fs::remove_file(a.path("d/g")).expect("removed");
            assert_eq!(stat("d/f").nlink(), 1);
            // Attributes of the directory.
            let before = (stat("d").mtime(), stat("d").mtime_nsec(), stat("d").nlink());
            fs::create_dir(a.path("d/sub")).expect("made");
            let after = (stat("d").mtime(), stat("d").mtime_nsec(), stat("d").nlink());
            assert!((after.0, after.1) > (before.0, before.1) && after.2 == before.2 + 1);
            fs::remove_dir(a.path("d/sub")).expect("removed");
            assert_eq!(stat("d").nlink(), before.2);
        }
        fs::remove_dir_all(a.path("d")).expect("removed");
    });
}

/// A thread that got the former owner before the name expired may store it again afterwards. The
/// name therefore expires a second time.
#[test]
fn a_name_is_looked_up_again_a_second_after_a_change_of_owner() {
    crate::common::pairs(64 * MIB, &[], |server, a, b| {
        let (here, there) = (a.path("file"), b.path("file"));
        fs::write(&here, b"x").expect("written");
        let lookups = || server.handled("lookup") + server.handled("lookupahead");
        let is_looked_up = |owner| {
            let before = lookups();
            assert_eq!(fs::symlink_metadata(&there).expect("attributes").uid(), owner);
            lookups() > before
        };
        assert!(is_looked_up(0) && !is_looked_up(0));
        let began = Instant::now();
        chown(&here, Some(5), None).expect("chown");
        assert!(is_looked_up(5), "the next walk asks");
        while !is_looked_up(5) {
            assert!(began.elapsed() < WAIT_LIMIT, "it holds");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(!is_looked_up(5), "and no more after that");
    });
}

#[test]
fn extended_attributes_and_acls_change() {
    pairs(|_, a, b| {
        fs::write(a.path("f"), b"x").expect("written");
        let get = |name: &str| {
            let mut value = vec![0; 100];
            let len = rustix::fs::getxattr(b.path("f"), name, &mut value[..]).ok()?;
            value.truncate(len);
            Some(value)
        };
        for round in 0..ROUNDS {
            let value = round.to_string();
            assert_eq!(get("user.x"), None);
            rustix::fs::setxattr(a.path("f"), "user.x", value.as_bytes(), XattrFlags::empty()).expect("set");
            assert_eq!(get("user.x").as_deref(), Some(value.as_bytes()));
            rustix::fs::removexattr(a.path("f"), "user.x").expect("removed");
            // An ACL: version 2, then entries of tag, permissions and id.
            let entry = |tag: u16, perm: u16, id: u32| {
                [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
            };
            let may = 4 * (round % 2) as u16;
            let acl = [
                2_u32.to_le_bytes().to_vec(),
                entry(1, 6, u32::MAX),
                entry(2, may, crate::common::NOBODY),
                entry(4, 0, u32::MAX),
                entry(16, 4, u32::MAX),
                entry(32, 0, u32::MAX),
            ]
            .concat();
            rustix::fs::setxattr(a.path("f"), "system.posix_acl_access", &acl, XattrFlags::empty())
                .expect("set");
            let read = crate::common::shell_as(crate::common::NOBODY, &b.point, "cat f > /dev/null 2>&1");
            assert_eq!(read == Some(0), may != 0, "round {round}");
        }
        fs::remove_file(a.path("f")).expect("removed");
    });
}

#[test]
fn pages_change() {
    pairs(|_, a, b| {
        let (here, there) = (a.path("f"), b.path("f"));
        fs::write(&here, pattern(3 * 4096, 1)).expect("written");
        // Stays open: the kernel answers its reads from the page cache while no mount writes.
        let open = File::open(&there).expect("opened");
        let read = |file: &File| {
            let mut out = vec![0; 4 * 4096];
            let len = file.read_at(&mut out, 0).expect("read");
            out.truncate(len);
            out
        };
        for round in 0..ROUNDS {
            let content = pattern(4096 + round as usize, round.into());
            assert_eq!(read(&open).len(), read(&File::open(&there).expect("opened")).len());
            let mut file =
                OpenOptions::new().write(true).truncate(round % 2 == 0).open(&here).expect("opened");
            file.write_all(&content).expect("written");
            file.set_len(content.len() as u64).expect("cut");
            drop(file);
            assert!(read(&File::open(&there).expect("opened")) == content, "round {round}");
            assert_eq!(fs::metadata(&there).expect("attributes").len(), content.len() as u64);
            // Truncates by name, without opening the file.
            nix::unistd::truncate(&here, 100).expect("cut");
            assert_eq!(fs::metadata(&there).expect("attributes").len(), 100);
            assert!(fs::read(&there).expect("read") == content[..100]);
        }
        drop(open);
        fs::remove_file(&here).expect("removed");
    });
}

#[test]
fn mapped_pages_change() {
    pairs(|server, a, b| {
        let (here, there) = (a.path("f"), b.path("f"));
        fs::write(&here, [1; 8192]).expect("written");
        // While the server has the file open for writing, no mount caches its pages.
        server.all_closed_but(0);
        let file = File::open(&there).expect("opened");
        let mapped = Mapping::read_only(&file, 8192);
        assert_eq!(mapped.read(0, 8192), [1; 8192]);
        for round in 2..20 {
            // Opening for writing recalls the pages. A later mapping sees the new bytes.
            let writer = OpenOptions::new().write(true).open(&here).expect("opened");
            writer.write_all_at(&[round; 8192], 0).expect("written");
            assert_eq!(mapped.read(0, 8192), [round; 8192]);
            drop(writer);
            server.all_closed_but(1);
            assert_eq!(fs::read(&there).expect("read"), [round; 8192], "and kept again");
        }
        drop(mapped);
        fs::remove_file(&here).expect("removed");
    });
}

#[test]
fn two_mounts_that_change_a_directory_do_not_wait_for_each_other() {
    crate::common::pairs(64 * MIB, &[], |_, a, b| {
        fs::create_dir(a.path("d")).expect("made");
        let work = |mount: &Mount, who: &str| {
            for round in 0..if long() { 600 } else { 100 } {
                let (one, two) =
                    (mount.path(&format!("d/{who}{round}")), mount.path(&format!("d/{who}-{round}")));
                fs::write(&one, b"x").expect("written");
                fs::rename(&one, &two).expect("renamed");
                assert!(fs::symlink_metadata(&one).is_err());
                fs::remove_file(&two).expect("removed");
            }
        };
        thread::scope(|scope| {
            for who in ["p", "q", "r"] {
                scope.spawn(move || work(a, &format!("a{who}")));
                scope.spawn(move || work(b, &format!("b{who}")));
            }
        });
        assert!(eventually(|| fs::read_dir(b.path("d")).expect("listed").count() == 0));
        fs::remove_dir(a.path("d")).expect("removed");
        assert!(missing(&b.path("d")));
    });
}

#[test]
fn a_stopped_or_killed_cache_holder_does_not_block_other_mounts() {
    for signal in [Signal::STOP, Signal::KILL] {
        let server = TestServer::new(64 * MIB);
        let (a, b) = (server.mount(Over::Tcp, &[]), server.mount(Over::Tcp, &[]));
        fs::write(a.path("f"), b"x").expect("written");
        assert_eq!(fs::read(b.path("f")).expect("read"), b"x");
        b.signal(signal);
        fs::remove_file(a.path("f")).expect("removed");
        assert!(missing(&a.path("f")));
        fs::write(a.path("f"), b"y").expect("written");
        b.signal(Signal::KILL);
        drop(b);
        a.unmount();
    }
}

#[test]
fn cached_state_ends_with_the_session() {
    for over in crate::common::providers() {
        let server = TestServer::new(64 * MIB);
        let mount = server.mount(over, &["--no-return"]);
        let path = mount.path("f");
        fs::write(&path, pattern(8192, 1)).expect("written");
        let file = File::open(&path).expect("opened");
        file.read_exact_at(&mut [0; 8192], 0).expect("read");
        drop(server);
        assert!(eventually(|| fs::metadata(&path).is_err()));
        assert!(eventually(|| file.read_at(&mut [0; 8192], 0).is_err()));
        drop(file);
        mount.unmount();
    }
}

/// Creates a directory with subdirectories and files.
fn tree(root: &Path, directories: u32, files: u32) {
    for d in 0..directories {
        let dir = root.join(format!("d{d}"));
        fs::create_dir_all(&dir).expect("made");
        for f in 0..files {
            fs::write(dir.join(format!("f{f}")), b"x").expect("written");
        }
    }
}

fn stat_all(root: &Path, directories: u32, files: u32) {
    for d in 0..directories {
        for f in 0..files {
            fs::metadata(root.join(format!("d{d}/f{f}"))).expect("attributes");
        }
    }
}

#[test]
fn a_warm_tree_needs_no_call() {
    each(64 * MIB, |server, mount| {
        let root = mount.path("tree");
        tree(&root, 10, 50);
        assert!(eventually(|| server.handled("close") == 500));
        stat_all(&root, 10, 50);
        assert_eq!(server.calls_of(|| stat_all(&root, 10, 50)), 0);
        let absent = || assert!((0..50).all(|i| missing(&root.join(format!("d{}/nothing{i}", i % 10)))));
        absent();
        assert_eq!(server.calls_of(absent), 0);
    });
}

#[test]
fn names_in_the_order_of_the_directory_come_together() {
    for over in crate::common::providers() {
        let server = TestServer::new(64 * MIB);
        let maker = server.mount(over, &[]);
        tree(&maker.path("tree"), 1, 4000);
        maker.unmount();
        let mount = server.mount(over, &[]);
        let looked = server.calls_of(|| stat_all(&mount.path("tree"), 1, 4000));
        assert!(looked <= 40 + 4, "{looked} calls for 4000 names");
        mount.unmount();
    }
}

#[test]
fn a_known_directory_is_changed_with_one_call_a_change() {
    each(64 * MIB, |server, mount| {
        let dir = mount.path("d");
        fs::create_dir(&dir).expect("made");
        let path = |i: u32| dir.join(format!("f{i}"));
        File::create_new(path(0)).expect("made");
        assert!(eventually(|| server.handled("close") == 1));
        let closes = 1;
        let made = server.calls_of(|| {
            (1..=100).for_each(|i| drop(File::create_new(path(i)).expect("made")));
            // The kernel releases files in the background after close(2).
            assert!(eventually(|| server.handled("close") >= closes + 100));
        });
        assert_eq!(made, 200, "one to make it, one to close it");
        let removed = server.calls_of(|| (0..=100).for_each(|i| fs::remove_file(path(i)).expect("removed")));
        assert_eq!(removed, 101);
        let gone = server.calls_of(|| assert!((0..=100).all(|i| missing(&path(i)))));
        assert_eq!(gone, 0);
        // The error for a name that is too long is not "no such file".
        let long = fs::metadata(dir.join("x".repeat(256))).expect_err("too long");
        assert_eq!(long.raw_os_error(), Some(36));
    });
}

#[test]
fn a_mount_sees_its_own_changes() {
    each(64 * MIB, |_, mount| {
        let status =
            Command::new("/bin/sh").args(["-ec", SCRIPT]).current_dir(&mount.point).status().expect("sh");
        assert!(status.success());
    });
}

/// Prints times, sizes, link counts and names after each change.
const SCRIPT: &str = r#"
mkdir d; stat d > /dev/null
for i in 1 2 3 4 5 6 7 8; do
  before=$(stat -c %y d); touch d/$i; test "$before" != "$(stat -c %y d)"
  test $(stat -c %s d/$i) = 0; echo hello > d/$i; test $(stat -c %s d/$i) = 6
  before=$(stat -c %y d/$i); echo hallo > d/$i; test "$before" != "$(stat -c %y d/$i)"
  ln d/$i d/l$i; test $(stat -c %h d/$i) = 2; rm d/$i; test $(stat -c %h d/l$i) = 1; ! test -e d/$i
  mkdir d/s$i; test $(stat -c %h d) = $((2 + i)); mv d/l$i d/s$i/f; ! test -e d/l$i; test $(cat d/s$i/f) = hallo
  chmod 640 d/s$i/f; test $(stat -c %a d/s$i/f) = 640; truncate -s 3 d/s$i/f; test $(stat -c %s d/s$i/f) = 3
  test $(cat d/s$i/f) = hal; echo more >> d/s$i/f; test $(cat d/s$i/f) = halmore
done
rm -r d; ! test -e d
"#;

/// The kernel caches the target of a link, which cannot change. It has no cache for values of
/// extended attributes.
#[test]
fn link_targets_are_requested_once_and_xattr_values_each_time() {
    const LOOKS: u64 = 20;
    for over in crate::common::providers() {
        let server = TestServer::new(64 * MIB);
        let maker = server.mount(over, &[]);
        symlink("target", maker.path("link")).expect("made");
        fs::write(maker.path("file"), b"x").expect("written");
        rustix::fs::setxattr(maker.path("file"), "user.a", b"value", XattrFlags::empty()).expect("set");
        maker.unmount();
        let mount = server.mount(over, &[]);
        let asked = |name: &str, look: &dyn Fn()| {
            let before = server.handled(name);
            (0..LOOKS).for_each(|_| look());
            server.handled(name) - before
        };
        let link = || assert_eq!(fs::read_link(mount.path("link")).expect("read"), Path::new("target"));
        assert_eq!(asked("readlink", &link), 1);
        let value = || {
            let mut value = [0; 16];
            assert_eq!(rustix::fs::getxattr(mount.path("file"), "user.a", &mut value[..]), Ok(5));
        };
        assert_eq!(asked("getxattr", &value), LOOKS);
        mount.unmount();
    }
}
