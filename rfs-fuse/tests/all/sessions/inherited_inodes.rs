//! Inodes that the kernel forgets while the program of a mount is killed.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::common::{Over, TestServer, eventually};

use super::takeover::{TAKEOVER, kill_program};

const FILES: usize = 400;
const KILLS: usize = 8;
/// A program that lives this long may be killed, and the mount goes on.
const LIFE: Duration = Duration::from_millis(550);

/// Catches inodes that stay known for ever, because the killed program has read that the kernel
/// forgets them. The server kept those without a name, and a change of one with a name waited for
/// the mount for more than a second.
#[test]
fn inodes_that_the_kernel_forgets_during_a_kill_do_not_stay_known() {
    let server = TestServer::new(64 << 20);
    let mount = server.mount(Over::Shm, TAKEOVER);
    let other = server.mount(Over::Shm, &[]);
    fs::create_dir(other.path("dir")).expect("made");
    let names = ["a", "b"].map(|letter| (0..FILES).map(move |number| format!("dir/{letter}{number}")));
    let [first, second]: [Vec<String>; 2] = names.map(Iterator::collect);
    first.iter().for_each(|name| drop(File::create_new(other.path(name)).expect("created")));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // One mount uses names, the other one changes them: the kernel forgets their inodes.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let names = first.iter().chain(&second);
                assert!(names.filter(|name| mount.path(name).exists()).count() <= 2 * FILES);
            }
        });
        let renaming = scope.spawn(|| {
            let (mut from, mut to) = (&first, &second);
            while !stop.load(Ordering::Relaxed) {
                for (from, to) in from.iter().zip(to) {
                    fs::rename(other.path(from), other.path(to)).expect("renamed");
                }
                std::mem::swap(&mut from, &mut to);
            }
            from
        });
        // Files that a mount removes itself: it tells the server a little later.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::write(mount.path("file"), "bytes").expect("written");
                fs::remove_file(mount.path("file")).expect("removed");
            }
        });
        for _ in 0..KILLS {
            thread::sleep(LIFE);
            kill_program(&mount);
        }
        stop.store(true, Ordering::Relaxed);
        let names = renaming.join().expect("a thread");
        thread::sleep(LIFE);
        let times = names.iter().map(|name| {
            let began = Instant::now();
            fs::set_permissions(other.path(name), Permissions::from_mode(0o600)).expect("changed");
            began.elapsed()
        });
        let longest = times.max().expect("there are files");
        assert!(longest < Duration::from_millis(800), "a change took {longest:?}");
        names.iter().for_each(|name| fs::remove_file(other.path(name)).expect("removed"));
    });
    let stays = || server.inner.idle_inodes();
    assert!(eventually(|| stays() == 0), "{} removed files stay at the server", stays());
    other.unmount();
    mount.unmount();
}

/// Catches a question about a directory that the kernel refuses, because it stores only in files.
#[test]
fn the_kernel_answers_for_a_directory() {
    let server = TestServer::new(16 << 20);
    let mut mount = server.mount(Over::Shm, TAKEOVER);
    fs::create_dir(mount.path("dir")).expect("made");
    thread::sleep(LIFE);
    kill_program(&mount);
    // The next program asks 10 s after its start.
    thread::sleep(Duration::from_secs(13));
    mount.signal(Signal::INT);
    let (status, said) = mount.wait();
    assert!(status.success() && !said.contains("cannot ask"), "{status}: {said}");
}
