//! Measures the requests per second of the dispatcher, on one thread and on several, without a
//! network.
//!
//! ```text
//! dispatch_rate [--threads N[,N...]] [--rounds N] [--millis N] [--kept] [WORK...]
//! ```
//!
//! With `--kept` changes are logged, as for a server with a memory object.
//!
//! Each thread has a session that caches. In `apart`, each session has its own directory; in
//! `together`, all sessions share one. Sessions that change names in a shared directory cache
//! nothing, so that no reply waits for another thread. The rate of a row is the median of its
//! rounds, which are interleaved: each round measures all rows.
//!
//! ```text
//! $ cargo run --release -p rfs-server --example dispatch_rate -- --threads 1,2
//! | work                          | threads | requests/s |
//! |-------------------------------|--------:|-----------:|
//! | lookup, apart                 |       1 |    3269455 |
//! ```

use std::{
    error::Error,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rdmabox::Memory;
use rfs_proto::{ROOT_INO, RegionRef, RenameFlags, Reply, Request, VERSION, record};
use rfs_server::{
    clock::SystemClock,
    dispatch::{Dispatcher, Outcome, RecoveredState, Root},
    memory_object::{Log, NonzeroBitmap},
    sessions::Regions,
    space::{Space, Zeroing},
};

/// Files in each directory.
const FILES: usize = 100;
/// Iterations of a work between two reads of the clock.
const BATCH: usize = 64;
const INODES: usize = 1 << 16;
const MEMORY: usize = 64 << 20;
/// Bytes of the bitmap of dirty blocks, and of a segment of the log.
const DIRT: usize = 4096;
const SEGMENT: usize = 256 << 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// An iteration of a work. Returns the number of its requests.
type Work = fn(&Hand<'_>, usize) -> u64;

const WORKS: [(&str, bool, Work); 13] = [
    ("lookup, apart", true, |hand, at| hand.lookup(hand.own, at)),
    ("lookup, together", true, |hand, at| hand.lookup(hand.shared, at)),
    ("getattr, apart", true, |hand, at| hand.getattr(hand.own_files[at % FILES])),
    ("getattr, one file", true, |hand, _| hand.getattr(hand.shared_files[0])),
    ("open+close, apart", true, |hand, at| hand.open_close(hand.own_files[at % FILES])),
    ("open+close, together", true, |hand, at| hand.open_close(hand.shared_files[at % FILES])),
    ("open+close, one file", true, |hand, _| hand.open_close(hand.shared_files[0])),
    ("create+close+unlink, apart", true, |hand, _| hand.create_unlink(hand.own)),
    ("create+close+unlink, together", false, |hand, _| hand.create_unlink(hand.shared)),
    ("rename, apart", true, |hand, _| hand.rename(hand.own)),
    ("rename, to and fro", false, |hand, _| hand.rename(hand.shared)),
    ("readdir of 100, apart", true, |hand, _| hand.readdir(hand.own)),
    ("readdir of 100, together", true, |hand, _| hand.readdir(hand.shared)),
];

/// The session of a thread, and its directories and files.
struct Hand<'a> {
    dispatcher: &'a Dispatcher,
    session: u64,
    /// A name that no other thread uses.
    name: String,
    names: &'a [String],
    own: u64,
    own_files: Vec<u64>,
    shared: u64,
    shared_files: &'a [u64],
}

impl Hand<'_> {
    fn ask(&self, request: Request<'_>) -> Reply {
        ask(self.dispatcher, self.session, request)
    }

    fn lookup(&self, parent: u64, at: usize) -> u64 {
        self.ask(Request::Lookup { parent, name: self.names[at % FILES].as_bytes() });
        1
    }

    fn getattr(&self, ino: u64) -> u64 {
        self.ask(Request::GetAttr { ino });
        1
    }

    fn open_close(&self, ino: u64) -> u64 {
        self.ask(Request::Open { ino, write: false });
        self.ask(Request::Close { ino });
        2
    }

    fn create_unlink(&self, parent: u64) -> u64 {
        let name = self.name.as_bytes();
        let ino = ino(&self.ask(create(parent, &self.name)));
        self.ask(Request::Close { ino });
        self.ask(Request::Unlink { parent, name });
        3
    }

    /// Renames one of its files to another name, and back.
    fn rename(&self, to: u64) -> u64 {
        let rename = |(parent, name): (u64, &str), (new_parent, new_name): (u64, &str)| {
            let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
            let flags = RenameFlags::empty();
            self.ask(Request::Rename {
                parent,
                name,
                new_parent,
                new_name,
                flags,
                whiteout: None,
                moved: None,
                replaced: None,
            });
        };
        let (here, there) = ((self.own, self.names[0].as_str()), (to, self.name.as_str()));
        rename(here, there);
        rename(there, here);
        2
    }

    fn readdir(&self, ino: u64) -> u64 {
        self.ask(Request::ReadDir { ino, cookie: 0, max_entries: 1000 });
        1
    }
}

fn create(parent: u64, name: &str) -> Request<'_> {
    Request::Create { parent, name: name.as_bytes(), perm: 0o644, umask: 0, uid: 0, gid: 0, exclusive: true }
}

fn ask(dispatcher: &Dispatcher, session: u64, request: Request<'_>) -> Reply {
    match dispatcher.handle(session, request) {
        Outcome::Now(Reply::Error(errno)) => panic!("{request:?}: {errno}"),
        Outcome::Now(reply) => reply,
        Outcome::Deferred(_) => panic!("{request:?} waits"),
    }
}

fn ino(reply: &Reply) -> u64 {
    match reply {
        Reply::Attr(attr) => attr.ino,
        Reply::Opened(opened) => opened.attr.ino,
        other => panic!("{other:?}"),
    }
}

