//! Mounts that another program has made: `/dev/fd/N` in place of the mount point.

use std::{
    fs::{self, File},
    io::Write,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::PermissionsExt,
    },
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat},
    io::FdFlags,
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::Signal,
};

use crate::common::{
    Mount, NOBODY, Over, TestServer, directory, eventually, is_in_own_process, is_mounted, program,
};

const MIB: u64 = 1 << 20;

/// Opens the FUSE device DEVICE as descriptor 9, mounts with it on POINT, and becomes the rest of
/// its arguments.
const MOUNTS: &str = r#"
    exec 9<>"$1"
    mount -i -t fuse.rfs -o "fd=9,rootmode=40000,user_id=0,group_id=0$3" handed "$2"
    shift 3
    exec "$@"
"#;

/// Asserts that a command fails with one line on stderr, which contains these words.
#[track_caller]
fn assert_fails(command: &mut Command, code: i32, words: &[&str]) {
    let out = command.stdin(Stdio::null()).output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

fn server() -> TestServer {
    TestServer::with(16 * MIB, |config| config.socket.mode = Some(0o666))
}

/// Makes a FUSE device that every user can open. /dev/fuse itself stays as it is.
fn device(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("fuse");
    mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), makedev(10, 229)).expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("chmod");
    path
}

/// Returns a command that mounts in a user namespace of an ordinary user, and starts the program
/// there with these arguments. `options`: further options of the mount.
fn in_namespace(directory: &Path, point: &Path, options: &str, rest: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command.args([
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
        "unshare",
        "-Urm",
        "sh",
        "-ec",
        MOUNTS,
    ]);
    command.arg("sh").arg(device(directory)).arg(point).arg(options).arg(program().get_program()).args(rest);
    command
}

/// Runs a shell command in the namespaces of a mount. It finds the mount point in $1.
fn inside(mount: &Mount, script: &str) -> Output {
    let pid = mount.pid().as_raw_nonzero().to_string();
    let mut command = Command::new("nsenter");
    command.args(["-t", &pid, "-U", "-m", "sh", "-ec", script, "sh"]).arg(&mount.point);
    command.arg(program().get_program()).output().expect("nsenter runs")
}

#[track_caller]
fn works(mount: &Mount, script: &str) -> String {
    let output = inside(mount, script);
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The process has no right to mount or to open /dev/fuse beside that of its own user namespace.
#[test]
fn an_ordinary_user_serves_a_mount_of_its_user_namespace() {
    let (server, files) = (server(), directory());
    let point = files.path().join("point");
    fs::create_dir(&point).expect("made");
    let address = server.address(Over::Shm);
    let options = ["--threads", "2", &address, "/dev/fd/9"];
    let mut command = in_namespace(files.path(), &point, ",default_permissions", &options);
    let mut mount = Mount::spawn(&mut command, &point);
    // The path comes from the mount table of the namespace.
    assert!(mount.greeting.contains(&format!("is mounted on {}", point.display())), "{}", mount.greeting);
    assert!(!is_mounted(&point));
    works(&mount, "printf data >$1/a && mkdir $1/d && mv $1/a $1/d/b");
    assert_eq!(works(&mount, "cat $1/d/b && stat -c %u $1/d/b"), "data0\n");
    // The barrier and the control socket work.
    works(&mount, "exec 5>$1/lock; flock -n 5; exec 5>&-; flock -n $1/lock true");
    let status = works(&mount, "$2 status $1");
    assert!(status.contains(point.to_str().expect("UTF-8")), "{status}");
    // Another mount sees the files.
    let other = server.mount(Over::Shm, &[]);
    assert_eq!(fs::read(other.path("d/b")).expect("read"), b"data");
    works(&mount, "umount $1");
    let (status, said) = mount.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    other.unmount();
}

/// Catches an end that unmounts a mount of another program, or that loses written data.
#[test]
fn the_end_leaves_the_mount_to_the_program_that_made_it() {
    let (server, files) = (server(), directory());
    let point = files.path().join("point");
    fs::create_dir(&point).expect("made");
    let address = server.address(Over::Shm);
    for signal in [Signal::TERM, Signal::KILL] {
        let sources = directory();
        let device = device(sources.path());
        let mut command = Command::new("sh");
        command.args(["-ec", MOUNTS, "sh"]).arg(&device).arg(&point).arg(",default_permissions");
        command.arg(program().get_program()).args(["--cache", "writeback", &address, "/dev/fd/9"]);
        let mut mount = Mount::spawn(&mut command, &point);
        fs::write(point.join("x"), b"written").expect("written");
        if signal == Signal::KILL {
            File::open(point.join("x")).expect("open").sync_all().expect("synced");
        }
        mount.signal(signal);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), (signal == Signal::TERM).then_some(0), "{said}");
        assert!(is_mounted(&point));
        let is_dead = || {
            let error = fs::read_dir(&point).err();
            error.is_some_and(|e| e.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()))
        };
        assert!(eventually(is_dead));
        unmount(&point, UnmountFlags::empty()).expect("unmounted");
        let other = server.mount(Over::Shm, &[]);
        assert_eq!(fs::read(other.path("x")).expect("read"), b"written");
        other.unmount();
    }
}

