//! A client that follows the protocol and checks every byte that it reads.

use std::time::{Duration, Instant};

use fastrand::Rng;
use rdmabox::{ProviderKind, Session};
use rfs_client::{AttachOptions, ClientError, Creator, ReadData};
use rfs_proto::ROOT_INO;

use super::{failure::Failure, target::Flood};

const FILES: usize = 8;
const BLOCKS: usize = 16;
const BLOCK: usize = 4096;
const BY: Creator = Creator { uid: 0, gid: 0, umask: 0 };

/// Counts of the good client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Good {
    /// Number of operations. All of them succeeded.
    pub operations: u64,
    /// Number of bytes that were read and matched the bytes written.
    pub checked: u64,
    /// Duration of the slowest operation.
    pub slowest: Duration,
}

/// The client, with the inode and the expected contents of its files. All bytes of a block are
/// equal.
pub(super) struct Client {
    client: rfs_client::Client,
    files: Vec<(u64, [u8; BLOCKS])>,
    random: Rng,
    did: Good,
}

fn failed(what: &str) -> impl Fn(ClientError) -> Failure {
    move |e| Failure::Good(format!("{what}: {e}"))
}

impl Client {
    /// Connects and creates the files, filled with zeros.
    pub(super) fn connect(flood: &Flood) -> Result<Client, Failure> {
        let options =
            Session::builder().provider(ProviderKind::Tcp).key(flood.keys[1].clone()).into_options();
        let attach = AttachOptions { export: flood.exports[1].clone(), ..AttachOptions::default() };
        let client = rfs_client::Client::connect(&flood.address, &options, &attach)
            .map_err(|e| Failure::Good(e.to_string()))?;
        let mut files = Vec::new();
        for number in 0..FILES {
            let name = format!("good-{number}");
            let attr =
                client.files.create(ROOT_INO, name.as_bytes(), 0o600, BY, true).map_err(failed("create"))?;
            client.writes.write(attr.ino, 0, &[0; BLOCKS * BLOCK]).map_err(failed("write"))?;
            files.push((attr.ino, [0; BLOCKS]));
        }
        Ok(Client { client, files, random: Rng::with_seed(1), did: Good::default() })
    }

    fn timed<T>(
        &mut self,
        what: &str,
        operation: impl FnOnce(&rfs_client::Client) -> Result<T, ClientError>,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        let outcome = operation(&self.client).map_err(failed(what))?;
        self.did.operations += 1;
        self.did.slowest = self.did.slowest.max(begun.elapsed());
        Ok(outcome)
    }

    /// Writes a block, checks a file and, in one of eight rounds, creates and removes a directory.
    pub(super) fn round(&mut self) -> Result<(), Failure> {
        let (file, block) = (self.random.usize(..FILES), self.random.usize(..BLOCKS));
        let (ino, byte) = (self.files[file].0, self.random.u8(..));
        self.timed("write", |client| client.writes.write(ino, (block * BLOCK) as u64, &[byte; BLOCK]))?;
        self.files[file].1[block] = byte;
        let checked = self.random.usize(..FILES);
        self.check(checked)?;
        if self.random.u8(..8) == 0 {
            self.timed("mkdir", |client| client.names.mkdir(ROOT_INO, b"directory", 0o700, BY))?;
            self.timed("lookup", |client| client.lookups.lookup(ROOT_INO, b"directory"))?;
            self.timed("rmdir", |client| client.names.rmdir(ROOT_INO, b"directory"))?;
        }
        Ok(())
    }

    fn check(&mut self, file: usize) -> Result<(), Failure> {
        let (ino, blocks) = self.files[file];
        let mut found = Vec::new();
        let mut buffer = Vec::new();
        self.timed("read", |client| {
            client.reads.read(ino, 0, BLOCKS * BLOCK, &mut buffer, |data| match data {
                ReadData::Bytes(bytes) => found.extend_from_slice(bytes),
                ReadData::Mapped { memory, offset, len } => {
                    found.resize(len, 0);
                    memory.read(offset, &mut found);
                }
            })
        })?;
        let right = found.len() == BLOCKS * BLOCK
            && found.chunks(BLOCK).zip(&blocks).all(|(found, byte)| found.iter().all(|one| one == byte));
        if !right {
            return Err(Failure::Good(format!("file {file} does not hold what was written to it")));
        }
        self.did.checked += found.len() as u64;
        Ok(())
    }

    /// Checks all files and removes them.
    pub(super) fn finish(mut self) -> Result<Good, Failure> {
        (0..FILES).try_for_each(|file| self.check(file))?;
        for number in 0..FILES {
            let (ino, name) = (self.files[number].0, format!("good-{number}"));
            self.timed("unlink", |client| client.names.unlink(ROOT_INO, name.as_bytes()))?;
            self.timed("close", |client| client.files.close(ino))?;
        }
        Ok(self.did)
    }
}
