//! Measures how long a snapshot takes, how it affects clients, and how long a restore takes.
//!
//! ```text
//! snapshot_time DIR [MIB]
//! ```
//!
//! Starts a server with 1.5 times MIB MiB [1024], fills MIB MiB with one file, and takes a
//! snapshot in DIR. Meanwhile one client writes 4 KiB at a time, one-sidedly, and another one
//! makes and removes files. Both also run before and after, for comparison. At the end it removes
//! its files in DIR.

use std::{
    error::Error,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rdmabox::{Address, RemoteAddr, Session, SessionOptions};
use rfs_proto::{
    Attached, Opened, ROOT_INO, RegionRef, Reply, Request, SetAttr, VERSION, decode_reply, encode_request,
};
use rfs_server::{Config, Server, config::Persist};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MIB: u64 = 1 << 20;
/// The time of each measurement without a snapshot.
const ALONE: Duration = Duration::from_secs(5);

fn place(region: RegionRef, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: region.addr + offset, rkey: region.rkey }
}

struct Client {
    session: Arc<Session>,
    attached: Attached,
}

impl Client {
    fn connect(address: &Address) -> Result<Client> {
        let session = Session::connect(address, &SessionOptions::default())?;
        let attach = Request::Attach {
            version: VERSION,
            client: "",
            export: "",
            keeps: false,
            alone: false,
            mount: None,
        };
        match ask(&session, attach)? {
            Reply::Attached(attached) => Ok(Client { session, attached }),
            other => Err(format!("not attached: {other:?}").into()),
        }
    }

    fn create(&self, name: &[u8]) -> Result<Opened> {
        let (parent, uid, gid) = (ROOT_INO, 0, 0);
        match ask(
            &self.session,
            Request::Create { parent, name, perm: 0o644, umask: 0, uid, gid, exclusive: true },
        )? {
            Reply::Opened(opened) => Ok(opened),
            other => Err(format!("not created: {other:?}").into()),
        }
    }
}

fn ask(session: &Session, request: Request<'_>) -> Result<Reply> {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    encode_request(&request, &mut bytes);
    session.call(&bytes, &mut reply)?;
    Ok(decode_reply(&reply)?)
}

/// Returns incompressible bytes.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    };
    (0..len / 8).flat_map(|_| next()).collect()
}

/// Returns the operations per second of both clients during `work`.
fn rates(done: [&AtomicU64; 2], work: impl FnOnce() -> Result<()>) -> Result<([f64; 2], Duration)> {
    let before = done.map(|count| count.load(Ordering::Relaxed));
    let begin = Instant::now();
    work()?;
    let took = begin.elapsed();
    let rate = |at: usize| (done[at].load(Ordering::Relaxed) - before[at]) as f64 / took.as_secs_f64();
    Ok(([rate(0), rate(1)], took))
}

/// Makes a snapshot, and prints its time and the rates of both clients before, beside and after it.
fn measure_snapshot(server: &Server, path: &Path, len: u64, done: [&AtomicU64; 2]) -> Result<()> {
    let alone = || {
        rates(done, || {
            thread::sleep(ALONE);
            Ok(())
        })
    };
    let (before, _) = alone()?;
    let made = path.join("snapshots/rfs/snapshot-00000000000000000001");
    let (beside, took) = rates(done, || {
        server.snapshot();
        while !made.exists() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })?;
    let (after, _) = alone()?;
    println!("snapshot of {} MiB: {took:.2?}, {} bytes", len / MIB, fs::metadata(made)?.len());
    for (what, at) in [("writes of 4 KiB", 0), ("files made and removed", 1)] {
        let alone = (before[at] + after[at]) / 2.0;
        let (rate, ratio) = (beside[at], beside[at] / alone);
        println!(
            "{what}: {:.0}/s before, {rate:.0}/s beside it, {:.0}/s after: {ratio:.2}",
            before[at], after[at]
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().ok_or("snapshot_time DIR [MIB]")?;
    let path = Path::new(&directory).join("snapshot_time");
    let len = args.next().map_or(Ok(1024), |arg| arg.parse::<u64>())? * MIB;
    fs::create_dir(&path)?;
    let config = || Config {
        listen: vec![Address::Unix(path.join("sock"))],
        persist: Some(Persist { every: None, ..Persist::new(path.join("snapshots")) }),
        ..Config::new(len / 2 * 3)
    };
    let server = Server::start(config())?;
    let address = server.addresses()[0].clone();
    let (writer, namer) = (Client::connect(&address)?, Client::connect(&address)?);
    let ino = writer.create(b"file")?.attr.ino;
    let Reply::Layout(layout) = ask(&writer.session, Request::Allocate { ino, offset: 0, len })? else {
        return Err("no space".into());
    };
    let extent = layout.extents[0];
    for at in 0..len / MIB {
        writer
            .session
            .write(place(writer.attached.arena, extent.arena + at * MIB), &noise(at, MIB as usize))?;
    }
    let changes = SetAttr { size: Some(len), ..SetAttr::default() };
    ask(&writer.session, Request::SetAttr { ino, changes })?;
    let (written, named, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let goes_on = || over.load(Ordering::Relaxed) == 0;
    thread::scope(|scope| -> Result<()> {
        scope.spawn(|| {
            let block = noise(7, 4096);
            while goes_on() {
                let at = written.fetch_add(1, Ordering::Relaxed).wrapping_mul(7919 * 4096) % len;
                let to = place(writer.attached.arena, extent.arena + at);
                writer.session.write(to, &block).unwrap_or_else(|e| panic!("not written: {e}"));
            }
        });
        scope.spawn(|| {
            while goes_on() {
                let ino = namer.create(b"name").unwrap_or_else(|e| panic!("{e}")).attr.ino;
                for request in [Request::Close { ino }, Request::Unlink { parent: ROOT_INO, name: b"name" }] {
                    ask(&namer.session, request).unwrap_or_else(|e| panic!("{e}"));
                }
                named.fetch_add(1, Ordering::Relaxed);
            }
        });
        let measured = measure_snapshot(&server, &path, len, [&written, &named]);
        over.store(1, Ordering::Relaxed);
        measured
    })?;
    drop((writer, namer, server));
    let begin = Instant::now();
    let server = Server::start(config())?;
    println!("start with it: {:.2?}", begin.elapsed());
    drop(server);
    fs::remove_dir_all(&path)?;
    Ok(())
}
