//! A tmpfs that fills up while the server runs, and memory limits. Needs the right to mount.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use rdmabox::{Address, ProviderKind, Session};
use rfs_proto::{Errno, Reply, Request, XattrSet};

use crate::common::{
    Client, attach,
    program::{self, Running, place},
};

/// Returns the command of a server whose memory is on its own tmpfs, in a mount namespace. The
/// shell runs `before` there first.
fn on_tmpfs(directory: &Path, size: &str, before: &str, rest: &[&str]) -> Command {
    let place = directory.join("tmpfs");
    fs::create_dir_all(&place).unwrap();
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-e", "-c"]);
    unshare.arg(format!(
        "mount -t tmpfs -o size={size},mode=700 tmpfs \"$0\"; cd \"$0\"; {before}; exec \"$@\""
    ));
    unshare.arg(&place).arg(env!("CARGO_BIN_EXE_rfs-server"));
    unshare.arg("--listen").arg(format!("unix:{}", directory.join("socket").display()));
    unshare.arg("--memory-dir").arg(place.join("memory")).args(rest);
    program::piped(&mut unshare);
    unshare
}

fn connect(directory: &Path) -> Client {
    let session = Session::builder()
        .provider(ProviderKind::Shm)
        .connect(&Address::Unix(directory.join("socket")))
        .unwrap();
    let Reply::Attached(attached) = attach(&session, "", false) else { panic!("not attached") };
    Client { session, attached }
}

/// Takes all space that is left.
fn fill(place: &Path) {
    let mut file = File::create(place.join("other")).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

/// The server and its clients allocate all pages at the start, so each write finds its page.
#[test]
fn a_tmpfs_that_fills_later_does_not_affect_the_server() {
    for prefault in ["never", "background"] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let prefault = format!("--prefault={prefault}");
        let args = ["--memory=16M", "--inodes=5000", &prefault];
        let mut server = Running::start(&mut on_tmpfs(directory, "48m", ":", &args));
        let inside = PathBuf::from(format!("/proc/{}/root", server.0.id()));
        fill(&inside.join(directory.join("tmpfs").strip_prefix("/").unwrap()));
        let client = connect(directory);
        // Fills the table and the log.
        for number in 0..4000 {
            let attr = client.create(format!("file-{number}").as_bytes()).attr;
            client.ask(Request::Close { ino: attr.ino });
        }
        // Fills the rest of the arena.
        let attr = client.create(b"large").attr;
        let (chunk, mut offset) = (1 << 20, 0);
        loop {
            let request = Request::Allocate { ino: attr.ino, offset, len: chunk };
            let Reply::Layout(layout) = client.ask(request) else { break };
            for extent in layout.extents {
                let data = vec![7; extent.len as usize];
                client.session.write(place(client.attached.arena, extent.arena), &data).unwrap();
            }
            offset += chunk;
        }
        assert!(offset >= 12 << 20, "{offset} bytes were allocated");
        // Writes more than the log has reserved: the server refuses a change or rewrites the log.
        let mut refused = 0;
        for number in 0..3000u32 {
            let value = [number as u8; 4000];
            let set = Request::SetXattr {
                ino: attr.ino,
                name: b"user.a",
                value: &value,
                how: XattrSet::Any,
                continued: false,
                drop_sgid: false,
                only_if: None,
            };
            match client.ask(set) {
                Reply::Error(Errno::ENOSPC | Errno::EIO) => refused += 1,
                Reply::Error(other) => panic!("{other}"),
                _ => {}
            }
        }
        eprintln!("{refused} of 3000 changes were refused");
        drop(client);
        server.signal("TERM");
        assert_eq!(server.0.wait().unwrap().code(), Some(0));
    }
}

/// Catches a reservation of the largest size instead of the size. A tmpfs that is too small for the
/// largest size does not matter before the export grows.
#[test]
fn a_tmpfs_has_to_hold_the_size_and_not_the_largest_size() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let args = ["--memory=16M", "--max-memory=1G", "--inodes=5000"];
    let server = Running::start(&mut on_tmpfs(directory, "48m", ":", &args));
    let resize = |size: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
        program::piped(command.args(["resize", "rfs", size]).arg(directory.join("socket")));
        command.output().unwrap()
    };
    program::fails(&resize("128M"), "rfs-server resize: ", &["112 MiB more", "space in --memory-dir"]);
    assert_eq!(resize("24M").status.code(), Some(0));
    let client = connect(directory);
    let attr = client.create(b"large").attr;
    let request = |len| Request::Allocate { ino: attr.ino, offset: 0, len };
    assert_eq!(client.ask(request((24 << 20) + 1)), Reply::Error(Errno::ENOSPC));
    assert!(matches!(client.ask(request(24 << 20)), Reply::Layout(_)));
    drop(server);
}

/// If there is too little space, the server leaves no file.
#[test]
fn too_little_space_is_reported_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["--memory=16M", "--inodes=5000"];
    // The arena fits, but not with the table and the log.
    let mut command = on_tmpfs(directory.path(), "17m", ":", &args);
    program::refuses(
        &mut command,
        &["cannot lend", "only 17.0 MiB", "space in --memory-dir", "tmpfs/memory"],
    );
    let check = "\"$@\" 2>refused && exit 9; grep -q 'cannot lend' refused; [ ! -e memory ]; \
                 set -- sh -c 'echo rfs-server: clean >&2; exit 1'";
    let mut command = on_tmpfs(directory.path(), "17m", check, &args);
    program::refuses(&mut command, &["clean"]);
}

/// A control group with a memory limit. Dropping it removes the group.
struct Group(PathBuf);

impl Group {
    fn new(limit: &str) -> Option<Group> {
        let root = Path::new("/sys/fs/cgroup");
        let (parent, file) = match root.join("memory").is_dir() {
            true => (root.join("memory"), "memory.limit_in_bytes"),
            false => (root.to_owned(), "memory.max"),
        };
        let path = parent.join(format!("rfs-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Group(path);
        // Not a file system of another kind.
        if !group.0.join(file).exists() {
            return None;
        }
        fs::write(group.0.join(file), limit).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The limit of a control group counts like the memory of the machine, for both kinds of memory.
#[test]
fn the_limit_of_a_control_group_is_reported_at_the_start() {
    let Some(group) = Group::new("48M") else {
        eprintln!("not run: control groups with a limit of memory cannot be made here");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let enter = format!("echo $$ >{}/cgroup.procs", group.0.display());
    for option in ["", "--memory-dir=/dev/shm/rfs-test-limit"] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{enter}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_rfs-server")]);
        command.arg("--memory=256M").args([option].iter().filter(|option| !option.is_empty()));
        command.arg("--listen").arg(format!("unix:{}", directory.path().join("socket").display()));
        program::piped(&mut command);
        program::refuses(&mut command, &["cannot lend", "the memory limit of control group"]);
    }
    let _ = fs::remove_dir_all("/dev/shm/rfs-test-limit");
}
