//! One task with many requests in flight, on plain `std` futures.
//!
//! Remote memory holds a directory: an index, and records of any length. A lookup is two READs, and
//! the second depends on the first. Joined lookups wait for their round trips together, in one task
//! on one thread. Any executor works, because transfers wake the task that polls them.
//!
//! `cargo run --release -p rdmabox --example async_service` starts a host in this process. With
//! `-- --connect ADDRESS` the host is another process (`examples/lend.rs`). It prints, for example:
//!
//! ```text
//! 256 lookups through TCP via tcp:127.0.0.1:43023 (not shared memory: ...)
//! one after another: 7ms
//! joined: 4ms
//! the third says "record 2!!"
//! ```

use std::{error::Error, sync::Arc, time::Instant};

use futures::{executor::block_on, future::try_join_all};
use rdmabox::{Address, MemoryServer, RemoteAddr, RequestError, Session, SessionOptions};

const RECORDS: u64 = 256;
/// Length of an index entry in bytes: the offset of the record, and its length.
const ENTRY: u64 = 16;
/// Length limit of a record, in bytes.
const MAX_RECORD: u64 = 100;

struct Directory {
    session: Arc<Session>,
    base: RemoteAddr,
}

impl Directory {
    /// Writes the records and their index, all of them under way at once.
    async fn create(session: Arc<Session>, base: RemoteAddr) -> Result<Directory, RequestError> {
        let (mut index, mut records) = (Vec::new(), Vec::new());
        for id in 0..RECORDS {
            let offset = RECORDS * ENTRY + records.len() as u64;
            let record = format!("record {id}{}", "!".repeat(id as usize % 60));
            index.extend_from_slice(&offset.to_le_bytes());
            index.extend_from_slice(&(record.len() as u64).to_le_bytes());
            records.extend_from_slice(record.as_bytes());
        }
        let places = [(base, index), (base.at(RECORDS * ENTRY), records)];
        // The outcome returns the buffer, which is not needed any more.
        let writes = places.map(|(place, bytes)| session.start_write(place, bytes));
        try_join_all(writes.map(|write| async { write.await.map_err(RequestError::from) })).await?;
        Ok(Directory { session, base })
    }

    async fn lookup(&self, id: u64) -> Result<String, RequestError> {
        let entry = self.read(id * ENTRY, ENTRY).await?;
        let word =
            |at: usize| entry[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        // Values written by a peer are checked before use.
        let (offset, len) = (word(0), word(8).min(MAX_RECORD));
        let record = self.read(offset, len).await?;
        String::from_utf8(record).map_err(|_| RequestError::Invalid("a record that is no text".into()))
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, RequestError> {
        Ok(self.session.start_read(self.base.at(offset), vec![0; len as usize]).await?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (_host, address) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--connect", address] => (None, address.parse()?),
        [] => {
            let host = MemoryServer::listen(&["127.0.0.1:0".parse::<Address>()?], 1 << 20)?;
            let address = host.addresses()[0].clone();
            (Some(host), address)
        }
        _ => return Err("usage: async_service [--connect ADDRESS]".into()),
    };
    let session = Session::connect(&address, &SessionOptions::default())?;
    let memory = MemoryServer::locate(&session)?;
    println!("{RECORDS} lookups through {}", session.description());

    block_on(async {
        let directory = Directory::create(session, memory.base()).await?;
        let began = Instant::now();
        for id in 0..RECORDS {
            directory.lookup(id).await?;
        }
        println!("one after another: {:.0?}", began.elapsed());

        let began = Instant::now();
        let found = try_join_all((0..RECORDS).map(|id| directory.lookup(id))).await?;
        println!("joined: {:.0?}", began.elapsed());
        println!("the third says {:?}", found[2]);
        Ok(())
    })
}
