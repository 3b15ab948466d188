//! `--trace` and `rfs-fuse trace`: single requests, from the kernel's request to its reply.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use crate::common::{
    Mount, Over, TestServer, aio::Aio, checked, directory, eventually, pattern, program, providers,
};
use rustix::{fs::OFlags, process::Signal};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// Requests that the kernel offers at once.
const BLOCKS: usize = 16;
/// Maximum number of mounts to try, because the scheduler decides whether requests meet.
const TRIES: u32 = 30;

/// The events of a trace.
struct Events(Vec<Value>);

fn text<'a>(event: &'a Value, member: &str) -> &'a str {
    event[member].as_str().unwrap_or("")
}

/// Returns a time of an event in nanoseconds, for an exact comparison.
fn nanos(event: &Value, member: &str) -> i64 {
    (event[member].as_f64().unwrap_or(0.0) * 1000.0).round() as i64
}

impl Events {
    fn of(path: &Path) -> Events {
        let text = fs::read_to_string(path).expect("a trace");
        Events(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    /// Returns true if the events of a running mount are so. A read that a write overlaps sees a
    /// mixture, which is no JSON.
    fn are_now(path: &Path, are_so: impl Fn(&Events) -> bool) -> bool {
        let text = fs::read_to_string(path).expect("a trace");
        serde_json::from_str(&text).is_ok_and(|events| are_so(&Events(events)))
    }

    /// Returns the events of a category and a phase.
    fn of_kind<'a>(&'a self, category: &'a str, phase: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |event| text(event, "cat") == category && text(event, "ph") == phase)
    }

    /// Returns the content of the last event.
    fn state(&self) -> (&str, u64) {
        let args = &self.0.last().expect("an event")["args"];
        (args["state"].as_str().expect("a state"), args["dropped"].as_u64().expect("a number"))
    }

    /// Checks that the asynchronous events of these categories have a begin and an end each.
    fn check_pairs(&self, categories: &[&str]) {
        for category in categories {
            let mut open = HashMap::<&str, i64>::new();
            self.of_kind(category, "b").for_each(|event| *open.entry(text(event, "id")).or_default() += 1);
            assert!(!open.is_empty(), "no {category}");
            self.of_kind(category, "e").for_each(|event| *open.entry(text(event, "id")).or_default() -= 1);
            open.retain(|_, count| *count != 0);
            assert!(open.is_empty(), "{category}: {open:?}");
        }
    }

    /// Checks that the spans of each thread nest, and that its time never goes back: the time of a
    /// span is its end.
    fn check_threads(&self) {
        let mut last = BTreeMap::<u64, i64>::new();
        let mut spans = BTreeMap::<u64, Vec<(i64, i64)>>::new();
        for event in self.0.iter().filter(|event| text(event, "ph") != "M") {
            let (thread, begin) = (event["tid"].as_u64().expect("a thread"), nanos(event, "ts"));
            let end = begin + nanos(event, "dur");
            if text(event, "ph") == "X" {
                spans.entry(thread).or_default().push((begin, end));
            }
            // A flow step is at the begin of its span, which may be over.
            if text(event, "cat") != "flow" && text(event, "cat") != "trace" {
                let before = last.insert(thread, end).unwrap_or(0);
                assert!(before <= end, "{before} ns, then {event}");
            }
        }
        for (thread, mut spans) in spans {
            // An outer span begins first, and ends last.
            spans.sort_by_key(|(begin, end)| (*begin, -end));
            let mut open = Vec::<i64>::new();
            for (begin, end) in spans {
                open.retain(|outer| *outer > begin);
                assert!(open.last().is_none_or(|outer| end <= *outer), "thread {thread}: {begin} to {end}");
                open.push(end);
            }
        }
    }
}

/// Opens a file of `BLOCKS` blocks with O_DIRECT.
fn blocks(mount: &Mount, bytes: &[u8]) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file = options.open(mount.path("file")).expect("opened");
    // The kernel makes requests concurrently only inside the file.
    file.write_all_at(bytes, 0).expect("written");
    file
}

/// Calls `act` with page-aligned bytes, as O_DIRECT requires.
fn with_aligned<R>(act: impl FnOnce(&[u8]) -> R) -> R {
    let memory = pattern((BLOCKS + 1) * BLOCK, 3);
    let start = memory.as_ptr().align_offset(BLOCK);
    act(&memory[start..start + BLOCKS * BLOCK])
}

