//! File data under faults: acknowledged writes are visible to this client and others. A failed
//! write may or may not have happened.

use rdmabox::{
    CallsBy, ProviderKind,
    provider::fault::{Chance, Faults, Plan, seeds},
};
use rfs_client::{AttachOptions, Client, ClientError, ReadData};
use rfs_proto::ROOT_INO;
use rfs_server::Server;

use super::{BY, address, on_threads, options, server};

const OPERATIONS: usize = 150;
const BLOCK: usize = 4096;
/// Blocks per file.
const BLOCKS: usize = 24;
/// Maximum number of blocks of one operation.
const MAX_BLOCKS: usize = 6;

/// A thread's file. For each block the possible contents: the last acknowledged write, and failed
/// writes since then.
struct File {
    ino: u64,
    blocks: Vec<Vec<u8>>,
}

impl File {
    #[track_caller]
    fn assert_are(&self, first: usize, found: &[u8]) {
        for (at, found) in found.chunks(BLOCK).enumerate() {
            let may_be = &self.blocks[first + at];
            assert_eq!(found.len(), BLOCK);
            let wrong = found.iter().find(|byte| !may_be.contains(byte));
            assert_eq!(wrong, None, "block {} of inode {}: {may_be:?}", first + at, self.ino);
        }
    }
}

fn read(client: &Client, ino: u64, first: usize, blocks: usize) -> Result<Vec<u8>, ClientError> {
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    client.reads.read(ino, (first * BLOCK) as u64, blocks * BLOCK, &mut buffer, |data| match data {
        ReadData::Bytes(bytes) => found.extend_from_slice(bytes),
        ReadData::Mapped { memory, offset, len } => {
            found.resize(len, 0);
            memory.read(offset, &mut found);
        }
    })?;
    Ok(found)
}

/// Runs a thread's work. Returns its file, and the number of failures.
fn work(client: &Client, number: usize, seed: u64) -> (File, usize) {
    let mut random = Chance::new(seed ^ (number as u64) << 32);
    let name = format!("file-{number}");
    let ino =
        client.files.create(ROOT_INO, name.as_bytes(), 0o600, BY, true).expect("calls have no faults").ino;
    let mut file = File { ino, blocks: vec![vec![0]; BLOCKS] };
    // Repeats until the whole file exists, because later steps rely on its size.
    while client.writes.write(ino, 0, &[0; BLOCKS * BLOCK]).is_err() {}
    let mut failed = 0;
    for step in 0..OPERATIONS {
        let first = random.index(BLOCKS);
        let blocks = 1 + random.index(MAX_BLOCKS.min(BLOCKS - first));
        if random.index(2) == 0 {
            let byte = (step % 255) as u8 + 1;
            let outcome = client.writes.write(ino, (first * BLOCK) as u64, &vec![byte; blocks * BLOCK]);
            failed += usize::from(outcome.is_err());
            for may_be in &mut file.blocks[first..first + blocks] {
                if outcome.is_ok() {
                    may_be.clear();
                }
                may_be.push(byte);
            }
        } else {
            match read(client, ino, first, blocks) {
                Ok(found) => {
                    assert_eq!(found.len(), blocks * BLOCK, "it is not at its end");
                    file.assert_are(first, &found);
                }
                Err(_) => failed += 1,
            }
        }
    }
    (file, failed)
}

fn connect(server: &Server, provider: ProviderKind, faults: Option<Plan>, direct: bool) -> Client {
    let options = options(provider, CallsBy::Reply, faults, direct);
    Client::connect(address(server, provider), &options, &AttachOptions::default()).unwrap()
}

/// Returns the number of failed operations.
fn run(provider: ProviderKind, direct: bool, seed: u64) -> usize {
    let (server, _directory) = server();
    let client = connect(&server, provider, Some(Plan::new(Faults::varied(seed))), direct);
    let done = on_threads(|number| work(&client, number, seed));
    assert!(client.is_connected());
    drop(client);
    // The first session must end before another client opens its files.
    let other = connect(&server, provider, None, true);
    for (number, (file, _)) in done.iter().enumerate() {
        let attr = other.lookups.lookup(ROOT_INO, format!("file-{number}").as_bytes()).unwrap();
        assert_eq!((attr.ino, attr.size), (file.ino, (BLOCKS * BLOCK) as u64));
        other.files.open(attr.ino, false).unwrap();
        file.assert_are(0, &read(&other, attr.ino, 0, BLOCKS).unwrap());
    }
    done.iter().map(|(_, failed)| failed).sum()
}

#[test]
fn acknowledged_writes_are_visible() {
    let mut failed = 0;
    for seed in seeds() {
        for (provider, direct) in
            [(ProviderKind::Shm, true), (ProviderKind::Shm, false), (ProviderKind::Tcp, false)]
        {
            eprintln!("RDMABOX_FAULT_SEED={seed} over {provider}, on the spot: {direct}");
            failed += run(provider, direct, seed);
        }
    }
    assert!(failed > 0, "the device has no faults");
}
