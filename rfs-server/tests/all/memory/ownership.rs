//! Directories, files and sockets that another user has prepared for the server. Needs root.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{PermissionsExt, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::program::{self, Running};

const ATTACKER: u32 = 65_534;

/// A directory that all users may write to, as /tmp.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
        Scene(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn server(&self, option: &str, directory: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
        program::piped(&mut command);
        command.args(["--memory=1M", "--inodes=100", "--listen"]);
        command.arg(format!("unix:{}", self.path("socket").display()));
        command.arg(format!("{option}={}", directory.display()));
        command
    }

    fn refuses(&self, option: &str, directory: &Path, words: &[&str]) {
        program::refuses(&mut self.server(option, directory), &[words, &[option]].concat());
    }

    /// Starts and ends a server, which leaves its files there.
    fn serve(&self, option: &str, directory: &Path) {
        let mut server = Running::start(&mut self.server(option, directory));
        server.signal("TERM");
        assert!(server.0.wait().unwrap().success());
    }
}

fn directory(path: &Path, mode: u32) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn directories_of_another_user_are_refused() {
    for option in ["--memory-dir", "--persist"] {
        let scene = Scene::new();
        let path = scene.path("planted");
        directory(&path, 0o755);
        chown(&path, Some(ATTACKER), None).unwrap();
        scene.refuses(option, &path, &["planted", "belongs to user 65534"]);
        let open = scene.path("open");
        directory(&open, 0o777);
        scene.refuses(option, &open, &["open", "other users can write to it", "777"]);
        let link = scene.path("link");
        let target = scene.path("target");
        directory(&target, 0o700);
        symlink(&target, &link).unwrap();
        scene.refuses(option, &link, &["link", "symbolic link"]);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "the target is as it was");
        let file = scene.path("file");
        fs::write(&file, "").unwrap();
        scene.refuses(option, &file, &["file: not a directory"]);
        let above = scene.path("above");
        directory(&above, 0o777);
        directory(&above.join("own"), 0o700);
        scene.refuses(option, &above.join("own"), &["above/own", "other users can replace it"]);
    }
}

#[test]
fn files_of_another_user_are_refused() {
    let scene = Scene::new();
    let path = scene.path("memory");
    scene.serve("--memory-dir", &path);
    let secret = scene.path("secret");
    for name in ["state", "arena", "table"] {
        let file = path.join("rfs").join(name);
        let aside = path.join("aside");
        fs::rename(&file, &aside).unwrap();
        // With the length of the file that it replaces.
        fs::copy(&aside, &secret).unwrap();
        symlink(&secret, &file).unwrap();
        scene.refuses("--memory-dir", &path, &[name, "symbolic link"]);
        assert_eq!(fs::read(&secret).unwrap(), fs::read(&aside).unwrap());
        fs::remove_file(&file).unwrap();
        fs::rename(&aside, &file).unwrap();
        chown(&file, Some(ATTACKER), None).unwrap();
        scene.refuses("--memory-dir", &path, &[name, "belongs to user 65534"]);
        chown(&file, Some(0), None).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o606)).unwrap();
        scene.refuses("--memory-dir", &path, &[name, "606"]);
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    }
    scene.serve("--memory-dir", &path);
}

#[test]
fn snapshots_of_another_user_are_refused() {
    let scene = Scene::new();
    let path = scene.path("snapshots");
    scene.serve("--persist", &path);
    let file = path.join("rfs/snapshot-00000000000000000001");
    chown(&file, Some(ATTACKER), None).unwrap();
    scene.refuses("--persist", &path, &["snapshot-0", "belongs to user 65534"]);
    chown(&file, Some(0), None).unwrap();
    chown(path.join("rfs"), Some(ATTACKER), None).unwrap();
    scene.refuses("--persist", &path, &["rfs", "belongs to user 65534"]);
}

#[test]
fn a_socket_of_another_user_is_not_replaced() {
    let scene = Scene::new();
    let socket = scene.path("socket");
    drop(UnixListener::bind(&socket).unwrap());
    chown(&socket, Some(ATTACKER), None).unwrap();
    let memory = scene.path("memory");
    program::refuses(&mut scene.server("--memory-dir", &memory), &["socket", "user 65534", "remove it"]);
    assert!(socket.exists());
    // In a directory where that user can replace the socket.
    let planted = scene.path("planted");
    directory(&planted, 0o755);
    chown(&planted, Some(ATTACKER), None).unwrap();
    let mut server = scene.server("--memory-dir", &memory);
    server.arg("--listen").arg(format!("unix:{}", planted.join("socket").display()));
    program::refuses(&mut server, &["planted", "belongs to user 65534"]);
}
