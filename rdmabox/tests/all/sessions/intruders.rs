//! Tests of clients that violate the protocol, byte by byte over TCP: each loses its own session,
//! and no other session is affected.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use crate::support::Fixture;
use rdmabox::{Address, MAX_CALL, ProviderKind};

const CONTROL: u32 = 1;
const JOIN: u32 = 2;
const REPLY: u32 = 0;
const FETCH: u32 = 1;
const SEND: u8 = 1;
const WRITE: u8 = 2;
const ACK: u8 = 16;
const NAK: u8 = 17;
/// Flag of a request that is to be acknowledged.
const ACK_WANTED: u8 = 1;
const HAS_IMM: u8 = 2;
const PLACED: u8 = 4;

fn connect(f: &Fixture) -> TcpStream {
    match &f.address {
        Address::Tcp { host, port } => TcpStream::connect((host.as_str(), *port)).unwrap(),
        other => unreachable!("these tests use TCP, not {other}"),
    }
}

fn preamble(kind: u32, token: &[u8], number: u32) -> Vec<u8> {
    preamble_of(kind, token, number, REPLY)
}

fn preamble_of(kind: u32, token: &[u8], number: u32, calls: u32) -> Vec<u8> {
    let mut bytes = b"rdmabxS\x01".to_vec();
    bytes.extend(5u32.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(token);
    bytes.extend(number.to_le_bytes());
    // Of software.
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(calls.to_le_bytes());
    // It proves nothing: no key, no nonce.
    bytes.extend([0; 68]);
    bytes
}

fn frame(op: u8, flags: u8, payload: u32, arg0: u64) -> Vec<u8> {
    let mut bytes = vec![op, flags, 0, 0];
    bytes.extend(payload.to_le_bytes());
    // Number, key, address, immediate data, length.
    bytes.extend([0; 24]);
    bytes.extend(arg0.to_le_bytes());
    bytes.extend([0; 8]);
    assert_eq!(bytes.len(), 48);
    bytes
}

/// A connected control stream and message queue pair. The data queue pair is joined as well.
struct Raw {
    control: TcpStream,
    messages: TcpStream,
    token: [u8; 16],
    _data: TcpStream,
}

fn join(f: &Fixture, token: &[u8], index: u32) -> TcpStream {
    let mut stream = connect(f);
    stream.write_all(&preamble(JOIN, token, index)).unwrap();
    let mut hello = b"rdmabox\x01".to_vec();
    hello.extend(3u32.to_le_bytes());
    hello.extend(9u32.to_le_bytes());
    hello.extend(0u64.to_le_bytes());
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; 24]).unwrap();
    stream
}

fn session(f: &Fixture) -> Raw {
    let mut control = connect(f);
    control.write_all(&preamble(CONTROL, &[0; 16], 1)).unwrap();
    let token = answer(&mut control);
    let (messages, data) = (join(f, &token, 0), join(f, &token, 1));
    answer(&mut control);
    Raw { control, messages, token, _data: data }
}

/// Reads an answer of the host, which has to be a yes, and gives its token.
fn answer(control: &mut TcpStream) -> [u8; 16] {
    raw_answer(control)[16..32].try_into().unwrap()
}

fn raw_answer(control: &mut TcpStream) -> [u8; 72] {
    let mut raw = [0u8; 72];
    control.read_exact(&mut raw).unwrap();
    assert_eq!(raw[12], 1);
    // Of the length the fixed part has been read.
    let mut text = vec![0; usize::from(u16::from_le_bytes([raw[14], raw[15]])) - 56];
    control.read_exact(&mut text).unwrap();
    raw
}

/// A session that makes calls by fetching.
struct Fetching {
    control: TcpStream,
    messages: TcpStream,
    data: TcpStream,
    fetch: TcpStream,
    /// Its memory.
    key: u32,
    addr: u64,
}

fn fetching(f: &Fixture) -> Fetching {
    let mut control = connect(f);
    control.write_all(&preamble_of(CONTROL, &[0; 16], 1, FETCH)).unwrap();
    let raw = raw_answer(&mut control);
    assert_eq!(raw[52..56], FETCH.to_le_bytes());
    let (key, addr) = (raw[56..60].try_into().unwrap(), raw[60..68].try_into().unwrap());
    let [messages, data, fetch] = [0, 1, 3].map(|index| join(f, &raw[16..32], index));
    answer(&mut control);
    let (key, addr) = (u32::from_le_bytes(key), u64::from_le_bytes(addr));
    Fetching { control, messages, data, fetch, key, addr }
}

