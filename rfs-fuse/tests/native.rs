//! A FUSE mount and native mounts of one server see each other's changes. Needs root and
//! `/dev/fuse`.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, ErrorKind},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rdmabox::{Address, ProviderKind};
use rfs_native::{LockMode, Mount, MountOptions, OpenOptions, RenameMode};
use rfs_server::{Config, Server};

/// A FUSE mount, which ends with this value.
struct FuseMount {
    child: Child,
    point: PathBuf,
}

impl FuseMount {
    fn new(address: &Address, point: &Path, options: &[&str]) -> FuseMount {
        assert!(Path::new("/dev/fuse").exists(), "this test mounts, and there is no /dev/fuse here");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-fuse"));
        command.args(options).arg(address.to_string()).arg(point).stdout(Stdio::piped());
        let mut child = command.spawn().expect("rfs-fuse starts");
        let mut greeting = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut greeting).expect("UTF-8");
        assert!(!greeting.is_empty(), "no mount");
        FuseMount { child, point: point.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::INT,
        )
        .expect("signal sent");
        self.child.wait().expect("the mount ends");
    }
}

/// Runs a test with a FUSE mount and a native one, over both providers and in two cache modes.
fn beside(test: impl Fn(&FuseMount, &Mount)) {
    for (provider, cache) in
        [(ProviderKind::Shm, "auto"), (ProviderKind::Tcp, "auto"), (ProviderKind::Shm, "none")]
    {
        let dir = tempfile::tempdir().expect("directory");
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("mode");
        let mut config = Config::new(64 << 20);
        config.listen = vec![
            Address::Unix(dir.path().join("socket")),
            Address::Tcp { host: "127.0.0.1".into(), port: 0 },
        ];
        config.allow_without_keys = true;
        let server = Server::start(config).expect("server");
        let of_provider = |address: &&Address| address.provider() == provider;
        let address = server.addresses().iter().find(of_provider).expect("an address");
        let point = dir.path().join("mount");
        fs::create_dir(&point).expect("mount point");
        let options = ["--provider", &provider.to_string(), "--cache", cache];
        let fuse = FuseMount::new(address, &point, &options);
        let options = MountOptions { provider: Some(provider), ..MountOptions::default() };
        let native = Mount::connect_to(address, &options).expect("mounted");
        test(&fuse, &native);
    }
}

fn missing(path: PathBuf) -> bool {
    fs::metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

#[test]
fn a_native_mount_and_a_fuse_mount_are_one_file_system() {
    beside(|fuse, native| {
        for round in 0..20_u64 {
            native.make_dir("d", 0o755).expect("made");
            native.write("d/f", format!("native {round}")).expect("written");
            assert_eq!(fs::read_to_string(fuse.path("d/f")).expect("read"), format!("native {round}"));
            fs::write(fuse.path("d/f"), format!("fuse {round}")).expect("written");
            assert_eq!(native.read("d/f").expect("read"), format!("fuse {round}").into_bytes());
            assert_eq!(native.stat("d/f").expect("stat").size, 5 + round.to_string().len() as u64);
            fs::rename(fuse.path("d/f"), fuse.path("g")).expect("renamed");
            assert!(native.list("d").expect("listed").is_empty() && !native.exists("d/f").expect("known"));
            assert!(missing(fuse.path("h")));
            native.rename_with("g", "h", RenameMode::NoReplace).expect("renamed");
            assert!(missing(fuse.path("g")));
            native.set_mode("h", 0o640).expect("mode");
            assert_eq!(fs::metadata(fuse.path("h")).expect("stat").mode() & 0o7777, 0o640);
            fs::set_permissions(fuse.path("h"), PermissionsExt::from_mode(0o600)).expect("mode");
            assert_eq!(native.stat("h").expect("stat").perm, 0o600);
            native.symlink("h", "l").expect("linked");
            assert_eq!(fs::read_link(fuse.path("l")).expect("link"), Path::new("h"));
            fs::remove_file(fuse.path("l")).expect("removed");
            native.remove_file("h").expect("removed");
            assert!(missing(fuse.path("h")));
            fs::remove_dir(fuse.path("d")).expect("removed");
            assert!(!native.exists("d").expect("known"));
        }
    });
}

#[test]
fn a_fuse_mount_reads_each_native_write() {
    beside(|fuse, native| {
        native.write("f", [0; 8192]).expect("written");
        // The kernel has pages of the file from before the writer came.
        let file = File::open(fuse.path("f")).expect("opened");
        let mut out = [9; 8192];
        file.read_exact_at(&mut out, 0).expect("read");
        let writer = native.open_with("f", OpenOptions::new().read(true).write(true)).expect("opened");
        for round in 1..100_u8 {
            writer.write_all_at(&[round; 4096], 2000).expect("written");
            file.read_exact_at(&mut out, 0).expect("read");
            assert_eq!(out[2000..6096], [round; 4096], "round {round}");
            let end = writer.append(&[round]).expect("appended");
            file.read_exact_at(&mut out[..1], end).expect("read");
            assert_eq!(out[0], round);
            assert_eq!(file.metadata().expect("stat").len(), end + 1);
        }
        writer.set_len(100).expect("truncated");
        assert_eq!(file.metadata().expect("stat").len(), 100);
        // And the other way round.
        let file = File::options().write(true).open(fuse.path("f")).expect("opened");
        for round in 1..100_u8 {
            file.write_all_at(&[round; 100], 50).expect("written");
            let mut out = [0; 100];
            writer.read_exact_at(&mut out, 50).expect("read");
            assert_eq!(out, [round; 100]);
        }
    });
}

#[test]
fn locks_hold_between_both() {
    beside(|fuse, native| {
        let (here, there) =
            (native.create("f").expect("created"), File::create(fuse.path("f")).expect("opened"));
        assert!(here.try_lock(LockMode::Exclusive, 0..10).expect("asked"));
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        let refused = rustix::fs::fcntl_lock(&there, lock).expect_err("locked");
        assert!(matches!(refused, rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS), "{refused}");
        drop(here);
        rustix::fs::fcntl_lock(&there, lock).expect("unlocked");
        let again = native.open_with("f", OpenOptions::new().write(true)).expect("opened");
        assert!(!again.try_lock(LockMode::Exclusive, ..).expect("asked"));
    });
}