/// Makes a directory with files.
fn fill(dispatcher: &Dispatcher, session: u64, directory: &str, names: &[String]) -> (u64, Vec<u64>) {
    let name = directory.as_bytes();
    let made = Request::Mkdir { parent: ROOT_INO, name, perm: 0o755, umask: 0, uid: 0, gid: 0 };
    let directory = ino(&ask(dispatcher, session, made));
    let file = |name: &String| {
        let ino = ino(&ask(dispatcher, session, create(directory, name)));
        ask(dispatcher, session, Request::Close { ino });
        ino
    };
    (directory, names.iter().map(file).collect())
}

/// Returns a dispatcher of an empty file system, whose memory outlives it if `kept`.
fn make_dispatcher(kept: bool) -> Result<Dispatcher> {
    let arena = Arc::new(Memory::private(MEMORY)?);
    let table = Arc::new(Memory::private(INODES * record::LEN)?);
    let root = Root { perm: 0o755, uid: 0, gid: 0 };
    let clock = Arc::new(SystemClock);
    if kept {
        // Shared memory, whose pages can be freed, as in a server.
        let state = Arc::new(Memory::shared("dispatch-rate", DIRT + 2 * SEGMENT)?);
        let dirt = NonzeroBitmap::new(Arc::clone(&state), 0);
        let kept = RecoveredState {
            log: Some(Log::new(state, DIRT, SEGMENT)),
            state: None,
            dirt: Some(dirt),
            starts: 1,
            clean: true,
        };
        Ok(Dispatcher::kept((arena, table), Zeroing::Inline, root, clock, kept)?)
    } else {
        let space = Arc::new(Space::new(arena, Zeroing::Inline));
        Ok(Dispatcher::new(space, table, root, clock).map_err(|e| e.to_string())?)
    }
}

/// Returns the requests per second of one work on `threads` threads.
fn run(work: Work, keeps: bool, (threads, kept): (usize, bool), time: Duration) -> Result<f64> {
    let dispatcher = make_dispatcher(kept)?;
    let attach = |session, keeps| {
        let region = RegionRef { addr: 0, len: 0, rkey: 0 };
        dispatcher.attachments().began(session, Regions { arena: region, table: region, sums: None });
        ask(
            &dispatcher,
            session,
            Request::Attach { version: VERSION, client: "", export: "", keeps, alone: false, mount: None },
        );
    };
    let names: Vec<String> = (0..FILES).map(|at| format!("file-{at}")).collect();
    attach(1, false);
    let (shared, shared_files) = fill(&dispatcher, 1, "shared", &names);
    let mut hands = Vec::new();
    for at in 0..threads {
        let session = 2 + at as u64;
        let (own, own_files) = fill(&dispatcher, 1, &format!("own-{at}"), &names);
        attach(session, keeps);
        let (name, shared_files) = (format!("name-{at}"), &shared_files[..]);
        let (dispatcher, names) = (&dispatcher, &names[..]);
        hands.push(Hand { dispatcher, session, name, names, own, own_files, shared, shared_files });
    }
    let (begin, end) = (Barrier::new(threads + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        let (begin, end) = (&begin, &end);
        let dispatcher = &dispatcher;
        scope.spawn(move || {
            // As the server does.
            while kept && !end.load(Ordering::Relaxed) {
                if dispatcher.log_upkeep().has_long_log() && dispatcher.log_upkeep().write_log_anew().is_err()
                {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let worker = |hand: Hand<'_>| {
            let _warm: u64 = (0..BATCH).map(|at| work(&hand, at)).sum();
            begin.wait();
            let mut requests = 0;
            while !end.load(Ordering::Relaxed) {
                requests += (0..BATCH).map(|at| work(&hand, at)).sum::<u64>();
            }
            requests
        };
        let workers: Vec<_> = hands.into_iter().map(|hand| scope.spawn(move || worker(hand))).collect();
        begin.wait();
        let start = Instant::now();
        thread::sleep(time);
        end.store(true, Ordering::Relaxed);
        let requests: u64 = workers.into_iter().map(|worker| worker.join().unwrap_or(0)).sum();
        Ok(requests as f64 / start.elapsed().as_secs_f64())
    })
}

fn main() -> Result<()> {
    let (mut threads, mut rounds, mut millis, mut chosen) = (vec![1, 2], 5usize, 100, Vec::new());
    let mut kept = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or("an option without its value");
        match arg.as_str() {
            "--threads" => {
                threads = value()?.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
            }
            "--kept" => kept = true,
            "--rounds" => rounds = value()?.parse()?,
            "--millis" => millis = value()?.parse()?,
            _ => chosen.push(arg),
        }
    }
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()));
    let works = WORKS.iter().filter(|(name, ..)| wanted(name));
    let rows: Vec<_> = works.flat_map(|work| threads.iter().map(move |&threads| (work, threads))).collect();
    let mut rates = vec![Vec::new(); rows.len()];
    for _ in 0..rounds.max(1) {
        for (&(&(_, keeps, work), threads), rates) in rows.iter().zip(&mut rates) {
            rates.push(run(work, keeps, (threads, kept), Duration::from_millis(millis))?);
        }
    }
    println!("| work                          | threads | requests/s |");
    println!("|-------------------------------|--------:|-----------:|");
    for ((&(name, ..), threads), mut rates) in rows.into_iter().zip(rates) {
        rates.sort_by(f64::total_cmp);
        println!("| {name:<29} | {threads:>7} | {:>10.0} |", rates[rates.len() / 2]);
    }
    Ok(())
}
