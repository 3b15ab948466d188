//! Memory of a mount for a swap area: its steady writes need none of the kernel.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::{
        fs::{FileExt, OpenOptionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use crate::common::{Mount, Over, TestServer, aio::Aio, checked, directory, pattern, providers, threads};

const MIB: usize = 1 << 20;
const AREA: usize = 8 * MIB;
/// Requests under way, and their lengths: each way that a write can take.
const DEPTH: usize = 32;
const LENGTHS: [usize; 4] = [4096, 16 << 10, 64 << 10, MIB];
/// Rounds of [`DEPTH`] writes: first those in which pools grow and threads start.
const WARM: usize = 40;
const ROUNDS: usize = 40;
/// Allocations of a write that is only started: bytes, answers, and the list that it starts with.
const MAX_ALLOCATIONS: i64 = 8;
/// Bytes of the writes that are under way, with their answers.
const MAX_BYTES: i64 = 2 * (DEPTH as i64) * (32 << 10);

/// Bytes that a mount of a swap area reserves.
const RESERVE: i64 = 32 << 20;

/// Counters of `rfs-fuse/examples/counted_fuse.rs`, and of the kernel.
#[derive(Clone, Copy, Debug)]
struct Counts {
    allocations: i64,
    bytes: i64,
    peak: i64,
    /// Pages that the mount got from the kernel when it touched them.
    faults: u64,
    /// Pages of address space.
    pages: u64,
}

/// A mount as `rfs-paging swapon` makes it, with an allocator that counts.
struct CountedMount {
    mount: Mount,
    counters: File,
}

impl CountedMount {
    fn new(server: &TestServer, over: Over, directory: &Path) -> CountedMount {
        let path = directory.join("counters");
        fs::write(&path, [0; 24]).expect("written");
        let point = directory.join("mount");
        fs::create_dir(&point).expect("made");
        let mut command = Command::new(program());
        // Under other names the program is a mount helper.
        command.arg0("rfs-fuse");
        command.args(["--for-swap", "--cache", "none", "--no-follow", "--provider", &over.to_string()]);
        command.env("RFS_ALLOCATIONS", &path).arg(server.address(over)).arg(&point);
        let mount = Mount::spawn(&mut command, &point);
        CountedMount { mount, counters: File::open(path).expect("opened") }
    }

    /// Opens a file of [`AREA`] bytes, all of which have their space.
    fn area(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let file = options.open(self.mount.path("area")).expect("opened");
        fallocate(&file, FallocateFlags::empty(), 0, AREA as u64).expect("space");
        file
    }

    /// Returns the names of all threads, in order. The stack of a new thread is memory.
    fn threads(&self) -> Vec<String> {
        let mut names: Vec<String> = threads(self.mount.pid()).into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    fn counts(&self) -> Counts {
        let word = |at: u64| {
            let mut word = [0; 8];
            self.counters.read_exact_at(&mut word, at * 8).expect("read");
            i64::from_ne_bytes(word)
        };
        let text = |name: &str| {
            let path = format!("/proc/{}/{name}", self.mount.pid().as_raw_nonzero());
            fs::read_to_string(path).expect("of the mount")
        };
        let number = |text: &str, at: usize| text.split_whitespace().nth(at).unwrap().parse().unwrap();
        let stat = text("stat");
        // minflt of proc(5), behind the name of the program.
        let faults = number(stat.rsplit(')').next().unwrap(), 7);
        Counts {
            allocations: word(0),
            bytes: word(1),
            peak: word(2),
            faults,
            pages: number(&text("statm"), 0),
        }
    }
}

fn program() -> PathBuf {
    let own = std::env::current_exe().expect("this program");
    let path = own.parent().and_then(Path::parent).expect("a target folder").join("examples/counted_fuse");
    assert!(path.exists(), "{} is not built: cargo build -p rfs-fuse --examples", path.display());
    path
}

/// Catches a write path that takes pages of the kernel, which swapping would have to free. Reasons
/// are allocations beyond the reserve, a heap for each thread, or a heap that shrinks and grows.
#[test]
fn steady_writes_to_a_swap_area_take_no_memory_of_the_kernel() {
    if checked() {
        return eprintln!("not run: with checksums the server makes the writes");
    }
    let memory = pattern(AREA + 4096, 3);
    let start = memory.as_ptr().align_offset(4096);
    let bytes = &memory[start..start + AREA];
    for over in providers().into_iter().filter(|over| *over != Over::Rdma) {
        let (server, directory) = (TestServer::new(64 * MIB as u64), directory());
        let mount = CountedMount::new(&server, over, directory.path());
        let (file, aio) = (mount.area(), Aio::new(DEPTH));
        let write = |rounds: usize, len: usize| {
            let part = &bytes[..(DEPTH * len).min(AREA)];
            (0..rounds).for_each(|_| aio.write(&file, part, len));
            (rounds * part.len() / len) as i64
        };
        for len in LENGTHS {
            write(WARM, len);
        }
        for len in LENGTHS {
            let (before, threads_before) = (mount.counts(), mount.threads());
            let writes = write(ROUNDS, len);
            let (after, threads_after) = (mount.counts(), mount.threads());
            let what = format!("{over}, {len} bytes, {writes} writes: {before:?} {after:?}");
            assert_eq!(threads_after, threads_before, "{what}");
            eprintln!("{what}");
            assert_eq!((after.faults, after.pages), (before.faults, before.pages), "{what}");
            let most = if over == Over::Shm { 0 } else { MAX_ALLOCATIONS * writes };
            assert!(after.allocations - before.allocations <= most, "{what}");
            assert!(after.bytes - before.bytes <= MAX_BYTES, "{what}");
            // The allocator's reserve has room for the most that was ever in use.
            assert!(after.peak - before.bytes <= RESERVE, "{what}");
        }
    }
}