/// Returns a WRITE, the first request on its stream.
fn write(key: u32, addr: u64, bytes: &[u8]) -> Vec<u8> {
    let mut message = frame(WRITE, 0, bytes.len() as u32, 0);
    message[12..16].copy_from_slice(&key.to_le_bytes());
    message[16..24].copy_from_slice(&addr.to_le_bytes());
    message.extend(bytes);
    message
}

fn notification(slot: u16, number: u32) -> Vec<u8> {
    let mut message = frame(SEND, 0, 8, 0);
    message.extend(slot.to_le_bytes());
    message.extend(3u16.to_le_bytes());
    message.extend(number.to_le_bytes());
    message
}

/// Returns the record of the first request of a slot: head, bytes and tail, which is a check of
/// both.
fn request(bytes: [u8; 8]) -> Vec<u8> {
    let head = 1 | 8u64 << 32;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01b3);
    let hash = mix(1, u64::from_le_bytes(bytes));
    let check = (2..5).fold(hash ^ hash >> 32, mix);
    [head.to_le_bytes(), bytes, (!(head ^ check)).to_le_bytes()].concat()
}

/// Reads frames until one of that kind comes, and gives its payload.
fn until(stream: &mut TcpStream, op: u8) -> Vec<u8> {
    loop {
        let mut header = [0; 48];
        stream.read_exact(&mut header).unwrap();
        let mut payload = vec![0; u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize];
        stream.read_exact(&mut payload).unwrap();
        if header[0] == op {
            return payload;
        }
    }
}

/// More often than there are threads that answer calls.
const TIMES: usize = 6;

fn is_thrown_out(message: &[u8]) {
    let f = Fixture::new(ProviderKind::Tcp);
    let good = f.connect();
    for _ in 0..TIMES {
        let mut raw = session(&f);
        raw.messages.write_all(message).unwrap();
        // The end of the control stream: that session is over.
        assert_eq!(raw.control.read(&mut [0]).unwrap(), 0);
    }
    let mut reply = Vec::new();
    good.call(b"abc", &mut reply).unwrap();
    assert_eq!(reply, b"cba");
}

#[test]
fn a_write_with_immediate_data_is_no_call() {
    is_thrown_out(&frame(WRITE, HAS_IMM, 0, 0));
}

#[test]
fn nor_is_one_that_claims_to_be_placed_already() {
    is_thrown_out(&frame(WRITE, HAS_IMM | PLACED, 0, 16 << 20));
}

#[test]
fn a_message_without_a_header_is_no_call() {
    let mut message = frame(SEND, 0, 7, 0);
    message.extend([0; 7]);
    is_thrown_out(&message);
}

#[test]
fn a_message_of_a_slot_that_does_not_exist_is_no_call() {
    let mut message = frame(SEND, 0, 8, 0);
    message.extend(16u64.to_le_bytes());
    is_thrown_out(&message);
}

#[test]
fn nor_is_one_that_says_that_it_is_a_reply() {
    for kind in [1u16, 2, 3, 4, 5] {
        let mut message = frame(SEND, 0, 8, 0);
        message.extend(0u16.to_le_bytes());
        message.extend(kind.to_le_bytes());
        message.extend(0u32.to_le_bytes());
        is_thrown_out(&message);
    }
}

#[test]
fn a_receipt_of_a_deferred_reply_that_was_not_sent_ends_the_session() {
    let f = Fixture::new(ProviderKind::Tcp);
    let good = f.connect();
    // Of a slot that there is, and of one that there is not.
    for slot in [0u64, 4] {
        let mut raw = session(&f);
        let mut late = join(&f, &raw.token, 2);
        let mut message = frame(SEND, 0, 8, 0);
        message.extend(slot.to_le_bytes());
        late.write_all(&message).unwrap();
        assert_eq!(raw.control.read(&mut [0]).unwrap(), 0);
    }
    let mut reply = Vec::new();
    good.call(b"abc", &mut reply).unwrap();
    assert_eq!(reply, b"cba");
}

