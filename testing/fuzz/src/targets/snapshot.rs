//! Fuzzes the restore of snapshots: raw files, and frames with valid checksums.
//!
//! An input of the second kind is a list of frames, each with a byte for its kind and a two-byte
//! length. A server must refuse a snapshot or restore a usable file system.

use std::sync::Arc;

use rfs_proto::{ROOT_INO, Reply, Request, SetAttr, checksum, record};
use rfs_server::{
    bytes::Bytes,
    clock::ManualClock,
    dispatch::{Dispatcher, RecoveredState, Root},
    snapshots::{
        Contents,
        format::{Frames, Header, Kind, Reader},
        restore::restore,
        write::snapshot,
    },
    space::Zeroing,
};

use super::dispatcher::{self, Bench, memory};

const HEADER: Header = Header {
    arena: dispatcher::MEMORY as u64,
    inodes: dispatcher::INODES as u32,
    identity: 1,
    number: 1,
    time: 0,
};
const KINDS: [Kind; 5] = [Kind::Ops, Kind::Written, Kind::WrittenLater, Kind::Bytes, Kind::Bad];

/// Runs an input: a raw file.
pub(super) fn file(bytes: &[u8]) {
    let Ok(contents) = Contents::read(bytes) else { return };
    let (arena, table) = (memory(dispatcher::MEMORY), memory(dispatcher::INODES * record::LEN));
    let words = memory(checksum::region_len(dispatcher::MEMORY as u64) as usize);
    let checked = Bytes::new(Arc::clone(&arena), Some(words));
    let Ok(state) = restore(contents, bytes, (&checked, &table), None) else { return };
    let kept = RecoveredState { log: None, state: Some(state), dirt: None, starts: 1, clean: true };
    let root = Root { perm: 0o755, uid: 0, gid: 0 };
    let clock = Arc::new(ManualClock::new(0));
    let memory = (checked, Arc::clone(&table));
    let Ok(dispatcher) = Dispatcher::kept(memory, Zeroing::Inline, root, clock, kept) else { return };
    let bench = Bench::of(dispatcher, arena, table);
    bench.attach(1, false);
    for ino in ROOT_INO..ROOT_INO + 20 {
        for request in [Request::GetAttr { ino }, Request::Open { ino, write: true }] {
            assert!(bench.ask(1, request, |_: Reply| {}).is_some());
        }
    }
}

/// Runs an input: frames that are written with valid checksums.
pub(super) fn frames(mut bytes: &[u8]) {
    let whole = "a vector takes any number of bytes";
    let mut frames = Frames::begin(Vec::new(), &HEADER).expect(whole);
    while let [kind, low, high, rest @ ..] = bytes {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (body, rest) = rest.split_at(len);
        bytes = rest;
        frames.frame(KINDS[usize::from(*kind) % KINDS.len()], &[body]).expect(whole);
    }
    file(&frames.end().expect(whole));
}

/// Returns a snapshot that a server has written, with files but without file data.
fn made() -> Vec<u8> {
    let bench = Bench::new();
    bench.attach(1, false);
    let (parent, uid, gid) = (ROOT_INO, 0, 0);
    let create = Request::Create { parent, name: b"file", perm: 0o644, umask: 0, uid, gid, exclusive: true };
    bench.ask(1, create, |_| {});
    bench.ask(1, Request::Allocate { ino: 2, offset: 0, len: 5000 }, |_| {});
    bench.ask(1, Request::Mkdir { parent, name: b"sub", perm: 0o755, umask: 0, uid, gid }, |_| {});
    bench.ask(1, Request::Symlink { parent, name: b"link", target: b"sub", uid, gid }, |_| {});
    let changes = SetAttr { size: Some(4500), ..SetAttr::default() };
    bench.ask(1, Request::SetAttr { ino: 2, changes }, |_| {});
    let made = snapshot(bench.dispatcher(), &HEADER, Vec::new(), |_| Ok(()));
    made.unwrap_or_else(|e| panic!("no snapshot: {e}"))
}

/// Returns a whole snapshot file.
pub(super) fn file_seeds() -> Vec<Vec<u8>> {
    vec![made()]
}

/// Returns the frames of that file.
pub(super) fn frames_seeds() -> Vec<Vec<u8>> {
    let (file, mut seed) = (made(), Vec::new());
    let mut add = |kind: Kind, body: &[u8]| {
        seed.push(KINDS.iter().position(|other| *other == kind).unwrap_or(0) as u8);
        seed.extend_from_slice(&(body.len() as u16).to_le_bytes());
        seed.extend_from_slice(body);
    };
    let mut reader = Reader::begin(&file[..]).unwrap_or_else(|e| panic!("no snapshot: {e}"));
    while let Ok(Some((kind, body))) = reader.frame() {
        add(kind, body);
    }
    add(Kind::Bytes, &[&4096u64.to_le_bytes()[..], b"bytes"].concat());
    add(Kind::Bad, &[4096u64, 7].map(u64::to_le_bytes).concat());
    vec![seed]
}