/// Mounts as a CSI driver does. The mount is in the mount namespace of the program that made it,
/// and not in the namespace of the program that serves it.
#[test]
fn a_mount_may_be_in_another_mount_namespace() {
    if !is_in_own_process(module_path!(), "a_mount_may_be_in_another_mount_namespace") {
        return;
    }
    let (server, files) = (server(), directory());
    let point = files.path().join("point");
    fs::create_dir(&point).expect("made");
    let device = File::options().read(true).write(true).open("/dev/fuse").expect("a device");
    rustix::io::fcntl_setfd(device.as_fd(), FdFlags::empty()).expect("inherited");
    let number = device.as_raw_fd();
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", "read go; exec \"$@\"", "sh"]);
    command.arg(program().get_program()).args([&server.address(Over::Shm), &format!("/dev/fd/{number}")]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("unshare runs");
    // The child has its own mount namespace by now, or clones it with this mount.
    let in_own = || {
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).expect("a namespace");
        namespace("self") != namespace(&child.id().to_string())
    };
    assert!(eventually(in_own));
    let data = format!("fd={number},rootmode=40000,user_id=0,group_id=0,default_permissions");
    let data = std::ffi::CString::new(data).expect("no zero");
    mount("handed", &point, "fuse.rfs", MountFlags::empty(), data.as_c_str()).expect("mounted");
    drop(device);
    child.stdin.take().expect("piped").write_all(b"go\n").expect("told");
    let mut mount = Mount::adopt(child, &point);
    assert!(mount.greeting.contains(&format!("is mounted on /dev/fd/{number}")), "{}", mount.greeting);
    fs::write(point.join("x"), b"data").expect("written");
    assert_eq!(fs::read(point.join("x")).expect("read"), b"data");
    // The control socket goes by the number of the device, which all namespaces share.
    let status = program().arg("status").arg(&point).output().expect("runs");
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    mount.signal(Signal::TERM);
    let (status, said) = mount.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    unmount(&point, UnmountFlags::empty()).expect("unmounted");
    let other = server.mount(Over::Shm, &[]);
    assert_eq!(fs::read(other.path("x")).expect("read"), b"data");
    other.unmount();
}

#[test]
fn a_descriptor_that_serves_no_mount_is_refused() {
    let (server, files) = (server(), directory());
    let point = files.path().join("point");
    fs::create_dir(&point).expect("made");
    let address = server.address(Over::Shm);
    let with = |script: &str, rest: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-ec", script, "sh"]).arg(program().get_program()).args(rest).arg(&address);
        command.arg("/dev/fd/9");
        command
    };
    assert_fails(&mut with("exec \"$@\" 9<&-", &[]), 1, &["/dev/fd/9", "not open"]);
    assert_fails(&mut with("exec \"$@\" 9<>/dev/null", &[]), 1, &["/dev/fd/9", "not a FUSE device"]);
    assert_fails(&mut with("exec \"$@\" 9<>/dev/fuse", &[]), 1, &["/dev/fd/9", "serves no mount"]);
    let words = ["--read-only", "mount with it there"];
    assert_fails(&mut with("exec \"$@\" 9<>/dev/fuse", &["--read-only"]), 2, &words);
    // Without default_permissions the kernel lets every program do everything.
    let mut open = in_namespace(files.path(), &point, "", &[&address, "/dev/fd/9"]);
    assert_fails(&mut open, 1, &["default_permissions"]);
}
