//! A work queue of many producers and many workers, with a wake-up.
//!
//! Jobs travel by one-sided requests alone. A producer takes a ticket by fetch-and-add, and writes
//! the job and its mark in one ordered list. A worker reads the mark of the oldest slot, and takes
//! the job by compare-and-swap. A worker that finds no job sleeps in a deferred call: the bell of
//! the host. The bell counts its rings, so a worker misses no ring between its look and its sleep.
//!
//! `cargo run --release -p rdmabox --example work_queue` starts a host in this process; with
//! `-- --connect ADDRESS` the host is another process, started with `-- --listen ADDRESS`. It
//! prints
//!
//! ```text
//! 2000 jobs of 2 producers, each done once by 3 workers
//! ```

use std::{
    collections::BTreeSet,
    error::Error,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rdmabox::{
    Access, Address, CallError, Cancel, Export, Host, HostHandle, Memory, Op, Peer, PendingReply, RemoteAddr,
    Reply, RequestError, Service, Session, SessionOptions,
};

const SLOTS: u64 = 256;
/// Mark and job, in one cache line.
const SLOT: u64 = 64;
/// The words of the next ticket: of producers, and of workers in the next cache line.
const HEADER: u64 = 128;
const WORKERS_WORD: u64 = 64;

/// Lends the queue's memory, and wakes workers.
struct Bell {
    export: Export,
    state: Mutex<Rings>,
}

#[derive(Default)]
struct Rings {
    count: u64,
    sleepers: Vec<PendingReply>,
}

impl Service for Bell {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        let mut rings = self.state.lock().expect("no panic under the lock");
        match request {
            b"where" => reply.extend_from_slice(&peer.remote_addr(&self.export).to_le_bytes()),
            b"count" => reply.extend_from_slice(&rings.count.to_le_bytes()),
            b"ring" => {
                rings.count += 1;
                let count = rings.count.to_le_bytes();
                rings.sleepers.drain(..).for_each(|sleeper| sleeper.answer(&count));
            }
            // The rings that the worker has seen: it sleeps only if there was none since.
            seen => match <[u8; 8]>::try_from(seen).map(u64::from_le_bytes) {
                Ok(seen) if seen == rings.count => rings.sleepers.push(reply.defer()),
                Ok(_) => reply.extend_from_slice(&rings.count.to_le_bytes()),
                Err(_) => return Err("unknown request".into()),
            },
        }
        Ok(())
    }
}

fn listen(address: Address) -> Result<HostHandle, Box<dyn Error>> {
    let host = Host::new()?;
    let memory = Arc::new(Memory::shared("work-queue", (HEADER + SLOTS * SLOT) as usize)?);
    let export = host.export(&memory, Access::REMOTE_ALL)?;
    Ok(host.listen(&[address], Arc::new(Bell { export, state: Mutex::default() }))?)
}

/// A queue in the memory of a host. Each process that uses it has one.
struct Queue {
    session: Arc<Session>,
    base: RemoteAddr,
}

impl Queue {
    fn open(address: &Address) -> Result<Queue, Box<dyn Error>> {
        let session = Session::connect(address, &SessionOptions::default())?;
        let mut reply = Vec::new();
        session.call(b"where", &mut reply)?;
        Ok(Queue { session, base: RemoteAddr::from_le_bytes(reply[..].try_into()?) })
    }

    /// Returns the slot of a ticket. Its mark is twice the round of the ticket while it is free,
    /// and one more while it holds a job.
    fn slot(&self, ticket: u64) -> (RemoteAddr, u64) {
        (self.base.at(HEADER + ticket % SLOTS * SLOT), ticket / SLOTS * 2)
    }

    fn push(&self, job: u64) -> Result<(), RequestError> {
        let ticket = self.session.fetch_add(self.base, 1)?;
        let (slot, free) = self.slot(ticket);
        // A full queue: the worker of the round before has not taken its job yet.
        while self.session.load_u64(slot)? != free {
            thread::sleep(Duration::from_micros(50));
        }
        // The job is in place before the mark says so: steps of a list take effect in order.
        let mut old = 0;
        self.session.execute(&mut [
            Op::Write { remote: slot.at(8), data: &job.to_le_bytes() },
            Op::FetchAdd { remote: slot, add: 1, old: &mut old },
        ])?;
        self.session.start_call(b"ring")
    }

    /// Takes the next job. Sleeps while there is none; `None` once `stop` is cancelled.
    fn pop(&self, stop: &Cancel) -> Result<Option<u64>, RequestError> {
        let workers = self.base.at(WORKERS_WORD);
        let mut seen = Vec::new();
        self.session.call(b"count", &mut seen)?;
        loop {
            let ticket = self.session.load_u64(workers)?;
            let (slot, free) = self.slot(ticket);
            let mark = self.session.load_u64(slot)?;
            if mark == free {
                // No job yet. A ring since `seen` ends the wait at once.
                let last = seen.clone();
                match self.session.call_waiting(&last, &mut seen, stop) {
                    Err(RequestError::Cancelled) => return Ok(None),
                    other => other?,
                }
            } else if mark == free + 1 && self.session.compare_swap(workers, ticket, ticket + 1)? == ticket {
                // The ticket is this worker's alone.
                let (mut job, mut old) = ([0; 8], 0);
                self.session.read(slot.at(8), &mut job)?;
                // The slot is free for the next round.
                self.session.execute(&mut [Op::FetchAdd { remote: slot, add: 1, old: &mut old }])?;
                return Ok(Some(u64::from_le_bytes(job)));
            }
            // Else another worker was faster.
        }
    }
}

/// Runs producers and workers, each with a session of its own as if on a machine of its own.
fn run(address: &Address) -> Result<(), Box<dyn Error>> {
    const PRODUCERS: u64 = 2;
    const WORKERS: usize = 3;
    const JOBS: u64 = 1000;
    let queues =
        (0..PRODUCERS as usize + WORKERS).map(|_| Queue::open(address)).collect::<Result<Vec<_>, _>>()?;
    let (producers, workers) = queues.split_at(PRODUCERS as usize);
    let (done, stop) = (Mutex::new(BTreeSet::new()), Cancel::new());
    thread::scope(|scope| -> Result<(), RequestError> {
        let taking: Vec<_> = workers
            .iter()
            .map(|queue| {
                scope.spawn(|| -> Result<(), RequestError> {
                    while let Some(job) = queue.pop(&stop)? {
                        let mut done = done.lock().expect("no panic under the lock");
                        assert!(done.insert(job), "job {job} was done twice");
                        if done.len() as u64 == PRODUCERS * JOBS {
                            stop.cancel();
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let giving: Vec<_> = (0..)
            .zip(producers)
            .map(|(producer, queue)| {
                scope.spawn(move || (0..JOBS).try_for_each(|job| queue.push(producer * JOBS + job)))
            })
            .collect();
        let ended = giving.into_iter().chain(taking).map(|thread| thread.join().expect("no panic"));
        ended.collect()
    })?;
    let done = done.into_inner()?;
    assert!(done.into_iter().eq(0..PRODUCERS * JOBS));
    println!("{} jobs of {PRODUCERS} producers, each done once by {WORKERS} workers", PRODUCERS * JOBS);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--listen", address] => {
            let host = listen(address.parse()?)?;
            println!("serving at {}", host.addresses()[0]);
            loop {
                thread::park();
            }
        }
        ["--connect", address] => run(&address.parse()?),
        [] => {
            let host = listen("127.0.0.1:0".parse()?)?;
            run(&host.addresses()[0])
        }
        _ => Err("usage: work_queue [--listen ADDRESS | --connect ADDRESS]".into()),
    }
}
