//! Upgrades of the program that serves a mount (`rfs-fuse upgrade`).

use std::{
    fs,
    io::{self, Read, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, MetadataExt},
            net::{SocketAddr, UnixListener, UnixStream},
        },
    },
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use rustix::{
    fs::{major, minor},
    process::{Signal, kill_process},
};

use super::takeover::{TAKEOVER, kill_program, serving};
use crate::common::{Mount, Over, TestServer, directory, eventually, locking::open, program};

const MIB: u64 = 1 << 20;

fn upgrade(mount: &Mount) -> (Option<i32>, String) {
    upgrade_to(program(), mount)
}

/// Runs the command for upgrades of a program.
fn upgrade_to(mut program: Command, mount: &Mount) -> (Option<i32>, String) {
    let output = program.arg("upgrade").arg(&mount.point).output().expect("run");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), said)
}

#[test]
fn an_upgrade_replaces_the_program() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, TAKEOVER);
    let file = open(&mount.path("file"));
    let before = serving(&mount);
    let (status, said) = upgrade(&mount);
    let after = serving(&mount);
    assert_eq!(status, Some(0), "{said}");
    assert!(before != after && after.is_some());
    let pid = after.map(|pid| pid.as_raw_nonzero().get()).unwrap_or_default();
    assert!(said.contains(&format!("process {pid} serves")), "{said}");
    file.write_all_at(b"on", 0).expect("written");
    mount.unmount();
    let plain = server.mount(Over::Shm, &[]);
    let (status, said) = upgrade(&plain);
    assert_eq!(status, Some(1));
    assert!(said.contains("mount with --takeover"), "{said}");
    plain.unmount();
}

#[test]
fn an_upgrade_with_invalid_options_is_refused() {
    let server = TestServer::new(16 * MIB);
    let dir = directory();
    let (file, point) = (dir.path().join("mounts.toml"), dir.path().join("mount"));
    fs::create_dir(&point).expect("made");
    let text = format!("[{point:?}]\naddress = {:?}\n", server.address(Over::Shm));
    fs::write(&file, &text).expect("written");
    let mount = Mount::spawn(program().args(TAKEOVER).arg("--config").arg(&file).arg(&point), &point);
    let before = serving(&mount);
    fs::write(&file, format!("{text}no-such-option = 3\n")).expect("written");
    let (status, said) = upgrade(&mount);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no-such-option"), "{said}");
    assert_eq!(serving(&mount), before, "the program was replaced");
    mount.unmount();
}

/// Catches an upgrade that runs the old file again.
#[test]
fn an_upgrade_runs_the_file_of_another_path() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, TAKEOVER);
    let file = open(&mount.path("file"));
    let (dir, old) = (directory(), program().get_program().to_owned());
    // Another name would be that of a mount helper.
    let new = dir.path().join("rfs-fuse");
    // A file that this process wrote could still be open in a child of another test.
    assert!(Command::new("cp").arg(&old).arg(&new).status().expect("cp").success());
    let runs = || {
        let pid = serving(&mount).expect("a program").as_raw_nonzero();
        fs::read_link(format!("/proc/{pid}/exe")).expect("a program")
    };
    for path in [new.as_os_str(), &old] {
        let (status, said) = upgrade_to(Command::new(path), &mount);
        assert_eq!(status, Some(0), "{said}");
        assert_eq!(runs().as_os_str(), path);
        file.write_all_at(b"on", 0).expect("written");
        kill_program(&mount);
        assert_eq!(runs().as_os_str(), path, "after a kill");
        file.write_all_at(b"on", 0).expect("written");
    }
    mount.unmount();
}

/// Returns the address at which the caretaker of a mount listens.
fn caretaker_address(mount: &Mount) -> SocketAddr {
    let device = fs::metadata(&mount.point).expect("found").dev();
    let name = format!("rfs-caretaker-{}:{}", major(device), minor(device));
    SocketAddr::from_abstract_name(name).expect("a name")
}

