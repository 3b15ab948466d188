//! Fuzz targets for call headers and for calls in memory.
//!
//! # Concurrency
//! Each target runs on one thread.

use super::{
    fetch::{HostSlots, Kind as AnswerKind, NotificationAction},
    message::{CALL_SLOTS, HEADER, Header, Kind, MAX_CALL},
};
use crate::{provider::soft::SoftDevice, verbs::Device};

/// Decodes `bytes` as a message header. A valid header names an existing slot, and has one
/// encoding.
///
/// # Panics
/// If that property is violated.
pub fn call_header(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<HEADER>() else { return };
    if let Some(header) = Header::decode(*bytes) {
        assert!(header.slot < CALL_SLOTS);
        assert_eq!(header.encode(), *bytes);
    }
}

/// Returns headers of correct peers.
pub fn call_header_seeds() -> Vec<Vec<u8>> {
    let kinds =
        [Kind::Plain, Kind::Deferred, Kind::Unanswered, Kind::Notification, Kind::InMemory, Kind::Rejected];
    let header = |kind| Header { slot: CALL_SLOTS - 1, kind, number: 5 };
    kinds.into_iter().map(|kind| header(kind).encode().to_vec()).collect()
}

/// Steps of [`call_slots`]: an action byte, a slot byte, and arguments.
const WRITE: u8 = 0;
const TAKE: u8 = 1;
const NOTIFICATION: u8 = 2;
const ANSWER: u8 = 3;
const PUT_OFF: u8 = 4;

/// Interprets `bytes` as actions of a client and a host on the client's call memory. For any
/// input, a slot runs one call at a time, and a request does not exceed the limit.
///
/// # Panics
/// If that property is violated.
pub fn call_slots(mut bytes: &[u8]) {
    let Ok(pd) = SoftDevice::new().and_then(|device| device.alloc_pd()) else { return };
    let Ok(slots) = HostSlots::new(&*pd, true) else { return };
    let (mut running, mut request) = ([false; CALL_SLOTS], Vec::new());
    while let [what, slot, rest @ ..] = bytes {
        let slot = usize::from(*slot) % CALL_SLOTS;
        bytes = rest;
        let taken = match what % 5 {
            WRITE => {
                let Some((len, rest)) = rest.split_first() else { return };
                let (fence_after_request, rest) = rest.split_at(rest.len().min(usize::from(*len)));
                bytes = rest;
                slots.client_writes(slot, fence_after_request);
                continue;
            }
            TAKE => slots.take(slot, &mut request) == Ok(true),
            NOTIFICATION => {
                let Some((number, rest)) = rest.split_first_chunk() else { return };
                bytes = rest;
                slots.handle_notification(slot, u32::from_le_bytes(*number), &mut request)
                    == Ok(NotificationAction::Take)
            }
            ANSWER => {
                let kinds = [AnswerKind::Plain, AnswerKind::Unanswered, AnswerKind::Rejected];
                slots.answer(slot, kinds[usize::from(*what) / 5 % 3], &[*what; 9]).expect("no writer");
                running[slot] = false;
                continue;
            }
            PUT_OFF.. => {
                slots.defer(slot).expect("no writer");
                continue;
            }
        };
        if taken {
            assert!(request.len() <= MAX_CALL);
            assert!(!std::mem::replace(&mut running[slot], true), "a call while another is executed");
        }
    }
}

/// Returns actions of correct clients.
pub fn call_slots_seeds() -> Vec<Vec<u8>> {
    let step = |what, slot: u8, rest: &[u8]| [&[what, slot], rest].concat();
    let write = |slot, number, request: &[u8]| {
        let record = HostSlots::request(number, request);
        step(WRITE, slot, &[&[record.len() as u8], &record[..]].concat())
    };
    let notify = |slot, number: u32| step(NOTIFICATION, slot, &number.to_le_bytes());
    let [take, answer, defer] = [TAKE, ANSWER, PUT_OFF].map(|what| step(what, 0, &[]));
    vec![
        [write(0, 1, b"hello"), take.clone(), answer.clone(), write(0, 2, &[7; 64]), take.clone()].concat(),
        [write(0, 1, &[]), notify(0, 1), answer.clone(), notify(0, 1)].concat(),
        [write(0, 1, &[9; 200]), take, defer, notify(0, 1), answer].concat(),
        [write(3, 1, b"a"), write(5, 1, b"b"), notify(5, 1), notify(3, 1)].concat(),
    ]
}