/// Records 16 adjacent writes that a program makes at once, and the end of the mount.
fn parallel_writes(over: Over, options: &[&str]) -> Events {
    let (server, dir) = (TestServer::new(64 * MIB), directory());
    let path = dir.path().join("trace.json");
    let mount = server.mount(over, &[options, &["--trace", path.to_str().expect("UTF-8")]].concat());
    with_aligned(|bytes| {
        let file = blocks(&mount, bytes);
        Aio::new(BLOCKS).write(&file, bytes, BLOCK);
    });
    mount.unmount();
    Events::of(&path)
}

/// Returns the numbers in a member of an event's arguments.
fn numbers(event: &Value, member: &str) -> BTreeSet<u64> {
    event["args"][member].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// Catches a request without an end, a work request that does not name its requests, and threads
/// whose spans do not nest.
#[test]
fn merged_writes_name_their_requests() {
    if checked() {
        return eprintln!("not run: with checksums the server makes the writes");
    }
    for over in providers().into_iter().filter(|over| *over != Over::Shm) {
        let merges = |_| {
            let events = parallel_writes(over, &[]);
            assert_eq!(events.state(), ("ended", 0));
            events.check_pairs(&["request", "queue", "work request"]);
            events.check_threads();
            let writes: BTreeSet<u64> = events
                .of_kind("request", "b")
                .filter(|event| text(event, "name") == "write" && event["args"]["bytes"] == BLOCK)
                .filter_map(|event| event["args"]["request"].as_u64())
                .collect();
            assert_eq!(writes.len(), BLOCKS);
            let mut carried = BTreeSet::new();
            let mut most = 0;
            for event in events.of_kind("work request", "b") {
                let requests = numbers(event, "requests");
                most = most.max(requests.intersection(&writes).count());
                carried.extend(requests);
            }
            assert!(carried.is_superset(&writes), "{writes:?} are not all in {carried:?}");
            for category in ["handler", "layout", "call", "merge", "post", "completion", "reply"] {
                assert!(events.of_kind(category, "X").next().is_some(), "no {category} over {over:?}");
            }
            // A flow leads from each write to its reply.
            for phase in ["s", "t", "f"] {
                let ids: BTreeSet<&str> =
                    events.of_kind("flow", phase).map(|event| text(event, "id")).collect();
                assert!(writes.iter().all(|id| ids.contains(&*format!("{id:#x}"))), "{phase}");
            }
            most >= 2
        };
        assert!((0..TRIES).any(merges), "no writes have merged over {over:?}");
    }
}

/// Catches a trace that does not tell which work requests had a doorbell in common.
#[test]
fn chained_writes_are_one_post() {
    if checked() {
        return eprintln!("not run: with checksums the server makes the writes");
    }
    for over in providers().into_iter().filter(|over| *over != Over::Shm) {
        let chains = |batch: &str| {
            let events = parallel_writes(over, &["--batch", batch]);
            let carried: HashMap<u64, BTreeSet<u64>> = events
                .of_kind("work request", "b")
                .filter(|event| event["args"]["kind"] == "write" && event["args"]["bytes"] == BLOCK)
                .filter_map(|event| {
                    Some((event["args"]["work_request"].as_u64()?, numbers(event, "requests")))
                })
                .collect();
            // The requests of each post.
            let posts = events.of_kind("post", "X").map(|event| {
                let work_requests = numbers(event, "work_requests");
                assert_eq!(event["args"]["chained"], work_requests.len(), "{event}");
                let requests = work_requests.iter().filter_map(|number| carried.get(number)).flatten();
                requests.collect::<BTreeSet<_>>().len()
            });
            posts.max().expect("a post")
        };
        assert_eq!(chains("single"), 1);
        assert!((0..TRIES).any(|_| chains("doorbell") >= 2), "no writes were chained over {over:?}");
    }
}

/// Catches a trace that shows no copy, or work requests that do not exist.
#[test]
fn over_shared_memory_the_bytes_are_copied_on_the_spot() {
    if checked() || !providers().contains(&Over::Shm) {
        return eprintln!("not run: it takes shared memory, and no checksums");
    }
    let events = parallel_writes(Over::Shm, &[]);
    events.check_pairs(&["request"]);
    events.check_threads();
    let copies = events.of_kind("copy", "X").filter(|event| {
        event["args"]["memory"] == "copied on the spot"
            && event["args"]["bytes"] == BLOCK
            && event["args"]["kind"] == "write"
    });
    assert_eq!(copies.count(), BLOCKS);
    assert_eq!(events.of_kind("work request", "b").count(), 0);
}

/// Catches a file that grows beyond its limit, and a mount that ends with its trace.
#[test]
fn a_trace_ends_at_its_limit_and_the_mount_goes_on() {
    let (server, dir) = (TestServer::new(16 * MIB), directory());
    let path = dir.path().join("trace.json");
    let options = ["--trace", path.to_str().expect("UTF-8"), "--trace-limit", "16K"];
    let mut mount = server.mount(Over::Tcp, &options);
    (0..200).for_each(|number| fs::write(mount.path(&format!("{number}")), "x").expect("written"));
    assert!(eventually(|| Events::are_now(&path, |events| events.state().0 == "limit reached")));
    fs::write(mount.path("later"), "x").expect("written");
    mount.signal(Signal::INT);
    let (status, said) = mount.wait();
    assert!(status.success() && said.contains("has reached --trace-limit"), "{said}");
    assert!(fs::metadata(&path).expect("a file").len() <= 16 << 10);
    assert!(Events::of(&path).of_kind("request", "b").next().is_some());
}

/// A file system of 64 KiB, unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn on(point: &Path) -> SmallDisk {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(point).status();
        assert!(mounted.expect("mount runs").success());
        SmallDisk(point.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// Catches a full disk that ends the mount, or leaves a file that no program can read.
#[test]
fn a_full_disk_ends_the_trace_and_the_mount_goes_on() {
    let (server, dir) = (TestServer::new(16 * MIB), directory());
    let disk = SmallDisk::on(dir.path());
    let path = disk.0.join("trace.json");
    let mut mount = server.mount(Over::Tcp, &["--trace", path.to_str().expect("UTF-8")]);
    // Some events fit.
    fs::write(mount.path("first"), "x").expect("written");
    assert!(eventually(|| Events::are_now(&path, |events| events.of_kind("request", "b").next().is_some())));
    (0..400).for_each(|number| fs::write(mount.path(&format!("{number}")), "x").expect("written"));
    assert!(eventually(|| Events::are_now(&path, |events| events.state().0 == "writing failed")));
    fs::write(mount.path("later"), "x").expect("written");
    mount.signal(Signal::INT);
    let (status, said) = mount.wait();
    assert!(status.success() && said.contains("the mount goes on: cannot write: No space left"), "{said}");
    assert!(Events::of(&path).of_kind("request", "b").next().is_some());
}

/// Catches a file that only an orderly end completes.
#[test]
fn the_trace_of_a_killed_mount_is_complete() {
    let (server, dir) = (TestServer::new(16 * MIB), directory());
    let path = dir.path().join("trace.json");
    let mut mount = server.mount(Over::Tcp, &["--trace", path.to_str().expect("UTF-8")]);
    (0..20).for_each(|number| fs::write(mount.path(&format!("{number}")), "x").expect("written"));
    assert!(eventually(|| Events::are_now(&path, |events| events.of_kind("request", "e").count() > 20)));
    mount.signal(Signal::KILL);
    mount.wait();
    assert_eq!(Events::of(&path).state().0, "recording");
}

/// Returns `rfs-fuse trace` for a mount.
fn trace_of(mount: &Mount, path: &Path, seconds: &str) -> Command {
    let mut command = program();
    command.arg("trace").arg(&mount.point).args(["--seconds", seconds, "--out"]).arg(path);
    command
}

/// Catches a recording that only works from the start of a mount.
#[test]
fn a_running_mount_records_on_request() {
    let (server, dir) = (TestServer::new(16 * MIB), directory());
    let mount = server.mount(Over::Tcp, &[]);
    for (name, seconds) in [("first", "0.5"), ("second", "0.5")] {
        let path = dir.path().join(name);
        thread::scope(|scope| {
            let recorded = scope.spawn(|| trace_of(&mount, &path, seconds).output().expect("rfs-fuse runs"));
            while !recorded.is_finished() {
                fs::write(mount.path("file"), name).expect("written");
                thread::sleep(Duration::from_millis(1));
            }
            let output = recorded.join().expect("joined");
            assert!(output.status.success(), "{output:?}");
        });
        let events = Events::of(&path);
        assert_eq!(events.state(), ("ended", 0));
        assert!(events.of_kind("request", "b").any(|event| text(event, "name") == "write"));
        events.check_threads();
    }
    // The file cannot be made: nothing is recorded.
    let output = trace_of(&mount, Path::new("/proc/none"), "1").output().expect("rfs-fuse runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    mount.unmount();
}

/// Catches a mount without the trace that was asked for.
#[test]
fn a_trace_that_cannot_be_written_is_an_error_at_the_start() {
    let (server, dir) = (TestServer::new(16 * MIB), directory());
    for path in ["/dev/full", "/proc/none", dir.path().to_str().expect("UTF-8")] {
        let mut command = program();
        command.args(["--trace", path, &server.address(Over::Tcp)]).arg(dir.path());
        let output = command.output().expect("rfs-fuse runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("cannot write the trace {path}: ")), "{said}");
    }
}