/// Returns the answer of a mount's caretaker to a request for an upgrade to this program.
fn answer(mount: &Mount, program: &Path) -> String {
    let address = caretaker_address(mount);
    let ask = || {
        let mut caretaker = UnixStream::connect_addr(&address)?;
        caretaker.write_all(&[program.as_os_str().as_bytes(), b"\n"].concat())?;
        let mut said = String::new();
        caretaker.read_to_string(&mut said)?;
        io::Result::Ok(said)
    };
    // A new mount may answer before its caretaker listens, and the caretaker of an ended mount with
    // the same device number may listen still.
    let mut said = None;
    eventually(|| said.insert(ask()).is_ok());
    said.expect("asked").expect("answered")
}

/// The kernel gives the device number of an ended mount to the next one, while the caretaker of the
/// ended mount may listen still.
#[test]
fn a_caretaker_listens_once_its_address_is_free() {
    let server = TestServer::new(16 * MIB);
    for _ in 0..20 {
        let previous = server.mount(Over::Shm, TAKEOVER);
        let address = caretaker_address(&previous);
        previous.unmount();
        let Ok(taken) = UnixListener::bind_addr(&address) else { continue };
        let mount = server.mount(Over::Shm, TAKEOVER);
        // Another test's mount may have the number.
        if caretaker_address(&mount).as_abstract_name() == address.as_abstract_name() {
            thread::sleep(Duration::from_millis(100));
            drop(taken);
            let (status, said) = upgrade_to(program(), &mount);
            assert_eq!(status, Some(0), "{said}");
            mount.unmount();
            return;
        }
        mount.unmount();
    }
    println!("not run: no mount got the device number of the mount before it");
}

#[test]
fn a_program_on_the_mount_itself_is_refused() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, TAKEOVER);
    let file = mount.path("program");
    fs::write(&file, b"#!/bin/sh\n").expect("written");
    let said = answer(&mount, &file);
    assert!(said.contains("on the mount itself"), "{said}");
    mount.unmount();
}

/// Has this program answer a caretaker as a version of rfs-fuse with another kept format would. It
/// runs before `main`. A script would not do: a caretaker runs open files, which the interpreter of
/// a script does not have.
extern "C" fn answer_as_another_version() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "--kept-format") {
        println!("{OTHER_FORMAT}");
        std::process::exit(0);
    }
}

const OTHER_FORMAT: u64 = u64::MAX;

// SAFETY: the C library calls each pointer of this section once, before `main`, and std has the
// arguments by then.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = answer_as_another_version;

#[test]
fn a_program_that_cannot_continue_is_refused_and_the_mount_goes_on() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, TAKEOVER);
    let file = open(&mount.path("file"));
    let before = serving(&mount);
    let own = std::env::current_exe().expect("this program");
    let other_format = format!("in format {OTHER_FORMAT}");
    for (path, words) in [
        (own.as_path(), [other_format.as_str(), "unmount and mount again"]),
        (Path::new("/bin/true"), ["/bin/true", "no rfs-fuse that can take over"]),
        (Path::new("/nowhere/rfs-fuse"), ["/nowhere/rfs-fuse", "No such file"]),
    ] {
        let said = answer(&mount, path);
        assert!(said.starts_with("error ") && words.iter().all(|word| said.contains(word)), "{said}");
        file.write_all_at(b"on", 0).expect("written");
        assert_eq!(serving(&mount), before, "the program was replaced");
    }
    kill_program(&mount);
    file.write_all_at(b"on", 0).expect("the mount goes on");
    mount.unmount();
}

#[test]
fn an_upgrade_to_a_program_that_is_killed_is_taken_back() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, TAKEOVER);
    // The new program may serve before it is killed.
    let is_taken_back = eventually(|| {
        let before = serving(&mount).expect("a program");
        let (status, said) = thread::scope(|scope| {
            let command = scope.spawn(|| upgrade(&mount));
            while !command.is_finished() {
                if let Some(now) = serving(&mount).filter(|now| *now != before) {
                    // It may have ended by itself.
                    kill_process(now, Signal::KILL).ok();
                    break;
                }
            }
            command.join().expect("joined")
        });
        fs::write(mount.path("file"), b"on").expect("the mount goes on");
        // The next life is no short one.
        thread::sleep(Duration::from_millis(600));
        status == Some(1) && said.contains("the previous program serves on")
    });
    assert!(is_taken_back);
    mount.unmount();
}
