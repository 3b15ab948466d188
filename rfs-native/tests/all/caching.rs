//! Cached names and attributes: they cost no call, and are never stale.

use rdmabox::ProviderKind;
use rfs_native::{Credentials, FileKind, Mount, OpenOptions};

use crate::common::*;

#[test]
fn a_cached_path_costs_no_call() {
    for provider in PROVIDERS {
        let server = TestServer::new(64 << 20);
        let mount = server.mount(provider);
        mount.make_dirs("a/b").unwrap();
        mount.write("a/b/f", "x").unwrap();
        mount.stat("a/b/f").unwrap();
        mount.stat("a/b/f").unwrap();
        assert_eq!(errno(mount.stat("a/b/g")), ENOENT);
        let file = mount.open("a/b/f").unwrap();
        let before = calls(&mount);
        for _ in 0..100 {
            assert_eq!(mount.stat("a/b/f").unwrap().size, 1);
            assert_eq!(errno(mount.stat("a/b/g")), ENOENT);
            mount.open("a/b/f").unwrap();
        }
        // The thread for recalls may make a call now and then.
        assert!(calls(&mount) < before + 10, "{provider}");
        drop(file);
        assert!(mount.usage().names >= 3);
    }
}

#[test]
fn a_cached_stat_over_tcp_costs_no_request_at_all() {
    let server = TestServer::new(64 << 20);
    let mount = server.mount(ProviderKind::Tcp);
    mount.write("f", "x").unwrap();
    mount.stat("f").unwrap();
    mount.stat("f").unwrap();
    let posted = |mount: &Mount| -> Vec<(&'static str, u64)> { mount.counters() };
    let before = posted(&mount);
    for _ in 0..100 {
        mount.stat("f").unwrap();
    }
    let sent = |counters: &[(&'static str, u64)]| -> u64 {
        counters
            .iter()
            .filter(|(name, _)| matches!(*name, "calls" | "reads" | "writes"))
            .map(|(_, n)| n)
            .sum()
    };
    // The thread for recalls may make a call now and then.
    assert!(sent(&posted(&mount)) < sent(&before) + 10, "{before:?}");
}

#[test]
fn a_change_of_the_other_mount_shows_at_once() {
    with_two_mounts(|one, two| {
        two.write("f", "1").unwrap();
        for round in 0..15 {
            assert_eq!(one.stat("f").unwrap().size, 1, "{round}");
            two.remove_file("f").unwrap();
            assert_eq!(errno(one.stat("f")), ENOENT, "{round}");
            two.make_dir("f", 0o700).unwrap();
            assert!(one.stat("f").unwrap().is_dir());
            two.set_mode("f", 0o711).unwrap();
            assert_eq!(one.stat("f").unwrap().perm, 0o711);
            one.remove_dir("f").unwrap();
            assert_eq!(errno(two.stat("f")), ENOENT);
            two.write("g", "22").unwrap();
            two.rename("g", "f").unwrap();
            assert_eq!((one.stat("f").unwrap().size, errno(one.stat("g"))), (2, ENOENT));
            let file = two.open_with("f", OpenOptions::new().write(true)).unwrap();
            file.set_len(1).unwrap();
            assert_eq!(one.stat("f").unwrap().size, 1);
            file.append(b"x").unwrap();
            assert_eq!(one.stat("f").unwrap().size, 2);
            file.set_len(1).unwrap();
        }
    });
}

#[test]
fn own_changes_show_at_once_beside_lookups() {
    for provider in PROVIDERS {
        let server = TestServer::new(64 << 20);
        let mount = server.mount(provider);
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for round in 0..60 {
                    mount.write("f", vec![0; round % 7]).unwrap();
                    assert_eq!(mount.stat("f").unwrap().size, (round % 7) as u64);
                    mount.rename("f", "g").unwrap();
                    assert_eq!(errno(mount.stat("f")), ENOENT, "{round}");
                    assert_eq!(mount.stat("g").unwrap().size, (round % 7) as u64);
                    mount.remove_file("g").unwrap();
                    assert_eq!(errno(mount.stat("g")), ENOENT, "{round}");
                }
            });
            while !changes.is_finished() {
                mount.stat("f").ok();
                mount.stat("g").ok();
            }
        });
    }
}

