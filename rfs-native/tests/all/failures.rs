//! Servers that end, sessions that are lost, and mounts that are dropped.

use std::time::Duration;

use rfs_native::{LockMode, Mount, MountOptions, OpenOptions};

use crate::common::*;

#[test]
fn a_mount_that_cannot_connect_has_a_reason() {
    let refused = |address: &str, options: &MountOptions| Mount::connect(address, options).unwrap_err();
    let options = MountOptions { connect_timeout: Duration::from_secs(1), ..MountOptions::default() };
    assert_eq!(refused("no such address at all", &options).errno(), EINVAL);
    assert_eq!(refused("127.0.0.1:1", &options).errno(), 113, "EHOSTUNREACH");
    let server = TestServer::new(16 << 20);
    let address = server.address(rdmabox::ProviderKind::Tcp).to_string();
    let export = MountOptions { export: "other".into(), ..options.clone() };
    let error = refused(&address, &export);
    assert_eq!(error.errno(), ENOENT, "{error}");
    assert!(error.to_string().contains("other"), "{error}");
    let key = MountOptions { key: Some("/nonexistent/key".into()), ..options };
    assert_eq!(refused(&address, &key).errno(), EACCES);
}

#[test]
fn an_ended_server_is_an_error_number_and_not_a_hang() {
    for provider in PROVIDERS {
        let server = TestServer::new(16 << 20);
        let mount = server.mount_with(provider, |options| {
            (options.timeout, options.reconnects) = (Duration::from_secs(3), false);
        });
        let file = mount.create("f").unwrap();
        file.write_all_at(b"x", 0).unwrap();
        mount.stat("/").unwrap();
        drop(server);
        let failed = [
            errno(file.read_at(&mut [0; 4096], 0)),
            errno(file.write_at(&[0; 4096], 0)),
            errno(file.append(b"x")),
            errno(file.stat()),
            errno(mount.stat("f")),
            errno(mount.open("f")),
            errno(mount.write("g", "x")),
            errno(file.close()),
        ];
        for (at, errno) in failed.into_iter().enumerate() {
            assert!(matches!(errno, EHOSTDOWN | 110), "{provider}: call {at} has error {errno}");
        }
        assert!(!mount.is_connected());
    }
}

#[test]
fn files_stay_open_over_a_restart_on_the_same_memory() {
    for provider in PROVIDERS {
        let memory = tempfile::tempdir_in("/dev/shm").expect("memory directory");
        let dir = Some(memory.path().to_owned());
        // Dropped last: without a server the end of a file waits for one until its timeout.
        let mut server = TestServer::with(16 << 20, |config| config.memory_dir = dir.clone());
        let mount = server.mount(provider);
        let file = mount.create("f").unwrap();
        file.write_all_at(b"before", 0).unwrap();
        mount.make_dir("d", 0o755).unwrap();
        server = server.again(16 << 20, |config| config.memory_dir = dir);
        let mut out = [0; 6];
        file.read_exact_at(&mut out, 0).unwrap();
        assert_eq!(&out, b"before");
        file.write_all_at(b"after ", 0).unwrap();
        file.append(b"!").unwrap();
        assert!(mount.stat("d").unwrap().is_dir());
        let other = server.mount(provider);
        assert_eq!(other.read("f").unwrap(), b"after !");
        other.remove_dir("d").unwrap();
        assert_eq!(errno(mount.stat("d")), ENOENT, "recalls come from the new server");
    }
}

#[test]
fn a_mount_without_its_files_gets_an_error() {
    for provider in PROVIDERS {
        let server = TestServer::new(16 << 20);
        let mount = server.mount_with(provider, |options| options.timeout = Duration::from_secs(4));
        let file = mount.create("f").unwrap();
        file.write_all_at(b"before", 0).unwrap();
        let _server = server.again(16 << 20, |_| {});
        // Another memory: the mount cannot reconnect to it.
        assert_eq!(errno(file.read_at(&mut [0; 6], 0)), EHOSTDOWN, "{provider}");
        assert_eq!(errno(mount.stat("f")), EHOSTDOWN);
    }
}

#[test]
fn the_session_ends_with_its_last_file() {
    for provider in PROVIDERS {
        let server = TestServer::new(16 << 20);
        let mount = server.mount(provider);
        let file = mount.create("f").unwrap();
        assert!(file.try_lock(LockMode::Exclusive, ..).unwrap());
        drop(mount);
        file.write_all_at(b"still open", 0).unwrap();
        let sessions = || server.inner.stats().sessions;
        assert_eq!(sessions(), 1);
        file.close().unwrap();
        let deadline = std::time::Instant::now() + WAIT_LIMIT;
        while sessions() > 0 {
            assert!(std::time::Instant::now() < deadline, "the session stays");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(server.mount(provider).read("f").unwrap(), b"still open");
    }
}

#[test]
fn a_disconnected_mount_fails_and_releases_its_locks() {
    for provider in PROVIDERS {
        let server = TestServer::new(16 << 20);
        let (one, two) = (server.mount(provider), server.mount(provider));
        let file = one.create("f").unwrap();
        assert!(file.try_lock(LockMode::Exclusive, ..).unwrap());
        one.disconnect();
        assert_eq!(errno(file.write_at(b"x", 0)), EHOSTDOWN);
        assert_eq!(errno(one.stat("f")), EHOSTDOWN);
        let there = two.open_with("f", OpenOptions::new().write(true)).unwrap();
        there.lock(LockMode::Exclusive, ..).unwrap();
    }
}
