//! Measures native files beside tmpfs, memcpy, a bare socket and a FUSE mount.
//!
//! Each row has two sides. They run in turn, five times each, and the row has their medians and the
//! ratio. Rows of shared memory have the processor time of the thread, which waits for no other.
//! `ci/benchmarks/native-figures` starts the server and the mount.
//!
//!     figures SOCKET TCP_ADDRESS [MOUNT [NULL]]
//!     figures lend                          lends memory until standard input ends
//!     figures read SOCKET PATH COUNT        prints the time of 1 MiB in nanoseconds, in reads of
//!                                           1 MiB and in one read of the whole file
//!
//! SOCKET and TCP_ADDRESS are addresses of a server, and MOUNT is a mount of it over TCP. NULL is a
//! mount of the null FUSE file system, whose files are opened for O_DIRECT. The program starts
//! itself with `lend`, for the rows of a bare session. `bindings/python/figures.py` starts it with
//! `read`.

use std::{
    error::Error,
    fs::{File, OpenOptions},
    hint::black_box,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::{fd::AsRawFd, unix::fs::FileExt, unix::fs::OpenOptionsExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use io_uring::{IoUring, opcode, types};
use rdmabox::{Memory, MemoryServer, Session};
use rfs_native::{Mount, MountOptions};

type Outcome<T> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 5;
const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;
const FILE: u64 = 64 << 20;
const CACHED: u64 = 1 << 20;
const DEPTH: u64 = 16;

/// A side of a row: does one operation, or several, at a block of the file.
type Side<'s> = Box<dyn FnMut(u64) -> Outcome<()> + 's>;

/// The time that a row compares.
#[derive(Clone, Copy)]
enum Clock {
    /// Processor time of this thread, for sides that wait for no other thread. Other programs
    /// disturb it less.
    Processor,
    Elapsed,
}

impl Clock {
    fn now(self) -> Duration {
        let clock = match self {
            Clock::Processor => rustix::time::ClockId::ThreadCPUTime,
            Clock::Elapsed => rustix::time::ClockId::Monotonic,
        };
        let now = rustix::time::clock_gettime(clock);
        // Neither clock is negative.
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }
}

/// Returns the time of one operation.
fn time(side: &mut Side<'_>, clock: Clock, operations: u64, blocks: u64) -> Outcome<Duration> {
    // A fixed sequence that looks random: both sides use the same blocks.
    let (mut state, begin) = (12345_u64, clock.now());
    for _ in 0..operations {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        side((state >> 33) % blocks)?;
    }
    Ok((clock.now() - begin) / u32::try_from(operations)?)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Measures two sides in turn, and prints a row. `wanted` is the ratio to reach.
fn row(
    name: &str,
    wanted: f64,
    (clock, operations, blocks): (Clock, u64, u64),
    [mut native, mut other]: [Side<'_>; 2],
) -> Outcome<()> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..=ROUNDS {
        times[0].push(time(&mut native, clock, operations, blocks)?);
        times[1].push(time(&mut other, clock, operations, blocks)?);
    }
    // The first round warms up.
    let [native, other] = times.map(|times| median(times[1..].to_vec()));
    let ratio = other.as_secs_f64() / native.as_secs_f64();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!("{name:<50} {:>10.2} {:>10.2} {ratio:>7.2} {wanted:>7.2}", micros(native), micros(other));
    Ok(())
}

/// Returns a file on tmpfs without a name.
fn tmpfs() -> Outcome<File> {
    let path = Path::new("/dev/shm").join(format!("rfs-figures-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let block = vec![1; LARGE];
    for at in 0..FILE / LARGE as u64 {
        file.write_all_at(&block, at * LARGE as u64)?;
    }
    Ok(file)
}

fn filled(mount: &Mount, name: &str) -> Outcome<rfs_native::File> {
    let file = mount.create(name)?;
    let block = vec![1; LARGE];
    for at in 0..FILE / LARGE as u64 {
        file.write_all_at(&block, at * LARGE as u64)?;
    }
    Ok(file)
}

/// Compares small reads and writes of a file with those of a FUSE file system that only copies.
fn beside_null(file: &rfs_native::File, null: &Path) -> Outcome<()> {
    let path = null.join("figures");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
    let direct = options.open(&path)?;
    direct.set_len(FILE)?;
    let (count, at) = ((Clock::Elapsed, 20_000, FILE / SMALL as u64), |block: u64| block * SMALL as u64);
    let (mut own, mut buffer) = (vec![1; SMALL], Box::new(Aligned([1; SMALL])));
    for block in 0..FILE / SMALL as u64 {
        direct.write_all_at(&buffer.0, at(block))?;
    }
    row(
        "shm read 4 KiB in 64 MiB: native, null FUSE",
        20.0,
        count,
        [
            Box::new(|block| Ok(file.read_exact_at(black_box(&mut own), at(block))?)),
            Box::new(|block| Ok(direct.read_exact_at(black_box(&mut buffer.0), at(block))?)),
        ],
    )?;
    row(
        "shm write 4 KiB in 64 MiB: native, null FUSE",
        20.0,
        count,
        [
            Box::new(|block| Ok(file.write_all_at(black_box(&own), at(block))?)),
            Box::new(|block| Ok(direct.write_all_at(black_box(&buffer.0), at(block))?)),
        ],
    )?;
    std::fs::remove_file(path)?;
    Ok(())
}

fn shared_memory(mount: &Mount, null: Option<&Path>) -> Outcome<()> {
    let (file, tmpfs) = (filled(mount, "figures-shm")?, tmpfs()?);
    let memory = Memory::shared("figures", FILE as usize)?;
    memory.write(0, &vec![1; FILE as usize]);
    // A span of 1 MiB stays in the cache of a processor. A span of 64 MiB does not, so its rows
    // have the time of the memory, too.
    for (len, name, span, operations, least) in [
        (SMALL, "4 KiB in 1 MiB", CACHED, 200_000, 3.0),
        (SMALL, "4 KiB in 64 MiB", FILE, 200_000, 3.0),
        (LARGE, "1 MiB in 64 MiB", FILE, 1000, 1.5),
    ] {
        let (blocks, at) = (span / len as u64, |block: u64| block * len as u64);
        let [mut a, mut b] = [vec![0; len], vec![0; len]];
        let read = |mut out: Vec<u8>| {
            let file = file.clone();
            move |block| Ok(file.read_exact_at(black_box(&mut out), at(block))?)
        };
        row(
            &format!("shm read {name}: native, pread of tmpfs"),
            least,
            (Clock::Processor, operations, blocks),
            [
                Box::new(read(a.clone())),
                Box::new(|block| Ok(tmpfs.read_exact_at(black_box(&mut b), at(block))?)),
            ],
        )?;
        row(
            &format!("shm write {name}: native, pwrite of tmpfs"),
            least,
            (Clock::Processor, operations, blocks),
            [
                Box::new(|block| Ok(file.write_all_at(black_box(&a), at(block))?)),
                Box::new(|block| Ok(tmpfs.write_all_at(black_box(&a), at(block))?)),
            ],
        )?;
        let copy = |block: u64| {
            memory.read(at(block) as usize, black_box(&mut a));
            Ok(())
        };
        row(
            &format!("shm read {name}: native, memcpy"),
            0.9,
            (Clock::Processor, operations, blocks),
            [Box::new(read(vec![0; len])), Box::new(copy)],
        )?;
        let data = vec![2; len];
        row(
            &format!("shm write {name}: native, memcpy"),
            0.9,
            (Clock::Processor, operations, blocks),
            [
                Box::new(|block| Ok(file.write_all_at(black_box(&data), at(block))?)),
                Box::new(|block| {
                    memory.write(at(block) as usize, black_box(&data));
                    Ok(())
                }),
            ],
        )?;
    }
    if let Some(null) = null {
        beside_null(&file, null)?;
    }
    mount.remove_file("figures-shm")?;
    Ok(())
}

/// Lends as much memory as the file has, without files. Prints the address.
fn lend() -> Outcome<()> {
    let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], FILE as usize)?;
    println!("{}", host.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A child process that lends memory.
struct HostProcess {
    process: Child,
    address: rdmabox::Address,
}

impl HostProcess {
    fn start() -> Outcome<HostProcess> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command.arg("lend").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(HostProcess { process, address: line.trim().parse()? })
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Compares large reads and writes of a file with those of a bare session.
fn tcp_large(file: &rfs_native::File) -> Outcome<()> {
    let host = HostProcess::start()?;
    let session = Session::builder().connect(&host.address)?;
    let memory = MemoryServer::locate(&session)?;
    let [mut a, mut b] = [vec![1; LARGE], vec![1; LARGE]];
    let (count, at) = ((Clock::Elapsed, 300, FILE / LARGE as u64), |block: u64| block * LARGE as u64);
    row(
        "tcp read 1 MiB: native, bare session",
        0.95,
        count,
        [
            Box::new(|block| Ok(file.read_exact_at(&mut a, at(block))?)),
            Box::new(|block| Ok(session.read(memory.for_read(at(block), LARGE)?, &mut b)?)),
        ],
    )?;
    row(
        "tcp write 1 MiB: native, bare session",
        0.95,
        count,
        [
            Box::new(|block| Ok(file.write_all_at(&a, at(block))?)),
            Box::new(|block| Ok(session.write(memory.for_write(at(block), LARGE)?, &b)?)),
        ],
    )
}

/// Prints the time of one read of 1 MiB into the same buffer, and of 1 MiB of the whole file in new
/// memory.
fn read(socket: &str, path: &str, count: u64) -> Outcome<()> {
    let options = MountOptions { provider: Some(rfs_native::ProviderKind::Shm), ..MountOptions::default() };
    let mount = Mount::connect(socket, &options)?;
    let file = mount.open(path)?;
    let (blocks, mut out) = (file.stat()?.size / LARGE as u64, vec![0; LARGE]);
    let begin = Instant::now();
    for block in 0..count {
        file.read_exact_at(black_box(&mut out), block % blocks * LARGE as u64)?;
    }
    println!("{}", begin.elapsed().as_nanos() / u128::from(count));
    let begin = Instant::now();
    black_box(mount.read(path)?);
    println!("{}", begin.elapsed().as_nanos() / u128::from(blocks));
    Ok(())
}

/// Answers each request of 64 bytes with 4 KiB.
fn answer(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut request, reply) = ([0; 64], [1; SMALL]);
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&reply)?;
    }
}

fn tcp(mount: &Mount, point: Option<&Path>) -> Outcome<()> {
    let file = filled(mount, "figures-tcp")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    stream.set_nodelay(true)?;
    std::thread::spawn(move || answer(&listener));
    let blocks = FILE / SMALL as u64;
    let [mut a, mut b] = [vec![0; SMALL], vec![0; SMALL]];
    row(
        "tcp read 4 KiB, one at a time: native, socket",
        1.0 / 1.3,
        (Clock::Elapsed, 10_000, blocks),
        [
            Box::new(|block| Ok(file.read_exact_at(&mut a, block * SMALL as u64)?)),
            Box::new(|_| {
                stream.write_all(&[0; 64])?;
                Ok(stream.read_exact(&mut b)?)
            }),
        ],
    )?;
    tcp_large(&file)?;
    if let Some(point) = point {
        let direct =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(point.join("figures-tcp"))?;
        let mut ring = IoUring::new(DEPTH as u32 * 2)?;
        let mut buffers = vec![Aligned([0; SMALL]); DEPTH as usize];
        row(
            "tcp 16 reads of 4 KiB, depth 16: native, mount",
            3.0,
            (Clock::Elapsed, 1000, blocks - DEPTH * 64),
            [
                Box::new(|block| many(&file, block)),
                Box::new(|block| many_through(&direct, &mut ring, &mut buffers, block)),
            ],
        )?;
    }
    mount.remove_file("figures-tcp")?;
    Ok(())
}

#[derive(Clone)]
#[repr(align(4096))]
struct Aligned([u8; SMALL]);

/// Returns the offset of one of sixteen reads, which are not adjacent.
fn offset(block: u64, at: u64) -> u64 {
    (block + at * 64) * SMALL as u64
}

fn many(file: &rfs_native::File, block: u64) -> Outcome<()> {
    for read in file.start_reads((0..DEPTH).map(|at| (offset(block, at), SMALL))) {
        black_box(read.wait()?);
    }
    Ok(())
}

fn many_through(file: &File, ring: &mut IoUring, buffers: &mut [Aligned], block: u64) -> Outcome<()> {
    for (at, buffer) in buffers.iter_mut().enumerate() {
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.0.as_mut_ptr(), SMALL as u32);
        let entry = read.offset(offset(block, at as u64)).build();
        // SAFETY: the buffers and the file live until all completions are here, below.
        unsafe { ring.submission().push(&entry)? };
    }
    ring.submit_and_wait(buffers.len())?;
    for completion in ring.completion() {
        if completion.result() != SMALL as i32 {
            return Err(format!("a read of the mount: {}", completion.result()).into());
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (socket, address, [point, null]) = match &arguments[..] {
        [verb] if verb == "lend" => return lend(),
        [verb, socket, path, count] if verb == "read" => return read(socket, path, count.parse()?),
        [socket, address] => (socket, address, [None, None]),
        [socket, address, point] => (socket, address, [Some(Path::new(point)), None]),
        [socket, address, point, null] => (socket, address, [point, null].map(|path| Some(Path::new(path)))),
        _ => return Err("usage: figures SOCKET TCP_ADDRESS [MOUNT [NULL]]".into()),
    };
    println!("{:<50} {:>10} {:>10} {:>7} {:>7}", "", "native/us", "other/us", "ratio", "wanted");
    let shm = MountOptions { provider: Some(rfs_native::ProviderKind::Shm), ..MountOptions::default() };
    shared_memory(&Mount::connect(socket, &shm)?, null)?;
    let over_tcp = MountOptions { provider: Some(rfs_native::ProviderKind::Tcp), ..MountOptions::default() };
    tcp(&Mount::connect(address, &over_tcp)?, point)
}
