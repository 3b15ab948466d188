//! A key-value cache whose server does no work for a get.
//!
//! The server exports the table for reading. A put is a call, so only the server writes. A get is
//! one READ of the few slots that can hold the key, and runs no code of the server. A READ may
//! overlap a put, so every slot carries a checksum. The invariant: *a slot with a valid checksum
//! was written completely by one put.* A slot with an invalid checksum is read again.
//!
//! `cargo run --release -p rdmabox --example kv_cache` starts a server in this process.
//! `-- --listen ADDRESS` starts a server that serves until Ctrl-C, and `-- --connect ADDRESS` uses
//! it. It prints, with another number of torn reads each time:
//!
//! ```text
//! 2000 gets: 1000 hits, 2000 reads, 0 calls
//! 2000 puts meanwhile: 32202 gets, none of them mixed, 5 torn reads repeated
//! ```

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rdmabox::{
    Access, Address, CallError, Export, Host, HostHandle, Memory, Peer, RemoteAddr, Reply, RequestError,
    Service, Session, SessionOptions,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Number of slots at which a key's search can begin.
const PLACES: u64 = 4096;
/// Number of slots from there that can hold the key. A full neighbourhood drops its oldest entry.
const REACH: usize = 8;
const SLOT: u64 = size_of::<Slot>() as u64;
const TEXT: usize = 108;

/// One entry; all zero: none.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Slot {
    /// Of everything below.
    checksum: u64,
    /// The number of the put: two puts of the same value differ.
    version: u64,
    key_len: u16,
    value_len: u16,
    /// The key, and then the value.
    text: [u8; TEXT],
}

impl Slot {
    fn new(key: &[u8], value: &[u8], version: u64) -> Option<Slot> {
        let mut slot = Slot::new_zeroed();
        slot.text.get_mut(..key.len())?.copy_from_slice(key);
        slot.text.get_mut(key.len()..key.len() + value.len())?.copy_from_slice(value);
        (slot.key_len, slot.value_len, slot.version) = (key.len() as u16, value.len() as u16, version);
        slot.checksum = hash(&slot.as_bytes()[8..]);
        Some(slot)
    }

    fn is_whole(&self) -> bool {
        self.as_bytes().iter().all(|byte| *byte == 0) || self.checksum == hash(&self.as_bytes()[8..])
    }

    /// Returns the value, if this is the key's slot.
    fn value_of(&self, key: &[u8]) -> Option<&[u8]> {
        let text = self.text.get(..usize::from(self.key_len) + usize::from(self.value_len))?;
        let (own, value) = text.split_at(self.key_len.into());
        (self.version > 0 && own == key).then_some(value)
    }
}

/// Returns the FNV-1a hash, which is equal in all builds of server and client.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the offset in the table at which a key's neighbourhood begins.
fn neighbourhood(key: &[u8]) -> u64 {
    hash(key) % PLACES * SLOT
}

/// The server. The request `w` asks for the table's address. A put is `p`, the length of the key,
/// key and value.
struct Cache {
    export: Export,
    /// Number of the last put. The holder of the lock writes.
    puts: Mutex<u64>,
}

impl Cache {
    fn listen(address: Address) -> Result<HostHandle, Box<dyn Error>> {
        let host = Host::new()?;
        let memory = Memory::shared("kv-cache", (PLACES as usize + REACH) * SLOT as usize)?;
        // Clients may only read. If they map the memory, the mapping is read-only as well.
        let export = host.export(&Arc::new(memory), Access::REMOTE_READ)?;
        Ok(host.listen(&[address], Arc::new(Cache { export, puts: Mutex::new(0) }))?)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Option<()> {
        let memory = self.export.memory();
        let mut puts = self.puts.lock();
        let new = Slot::new(key, value, *puts + 1)?;
        *puts += 1;
        let first = neighbourhood(key) as usize;
        let mut slots = [Slot::new_zeroed(); REACH];
        memory.read(first, slots.as_mut_bytes());
        // The key's own slot, otherwise the oldest. An empty slot is the oldest.
        let own = slots.iter().position(|slot| slot.value_of(key).is_some());
        let oldest = || (0..REACH).min_by_key(|i| slots[*i].version).unwrap_or(0);
        let place = own.unwrap_or_else(oldest);
        memory.write(first + place * SLOT as usize, new.as_bytes());
        Some(())
    }
}

impl Service for Cache {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        match request {
            [b'w'] => reply.extend_from_slice(&peer.remote_addr(&self.export).to_le_bytes()),
            [b'p', key_len, rest @ ..] => {
                let (key, value) = rest.split_at_checked((*key_len).into()).ok_or("a key that ends early")?;
                self.put(key, value).ok_or("more than a slot holds")?;
            }
            // The client gets this reason.
            _ => return Err("no request of the cache".into()),
        }
        Ok(())
    }
}

