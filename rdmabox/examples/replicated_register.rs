//! A register with a copy on each of two hosts, written in parallel.
//!
//! A register holds a version and a value. A write sends an ordered list to each host, all in one
//! round trip ([`across`]): first the value, then the version that publishes it. Each copy has
//! eight slots, so a published value stays in place during the next seven writes. A reader takes
//! the newest of the copies. If a host fails, writer and readers go on with the other copy.
//!
//! Only one writer writes at a time. A program with several writers gives them turns by a lock, for
//! example by compare-and-swap of a word of the first host.
//!
//! `cargo run --release -p rdmabox --example replicated_register` starts two hosts in this process,
//! and stops one of them in the end; with `-- --connect ADDRESS ADDRESS` the hosts are other
//! processes (`examples/lend.rs`). It prints
//!
//! ```text
//! 1000 writes to 2 hosts; each of 837 reads found a whole value, and none older than before
//! one host stopped: the next write has 1 copy, and is read back
//! ```

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rdmabox::{Address, MemoryServer, Op, RemoteAddr, RequestError, Session, across};

/// Length of a value in bytes.
const VALUE: u64 = 1024;
/// Number of values that a host holds.
const SLOTS: u64 = 8;
/// Offset of the first value. The version is the first word.
const VALUES: u64 = 64;
const WRITES: u64 = 1000;

/// The copy of the register on one host. Version N is in slot N modulo 8.
struct Replica {
    session: Arc<Session>,
    base: RemoteAddr,
}

impl Replica {
    fn open(address: &Address) -> Result<Replica, Box<dyn Error>> {
        let session = Session::builder().connect(address)?;
        let base = MemoryServer::locate(&session)?.slice(..VALUES + SLOTS * VALUE)?.base();
        Ok(Replica { session, base })
    }

    fn slot(&self, version: u64) -> RemoteAddr {
        self.base.at(VALUES + version % SLOTS * VALUE)
    }

    fn read(&self) -> Result<(u64, Vec<u8>), RequestError> {
        let mut value = vec![0; VALUE as usize];
        loop {
            let version = self.session.load_u64(self.base)?;
            self.session.read(self.slot(version), &mut value)?;
            // The writer uses this slot again when it has published the seventh version after it.
            if self.session.load_u64(self.base)? < version + SLOTS - 1 {
                return Ok((version, value));
            }
        }
    }
}

struct Register {
    /// The copies that have every version.
    replicas: Vec<Replica>,
    /// The newest version that this register has returned or stored.
    floor: u64,
}

impl Register {
    fn open(addresses: &[Address]) -> Result<Register, Box<dyn Error>> {
        Ok(Register { replicas: addresses.iter().map(Replica::open).collect::<Result<_, _>>()?, floor: 0 })
    }

    /// Returns version and value of the newest copy. A host that cannot be reached is left out.
    /// Returns `None` if no host is left that has the newest version seen so far. A copy that
    /// missed a write stays behind, and is the newest copy when the other host dies.
    fn read(&mut self) -> Option<(u64, Vec<u8>)> {
        let copies = self.replicas.iter().filter_map(|replica| replica.read().ok());
        let newest = copies.max_by_key(|(version, _)| *version).filter(|newest| newest.0 >= self.floor)?;
        self.floor = newest.0;
        Some(newest)
    }

    /// Stores a value on all hosts at once. Returns the number of copies.
    fn write(&mut self, version: u64, value: &[u8]) -> usize {
        let word = version.to_ne_bytes();
        let steps = |replica: &Replica| {
            let (slot, base) = (replica.slot(version), replica.base);
            [Op::Write { remote: slot, data: value }, Op::Write { remote: base, data: &word }]
        };
        let mut steps_of_each: Vec<_> = self.replicas.iter().map(steps).collect();
        let with_sessions = self.replicas.iter().zip(&mut steps_of_each);
        let mut lists: Vec<_> =
            with_sessions.map(|(replica, steps)| (&*replica.session, &mut steps[..])).collect();
        let mut outcomes = across(&mut lists).into_iter();
        // A copy that lacks a version is not written any more: its readers would trust a slot that
        // changes.
        self.replicas.retain(|replica| {
            outcomes.next().is_some_and(|outcome| match outcome {
                // WRITEs can be repeated.
                Err(e) if e.is_retryable() => replica.session.execute(&mut steps(replica)).is_ok(),
                outcome => outcome.is_ok(),
            })
        });
        if !self.replicas.is_empty() {
            self.floor = version;
        }
        self.replicas.len()
    }
}

/// Returns the value of a version: each has its own.
fn value_of(version: u64) -> Vec<u8> {
    version.to_ne_bytes().repeat(VALUE as usize / 8)
}

/// Writes in this thread while another one reads. Returns the last version.
fn run(addresses: &[Address]) -> Result<u64, Box<dyn Error>> {
    let (mut writer, mut reader) = (Register::open(addresses)?, Register::open(addresses)?);
    // The hosts may hold a register of an earlier run.
    let first = reader.read().ok_or("no host answers")?.0 + 1;
    let last = first + WRITES - 1;
    writer.write(first, &value_of(first));
    let done = AtomicBool::new(false);
    let reads = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut reads, mut newest) = (0, first);
            while !done.load(Ordering::Relaxed) {
                let (version, value) = reader.read().expect("a host");
                assert!(value == value_of(version), "the value of version {version} is mixed");
                assert!(version >= newest, "version {version} after {newest}");
                (reads, newest) = (reads + 1, version);
            }
            reads
        });
        let on_both = (first + 1..=last).all(|version| writer.write(version, &value_of(version)) == 2);
        done.store(true, Ordering::Relaxed);
        assert!(on_both, "a host failed");
        reading.join().expect("no panic")
    });
    println!(
        "{WRITES} writes to 2 hosts; each of {reads} reads found a whole value, and none older than before"
    );
    Ok(last)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--connect", one, two] => run(&[one.parse()?, two.parse()?]).map(drop),
        [] => {
            let listen = || MemoryServer::listen(&["127.0.0.1:0".parse::<Address>().unwrap()], 16 << 10);
            let (one, two) = (listen()?, listen()?);
            let addresses = [one.addresses()[0].clone(), two.addresses()[0].clone()];
            let last = run(&addresses)?;
            let (mut register, mut reader) = (Register::open(&addresses)?, Register::open(&addresses)?);
            // The copy on the second host misses a write.
            Register::open(&addresses[..1])?.write(last + 1, &value_of(last + 1));
            assert_eq!(reader.read(), Some((last + 1, value_of(last + 1))));
            drop(one);
            // A reader that has seen the write takes no older version for the newest one.
            assert_eq!(reader.read(), None);
            assert_eq!(register.write(last + 2, &value_of(last + 2)), 1);
            assert_eq!(register.read(), Some((last + 2, value_of(last + 2))));
            println!("one host stopped: the next write has 1 copy, and is read back");
            Ok(())
        }
        _ => Err("usage: replicated_register [--connect ADDRESS ADDRESS]".into()),
    }
}
