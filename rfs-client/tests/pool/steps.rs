//! Random operations on a file, and a copy of the file in memory.

use proptest::prelude::*;
use rfs_client::Client;
use rfs_proto::FallocateFlags;

use crate::site::{pattern, truncate};

/// An operation on a file and on a copy in memory.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write(u64, usize, u8),
    Append(usize, u8),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64),
    Allocate(u64, u64),
    Copy(u64, u64, u64),
    Read(u64, usize),
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let (at, len) = (0..100_000_u64, 1..40_000_u64);
    prop_oneof![
        4 => (at.clone(), 1..40_000_usize, any::<u8>()).prop_map(|(at, len, seed)| Step::Write(at, len, seed)),
        2 => (1..20_000_usize, any::<u8>()).prop_map(|(len, seed)| Step::Append(len, seed)),
        2 => at.clone().prop_map(Step::Truncate),
        2 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Punch(at, len)),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Zero(at, len)),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Allocate(at, len)),
        1 => (at.clone(), at.clone(), len).prop_map(|(from, to, len)| Step::Copy(from, to, len)),
        3 => (at, 1..40_000_usize).prop_map(|(at, len)| Step::Read(at, len)),
    ]
}

pub(crate) fn grow(model: &mut Vec<u8>, end: u64) {
    if model.len() < end as usize {
        model.resize(end as usize, 0);
    }
}

pub(crate) fn zero(model: &mut [u8], at: u64, len: u64) {
    let end = model.len().min((at + len) as usize);
    if let Some(part) = model.get_mut(at as usize..end) {
        part.fill(0);
    }
}

pub(crate) fn apply(client: &Client, ino: u64, model: &mut Vec<u8>, step: &Step) {
    match *step {
        Step::Write(at, len, seed) => {
            client.writes.write(ino, at, &pattern(len, seed)).expect("a write");
            grow(model, at + len as u64);
            model[at as usize..][..len].copy_from_slice(&pattern(len, seed));
        }
        Step::Append(len, seed) => {
            let at = client.appends.append(ino, &pattern(len, seed)).expect("an append");
            assert_eq!(at, model.len() as u64);
            model.extend(pattern(len, seed));
        }
        Step::Truncate(size) => {
            truncate(client, ino, size).expect("a truncation");
            model.resize(size as usize, 0);
        }
        Step::Punch(at, len) => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            client.space.fallocate(ino, at, len, flags).expect("a hole");
            zero(model, at, len);
        }
        Step::Zero(at, len) => {
            client.space.fallocate(ino, at, len, FallocateFlags::ZERO_RANGE).expect("zeroes");
            grow(model, at + len);
            zero(model, at, len);
        }
        Step::Allocate(at, len) => {
            client.space.fallocate(ino, at, len, FallocateFlags::empty()).expect("space");
            grow(model, at + len);
        }
        Step::Copy(from, to, len) => {
            let overlaps = from < to + len && to < from + len;
            if overlaps {
                return;
            }
            let copied = client.space.copy((ino, from), (ino, to), len).expect("a copy");
            let bytes = model.get(from as usize..).unwrap_or_default();
            let bytes = bytes[..bytes.len().min(len as usize)].to_vec();
            assert_eq!(copied, bytes.len() as u64);
            if !bytes.is_empty() {
                grow(model, to + copied);
                model[to as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        Step::Read(at, len) => {
            let mut out = vec![7; len];
            let found = client.reads.read_into(ino, at, &mut out).expect("a read");
            let expected = model.get(at as usize..).unwrap_or_default();
            assert!(out[..found] == expected[..expected.len().min(len)], "{len} bytes at {at}");
        }
    }
}
