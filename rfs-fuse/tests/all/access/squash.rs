//! Mounts with a squashed key: the client's root is not root of the export. Files work as usual.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    process::Command,
};

use crate::common::*;
use rustix::io::Errno;

const MIB: u64 = 1 << 20;
const NAMES: [(&str, &str); 3] =
    [("admin", "rw"), ("box", "rw squash=root"), ("user", "rw squash=all uid=1000 gid=1000")];

struct Fixture {
    server: TestServer,
    keys: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let keys = directory();
        let private = |name: &str, text: &str| {
            let path = keys.path().join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
            path
        };
        let mut lines = String::new();
        for (at, (name, rights)) in NAMES.into_iter().enumerate() {
            let secret = format!("{:02x}", at + 1).repeat(32);
            lines += &format!("{name} {secret} rfs {rights}\n");
            private(name, &format!("{name} {secret}\n"));
        }
        let all = private("all", &lines);
        let server = TestServer::with(32 * MIB, |config| {
            config.keys = Some(all);
            config.root.perm = 0o1777;
        });
        Fixture { server, keys }
    }

    fn mount(&self, over: Over, key: &str) -> Mount {
        let key = self.keys.path().join(key);
        self.server.mount(over, &["--key", key.to_str().expect("UTF-8")])
    }
}

#[track_caller]
fn refused<T>(outcome: std::io::Result<T>) {
    let error = outcome.err().and_then(|e| e.raw_os_error());
    assert!(
        [Errno::ACCESS, Errno::PERM].iter().any(|errno| error == Some(errno.raw_os_error())),
        "{error:?}"
    );
}

fn chmod(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[test]
fn root_of_a_client_is_not_root_of_the_export() {
    let f = Fixture::new();
    for over in providers() {
        let admin = f.mount(over, "admin");
        for (name, mode) in [("secret", 0o600), ("program", 0o755), ("open", 0o666)] {
            fs::write(admin.path(name), b"of root").expect("written");
            chmod(&admin.path(name), mode).expect("chmod");
        }
        fs::create_dir(admin.path("dir")).expect("made");
        fs::write(admin.path("dir/file"), b"of root").expect("written");
        fs::create_dir(admin.path("closed")).expect("made");
        chmod(&admin.path("closed"), 0o700).expect("chmod");
        for key in ["box", "user"] {
            let client = f.mount(over, key);
            let at = |name: &str| client.path(name);
            refused(fs::read(at("secret")));
            refused(fs::write(at("program"), b"evil"));
            refused(OpenOptions::new().append(true).open(at("program")));
            refused(OpenOptions::new().write(true).truncate(true).open(at("program")));
            refused(chmod(&at("program"), 0o4755));
            refused(chown(at("program"), Some(1000), None));
            refused(fs::remove_file(at("dir/file")));
            refused(fs::write(at("dir/new"), b"x"));
            refused(fs::rename(at("dir/file"), at("taken")));
            refused(fs::hard_link(at("secret"), at("link")));
            refused(fs::rename(at("program"), at("gone")));
            refused(fs::read_dir(at("closed")).and_then(|mut entries| entries.next().transpose()));
            let mknod =
                Command::new("mknod").arg(at("device")).args(["c", "1", "3"]).status().expect("mknod");
            assert!(!mknod.success());
            assert_eq!(fs::read(at("program")).expect("readable"), b"of root");
            OpenOptions::new()
                .append(true)
                .open(at("open"))
                .and_then(|mut file| file.write_all(b"!"))
                .expect("all may");
            client.unmount();
        }
        assert_eq!(fs::read(admin.path("open")).expect("read"), b"of root!!");
        assert_eq!(fs::read(admin.path("program")).expect("read"), b"of root");
        for name in ["secret", "program", "open", "dir", "closed"] {
            let path = admin.path(name);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("removed");
        }
        admin.unmount();
    }
}

#[test]
fn files_of_a_squashed_client_belong_to_its_user_and_keep_their_bytes() {
    let f = Fixture::new();
    for over in providers() {
        let admin = f.mount(over, "admin");
        // Not in the sticky root: with `fs.protected_regular`, the kernel refuses O_CREAT there for
        // a file that the server gives to another user than the caller.
        fs::create_dir(admin.path("shared")).expect("made");
        chmod(&admin.path("shared"), 0o777).expect("chmod");
        for (key, owner) in [("box", 65534), ("user", 1000)] {
            let client = f.mount(over, key);
            let (here, there) = (client.path("shared/file"), admin.path("shared/file"));
            let bytes = pattern(300_001, 1);
            fs::write(&here, &bytes).expect("written");
            assert!(fs::read(&there).expect("read") == bytes);
            let attributes = fs::metadata(&there).expect("attributes");
            assert_eq!((attributes.uid(), attributes.gid()), (owner, owner));
            // Appends of both mounts, which must not overwrite each other.
            std::thread::scope(|scope| {
                for (path, mark) in [(&here, b'a'), (&there, b'b')] {
                    scope.spawn(move || {
                        let mut file = OpenOptions::new().append(true).open(path).expect("opened");
                        (0..200).for_each(|_| file.write_all(&[mark; 100]).expect("appended"));
                    });
                }
            });
            let all = fs::read(&there).expect("read");
            assert_eq!(all.len(), bytes.len() + 40_000);
            assert!(all[..bytes.len()] == bytes && fs::read(&here).expect("read") == all);
            let pieces = all[bytes.len()..].chunks(100);
            assert!(pieces.into_iter().all(|piece| piece == [b'a'; 100] || piece == [b'b'; 100]));
            assert_eq!(all[bytes.len()..].iter().filter(|byte| **byte == b'a').count(), 20_000);
            let before = fs::metadata(&there).expect("attributes").modified().expect("a time");
            std::thread::sleep(std::time::Duration::from_millis(20));
            OpenOptions::new()
                .write(true)
                .open(&here)
                .and_then(|mut file| file.write_all(b"again"))
                .expect("written");
            let now = fs::metadata(&there).expect("attributes").modified().expect("a time");
            assert!(now > before, "a write has a time");
            chmod(&here, 0o4711).expect("its own");
            refused(chown(&here, Some(0), None));
            refused(chown(&here, None, Some(0)));
            fs::rename(&here, client.path("shared/other")).expect("renamed");
            fs::remove_file(client.path("shared/other")).expect("removed");
            client.unmount();
        }
        fs::remove_dir(admin.path("shared")).expect("removed");
        admin.unmount();
    }
}