#[test]
fn one_directory_uses_most_of_the_cache() {
    const FILES: usize = 3500;
    for provider in PROVIDERS {
        let server = TestServer::new(64 << 20);
        let mount = server.mount_with(provider, |options| options.cached_names = 4096);
        server.mount(ProviderKind::Shm).make_dir("d", 0o755).unwrap();
        for at in 0..FILES {
            mount.make_node(format!("d/{at}"), FileKind::Regular, 0o644, 0).unwrap();
        }
        let usage = mount.usage();
        assert!(usage.names > FILES * 9 / 10 && usage.names <= 4096 + 64, "{usage:?}");
        mount.remove_tree("d").unwrap();
        assert!(mount.usage().names < 10);
    }
}

/// Returns the number of requests of a kind that the server has handled.
fn handled(server: &TestServer, kind: &str) -> u64 {
    let calls = server.inner.stats().calls;
    calls.iter().find(|(name, _)| name == kind).map(|(_, count)| *count).expect("a kind of request")
}

#[test]
fn names_that_only_other_mounts_use_are_returned() {
    const FILES: u32 = 100;
    for (one, two) in [(ProviderKind::Shm, ProviderKind::Tcp), (ProviderKind::Tcp, ProviderKind::Shm)] {
        let server = TestServer::new(64 << 20);
        let (here, there) = (server.mount(one), server.mount(two));
        here.make_dirs("d/below").unwrap();
        for name in ["old", "replaced", "stays"] {
            here.write(format!("d/{name}"), name).unwrap();
        }
        for name in ["old", "replaced", "stays", "below"] {
            there.stat(format!("d/{name}")).unwrap();
        }
        assert_eq!(errno(there.stat("d/absent")), ENOENT);
        let deadline = std::time::Instant::now() + WAIT_LIMIT;
        let mut made = 0;
        while handled(&server, "returnnames") == 0 {
            assert!(std::time::Instant::now() < deadline, "after {made} recalls");
            here.write(format!("d/file{made}"), "").unwrap();
            made += 1;
        }
        // Waits for the last recall, which recalls all names.
        here.write("d/last", "").unwrap();
        let before = handled(&server, "recalls");
        for number in 0..FILES {
            here.write(format!("d/more{number}"), "").unwrap();
        }
        for number in 0..FILES {
            here.remove_file(format!("d/more{number}")).unwrap();
        }
        assert_eq!(handled(&server, "recalls") - before, 0, "recalls for {FILES} files");
        // Names that the mount uses again are recalled again.
        here.remove_file("d/old").unwrap();
        here.rename("d/stays", "d/replaced").unwrap();
        here.remove_dir("d/below").unwrap();
        here.write("d/absent", "new").unwrap();
        assert_eq!(["d/old", "d/stays", "d/below"].map(|path| errno(there.stat(path))), [ENOENT; 3]);
        assert_eq!(
            (there.read("d/absent").unwrap(), there.read("d/replaced").unwrap()),
            (b"new".into(), b"stays".into())
        );
        here.remove_file("d/absent").unwrap();
        assert_eq!(errno(there.stat("d/absent")), ENOENT);
    }
}

#[test]
fn names_that_are_used_here_stay() {
    for provider in PROVIDERS {
        let server = TestServer::new(64 << 20);
        let (here, there) = (server.mount(ProviderKind::Shm), server.mount(provider));
        here.make_dir("d", 0o777).unwrap();
        here.write("d/file", "").unwrap();
        let user = there.as_user(Credentials::new(1001, 1001));
        for number in 0..100 {
            here.write(format!("d/file{number}"), "").unwrap();
            if number % 4 == 0 {
                // Root needs no attributes of the directory.
                if number % 8 == 0 { &there } else { &user }.stat("d/file").unwrap();
            }
        }
        assert_eq!(handled(&server, "returnnames"), 0);
    }
}

#[test]
fn a_small_cache_forgets_names_and_inodes() {
    let server = TestServer::new(64 << 20);
    let mount = server.mount_with(ProviderKind::Shm, |options| options.cached_names = 640);
    for at in 0..1500 {
        mount.write(format!("file {at}"), "x").unwrap();
    }
    let usage = mount.usage();
    assert!(usage.names <= 640 && usage.inodes <= 700, "{usage:?}");
    let uncached = server.mount_with(ProviderKind::Shm, |options| options.caches = false);
    uncached.stat("file 1").unwrap();
    assert_eq!(uncached.usage().names, 0);
}