#[test]
fn a_message_longer_than_any_call_is_no_call() {
    let mut message = frame(SEND, 0, (8 + MAX_CALL + 1) as u32, 0);
    message.extend(vec![0; 8 + MAX_CALL + 1]);
    let f = Fixture::new(ProviderKind::Tcp);
    let good = f.connect();
    for _ in 0..TIMES {
        let mut raw = session(&f);
        // The host may close before it has read everything.
        let _ = raw.messages.write_all(&message);
        assert_eq!(raw.control.read(&mut [0]).unwrap(), 0);
    }
    let mut reply = Vec::new();
    good.call(b"abc", &mut reply).unwrap();
    assert_eq!(reply, b"cba");
}

#[test]
fn a_host_that_stops_ends_connections_that_say_nothing_and_sessions_that_are_being_made() {
    let mut f = Fixture::new(ProviderKind::Tcp);
    let mut silent = connect(&f);
    let mut halfway = connect(&f);
    halfway.write_all(&preamble(CONTROL, &[0; 16], 1)).unwrap();
    let token = answer(&mut halfway);
    let mut joining = connect(&f);
    joining.write_all(&preamble(JOIN, &token, 0)).unwrap();
    // The host's side of the queue pair is up, and waits for this one.
    joining.read_exact(&mut [0; 24]).unwrap();
    drop(f.running.take());
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    assert_eq!(joining.read(&mut [0]).unwrap(), 0);
    // It may be told why before the end.
    let mut rest = Vec::new();
    let _ = halfway.read_to_end(&mut rest);
}

/// Writes on the stream for fetching, and returns when the host has acknowledged the bytes.
fn written(raw: &mut Fetching, addr: u64, bytes: &[u8]) {
    let mut message = write(raw.key, addr, bytes);
    message[1] = ACK_WANTED;
    raw.fetch.write_all(&message).unwrap();
    until(&mut raw.fetch, ACK);
}

#[test]
fn a_call_can_be_made_by_fetching_byte_by_byte() {
    let f = Fixture::new(ProviderKind::Tcp);
    let mut raw = fetching(&f);
    let addr = raw.addr;
    written(&mut raw, addr, &request(*b"abcdefgh"));
    raw.messages.write_all(&notification(0, 1)).unwrap();
    assert_eq!(until(&mut raw.messages, SEND)[8..], *b"hgfedcba");
}

#[test]
fn nonsense_in_a_call_slot_and_notifications_of_no_call_end_the_session() {
    let f = Fixture::new(ProviderKind::Tcp);
    let good = f.connect();
    let mut half = request(*b"abcdefgh");
    half[16] ^= 1;
    let nonsense: [(&[u8], u16, u32); 5] = [
        (&[0xff; 64], 0, 1),
        (&half, 0, 1),
        (&request(*b"abcdefgh"), 0, 2),
        (&request(*b"abcdefgh"), 1, 1),
        (&[0; 8], 0, 0),
    ];
    for (bytes, slot, number) in nonsense {
        let mut raw = fetching(&f);
        let addr = raw.addr;
        written(&mut raw, addr, bytes);
        raw.messages.write_all(&notification(slot, number)).unwrap();
        assert_eq!(raw.control.read(&mut [0]).unwrap(), 0);
    }
    let mut reply = Vec::new();
    good.call(b"abc", &mut reply).unwrap();
    assert_eq!(reply, b"cba");
}

#[test]
fn a_client_cannot_write_into_the_call_slots_of_another_session() {
    let f = Fixture::new(ProviderKind::Tcp);
    for way in 0..2 {
        let (mut victim, mut intruder) = (fetching(&f), fetching(&f));
        let forged = write(victim.key, victim.addr, &request(*b"abcdefgh"));
        let stream = if way == 0 { &mut intruder.fetch } else { &mut intruder.data };
        stream.write_all(&forged).unwrap();
        until(stream, NAK);
        // There is nothing to be carried out.
        victim.messages.write_all(&notification(0, 1)).unwrap();
        assert_eq!(victim.control.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(f.service.calls.load(std::sync::atomic::Ordering::SeqCst), 0);
}
