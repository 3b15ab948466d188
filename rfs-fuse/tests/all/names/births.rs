//! Times of birth.

use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, linkat, open, statx};

use crate::common::{TestServer, pairs, providers};

const MIB: u64 = 1 << 20;

/// Returns the time of birth, or `None` if it is not shown.
fn birth(path: &Path) -> Option<SystemTime> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted).expect("attributes");
    let time = UNIX_EPOCH + Duration::new(found.stx_btime.tv_sec as u64, found.stx_btime.tv_nsec);
    let shown = StatxFlags::from_bits_retain(found.stx_mask);
    assert!(shown.contains(StatxFlags::BASIC_STATS));
    shown.contains(StatxFlags::BTIME).then_some(time)
}

/// Detects a birth that differs from mount to mount, or that a change of the inode moves.
#[test]
fn a_birth_is_the_same_on_all_mounts_and_stays() {
    for options in [&["--births"][..], &["--births", "--cache", "none"]] {
        pairs(16 * MIB, options, |_, a, b| {
            fs::create_dir(a.path("directory")).expect("made");
            symlink("file", a.path("link")).expect("made");
            File::create(a.path("file")).expect("created");
            let all = ["directory", "link", "file"];
            let born = all.map(|name| birth(&a.path(name)).expect("known"));
            assert!(born.is_sorted());
            assert_eq!(fs::metadata(a.path("file")).expect("attributes").created().expect("known"), born[2]);
            thread::sleep(Duration::from_millis(5));
            fs::write(a.path("file"), b"bytes").expect("written");
            fs::set_permissions(b.path("file"), fs::Permissions::from_mode(0o600)).expect("chmod");
            fs::hard_link(b.path("file"), b.path("directory/second")).expect("linked");
            fs::remove_file(a.path("file")).expect("removed");
            fs::rename(a.path("directory"), a.path("moved")).expect("renamed");
            for mount in [a, b] {
                let names = ["moved", "link", "moved/second"].map(|name| birth(&mount.path(name)));
                assert_eq!(names, born.map(Some));
            }
            // Another file with the name.
            File::create(b.path("file")).expect("created");
            assert!(birth(&a.path("file")) > Some(born[2]));
        });
    }
}

/// Detects a file that is born when it gets its name.
#[test]
fn a_file_without_a_name_is_born_when_it_is_made() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, &["--births"]);
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = open(&mount.point, flags, Mode::from_raw_mode(0o600)).expect("made");
        thread::sleep(Duration::from_millis(5));
        File::create(mount.path("between")).expect("created");
        linkat(&file, "", CWD, mount.path("named"), AtFlags::EMPTY_PATH).expect("linked");
        assert!(birth(&mount.path("named")).expect("known") < birth(&mount.path("between")).expect("known"));
        mount.unmount();
    }
}

/// Detects requests for births on a mount that does not show them.
#[test]
fn without_the_option_there_is_no_birth_and_no_request() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, &[]);
        File::create(mount.path("file")).expect("created");
        assert_eq!(birth(&mount.path("file")), None, "{over:?}");
        assert_eq!(server.handled("birth"), 0, "{over:?}");
        mount.unmount();
    }
}

/// Detects a request for each `stat`, and a request for a birth that the client has.
#[test]
fn only_a_caller_that_asks_for_the_birth_sends_a_request() {
    for options in [&["--births"][..], &["--births", "--cache", "none"]] {
        for over in providers() {
            let server = TestServer::new(16 * MIB);
            let mount = server.mount(over, options);
            File::create(mount.path("file")).expect("created");
            for _ in 0..3 {
                statx(CWD, mount.path("file"), AtFlags::empty(), StatxFlags::BASIC_STATS)
                    .expect("attributes");
            }
            assert_eq!(server.handled("birth"), 0, "{over:?} {options:?}");
            let first = birth(&mount.path("file"));
            assert!(first.is_some());
            for _ in 0..3 {
                assert_eq!(birth(&mount.path("file")), first);
            }
            assert_eq!(server.handled("birth"), 1, "{over:?} {options:?}");
            mount.unmount();
        }
    }
}

/// Detects a birth that the next server does not know, also one of a new mount.
#[test]
fn a_birth_survives_a_restart_of_the_server() {
    for over in providers() {
        let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let configure =
            |config: &mut rfs_server::Config| config.memory_dir = Some(memory.path().join("memory"));
        let server = TestServer::with(16 * MIB, configure);
        let mount = server.mount(over, &["--births"]);
        fs::write(mount.path("file"), b"bytes").expect("written");
        File::create(mount.path("unseen")).expect("created");
        let born = birth(&mount.path("file"));
        assert!(born.is_some());
        let server = server.again(16 * MIB, configure);
        let other = server.mount(over, &["--births"]);
        for mount in [&mount, &other] {
            assert_eq!(birth(&mount.path("file")), born, "{over:?}");
            assert!(birth(&mount.path("unseen")) > born, "{over:?}");
        }
        other.unmount();
        mount.unmount();
    }
}