struct Client {
    session: Arc<Session>,
    table: RemoteAddr,
    /// Number of reads that overlapped a put.
    torn: AtomicU64,
}

impl Client {
    fn connect(address: &Address) -> Result<Client, Box<dyn Error>> {
        let session = Session::connect(address, &SessionOptions::default())?;
        let mut reply = Vec::new();
        session.call(b"w", &mut reply)?;
        let table = RemoteAddr::from_le_bytes(reply[..].try_into().map_err(|_| "no cache at the other end")?);
        Ok(Client { session, table, torn: AtomicU64::new(0) })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), RequestError> {
        if key.len() + value.len() > TEXT {
            return Err(RequestError::Invalid(format!("key and value have at most {TEXT} bytes")));
        }
        let request = [&[b'p', key.len() as u8], key, value].concat();
        self.session.call(&request, &mut Vec::new())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RequestError> {
        let mut slots = [Slot::new_zeroed(); REACH];
        loop {
            self.session.read(self.table.at(neighbourhood(key)), slots.as_mut_bytes())?;
            let found = slots.iter().filter(|slot| slot.is_whole()).find_map(|slot| slot.value_of(key));
            // A slot that is being written may hold the key.
            if found.is_some() || slots.iter().all(Slot::is_whole) {
                return Ok(found.map(<[u8]>::to_vec));
            }
            self.torn.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (_host, address) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--listen", address] => {
            let host = Cache::listen(address.parse()?)?;
            println!("serving at {}", host.addresses()[0]);
            loop {
                std::thread::park();
            }
        }
        ["--connect", address] => (None, address.parse()?),
        [] => {
            let socket = std::env::temp_dir().join(format!("kv-cache-{}.sock", std::process::id()));
            let host = Cache::listen(Address::Unix(socket))?;
            let address = host.addresses()[0].clone();
            (Some(host), address)
        }
        _ => return Err("usage: kv_cache [--listen ADDRESS | --connect ADDRESS]".into()),
    };

    let client = Client::connect(&address)?;
    for i in 0..1000 {
        client.put(format!("key {i}").as_bytes(), format!("value {i}").as_bytes())?;
    }
    let before = client.session.stats();
    let mut hits = 0;
    for i in 0..2000 {
        if let Some(value) = client.get(format!("key {i}").as_bytes())? {
            assert_eq!(value, format!("value {i}").as_bytes());
            hits += 1;
        }
    }
    let took = client.session.stats().since(&before);
    println!("2000 gets: {hits} hits, {} reads, {} calls", took.read_requests, took.calls);

    // One client puts values of one repeated letter while another client reads.
    let (writer, done) = (Client::connect(&address)?, AtomicBool::new(false));
    writer.put(b"row", &[b'a'; 100])?;
    std::thread::scope(|scope| {
        let puts = scope.spawn(|| {
            let puts = (0..2000).try_for_each(|n| writer.put(b"row", &[b'a' + (n % 26) as u8; 100]));
            done.store(true, Ordering::Release);
            puts
        });
        let mut gets = 0;
        while !done.load(Ordering::Acquire) {
            let row = client.get(b"row")?.ok_or("the row is gone")?;
            assert!(row.len() == 100 && row.iter().all(|byte| *byte == row[0]), "a mixture: {row:?}");
            gets += 1;
        }
        puts.join().map_err(|_| "the writer is gone")??;
        let torn = client.torn.load(Ordering::Relaxed);
        println!("2000 puts meanwhile: {gets} gets, none of them mixed, {torn} torn reads repeated");
        Ok(())
    })
}
