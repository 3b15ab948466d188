//! Fuzzes a software queue pair with a peer that sends arbitrary frames.
//!
//! The peer completes the handshake over a Unix socket but shares no memory. All data therefore
//! uses the stream, as over TCP. The address and key of registered memory differ between runs, so
//! inputs contain placeholders for them.

use std::{
    cell::RefCell,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use rdmabox::{
    Access, Memory, RemoteAddr,
    provider::soft::SoftDevice,
    verbs::{
        AtomicOp, CompletionQueue, Device, MrHandle, Progress, ProtectionDomain, QpInit, QpState, QueuePair,
        RecvWr, Rendezvous, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
    },
};

/// Placeholder for the address of the registered memory. The lower 16 bits are an offset.
const PLACE: u64 = 0x5eed_cafe_b0a7_0000;
/// Placeholder for the key of the registered memory.
const KEY: u32 = 0x5eed_0b0e;

const PAGE: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Number of requests that are posted before the peer sends.
const SENDS: u64 = 5;
const RECEIVES: u64 = 3;

/// State that all inputs share: five pages of memory, the second of which is registered for the
/// peer.
struct Bench {
    pd: Arc<dyn ProtectionDomain>,
    sends: Arc<dyn CompletionQueue>,
    receives: Arc<dyn CompletionQueue>,
    memory: Arc<Memory>,
    exported: MrHandle,
    own: MrHandle,
}

impl Bench {
    fn new() -> Result<Bench, Box<dyn std::error::Error>> {
        let device = SoftDevice::new()?;
        let pd = device.alloc_pd()?;
        let memory = Arc::new(Memory::private(5 * PAGE)?);
        let exported = pd.register(&memory, PAGE as u64, PAGE as u64, Access::REMOTE_ALL)?;
        let own = pd.register(&memory, 3 * PAGE as u64, PAGE as u64, Access::LOCAL_WRITE)?;
        let (sends, receives) = (device.create_cq(64)?, device.create_cq(64)?);
        Ok(Bench { pd, sends, receives, memory, exported, own })
    }

    /// Connects a queue pair and returns it with the peer's end of its stream.
    fn connect(&self) -> Result<(Arc<dyn QueuePair>, UnixStream), Box<dyn std::error::Error>> {
        let (mine, mut theirs) = UnixStream::pair()?;
        let mut init = QpInit::new(Arc::clone(&self.sends), Arc::clone(&self.receives));
        (init.progress, init.maps) = (Progress::Caller, false);
        let qp = self.pd.create_qp(init)?;
        let mut hello = b"rdmabox\x01\x03\0\0\0\x09\0\0\0".to_vec();
        hello.extend([0; 8]);
        theirs.write_all(&hello)?;
        qp.connect(Rendezvous::Unix(mine), TIMEOUT)?;
        Ok((qp, theirs))
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.own.addr() + offset, length, lkey: self.own.lkey() }
    }

    /// Posts one request of each kind, and `RECEIVES` receives.
    fn post(&self, qp: &dyn QueuePair) {
        let remote = RemoteAddr { addr: PLACE, rkey: 1 };
        let places =
            [self.sge(0, 64), self.sge(64, 64), self.sge(128, 8), self.sge(136, 16), self.sge(152, 8)];
        let ops = [
            SendOp::Write { remote, imm: None },
            SendOp::Read { remote },
            SendOp::FetchAdd { remote, add: 1 },
            SendOp::Send { imm: None },
            SendOp::FetchOp { remote, op: AtomicOp::Max(1) },
        ];
        for (at, (op, sge)) in ops.into_iter().zip(&places).enumerate() {
            let sges = std::slice::from_ref(sge);
            let list = [SendWr::new(at as u64, op, sges)];
            // The peer may have disconnected.
            let _ = qp.post_send(&list);
        }
        for wr_id in 0..RECEIVES {
            let sges = [self.sge(1024 * (wr_id + 1), 256)];
            let _ = qp.post_recv(&[RecvWr { wr_id, sges: &sges }]);
        }
    }

    /// Asserts that the peer has changed only the registered page and the buffers of reads and
    /// receives.
    fn assert_untouched(&self) {
        let mut bytes = vec![0; self.memory.len()];
        self.memory.read(0, &mut bytes);
        for range in [0..PAGE, 2 * PAGE..3 * PAGE, 3 * PAGE + 160..3 * PAGE + 1024, 4 * PAGE..5 * PAGE] {
            assert!(bytes[range.clone()].iter().all(|byte| *byte == 0), "{range:?} was written to");
        }
        // The buffers of the WRITE and the SEND are only read.
        for range in [3 * PAGE..3 * PAGE + 64, 3 * PAGE + 136..3 * PAGE + 152] {
            assert!(bytes[range.clone()].iter().all(|byte| *byte == 0), "{range:?} was written to");
        }
    }
}

/// Replaces the placeholders by the address and key of this process.
fn substitute_placeholders(input: &[u8], exported: &MrHandle) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let word = bytes[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
        let half = bytes[at..].first_chunk().map(|half| u32::from_le_bytes(*half));
        if let Some(word) = word.filter(|word| word & !0xffff == PLACE) {
            let addr = exported.addr().wrapping_add(word & 0xffff);
            bytes[at..at + 8].copy_from_slice(&addr.to_le_bytes());
            at += 8;
        } else if half == Some(KEY) {
            bytes[at..at + 4].copy_from_slice(&exported.rkey().to_le_bytes());
            at += 4;
        } else {
            at += 1;
        }
    }
    bytes
}

/// Polls all completions. Asserts that requests complete once and in order, and that no success
/// follows a failure.
fn drain(cq: &dyn CompletionQueue, next: &mut u64, failed: &mut bool) {
    let mut some = [WorkCompletion::EMPTY; 8];
    while let Ok(count @ 1..) = cq.poll(&mut some) {
        for wc in &some[..count] {
            assert_eq!(wc.wr_id, *next, "out of turn");
            assert!(!*failed || wc.status != WcStatus::Success, "a success behind a failure");
            *failed |= wc.status != WcStatus::Success;
            *next += 1;
        }
    }
}

/// Sends `input` to a queue pair. The first byte is the number of pieces.
///
/// Asserts that the queue pair writes only to registered memory and posted buffers, and that every
/// posted request completes once and in order.
pub(super) fn stream(input: &[u8]) {
    thread_local!(static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) });
    BENCH.with_borrow_mut(|bench| {
        let bench = bench.get_or_insert_with(|| Bench::new().unwrap_or_else(|e| panic!("no device: {e}")));
        let (qp, mut theirs) = bench.connect().unwrap_or_else(|e| panic!("no connection: {e}"));
        bench.post(&*qp);
        let (pieces, frames) = input.split_first().map_or((1, input), |(first, rest)| (1 + first % 8, rest));
        let frames = substitute_placeholders(frames, &bench.exported);
        let (mut sent, mut received, mut failed) = (0, 0, [false; 2]);
        let mut poll = || {
            drain(&*bench.sends, &mut sent, &mut failed[0]);
            drain(&*bench.receives, &mut received, &mut failed[1]);
        };
        for piece in frames.chunks(frames.len().div_ceil(usize::from(pieces)).max(1)) {
            if theirs.write_all(piece).is_err() {
                break;
            }
            poll();
        }
        discard_output(&mut theirs);
        drop(theirs);
        poll();
        qp.to_error();
        poll();
        assert_eq!(qp.state(), QpState::Err);
        assert_eq!((sent, received), (SENDS, RECEIVES), "each posted request completes once");
        bench.assert_untouched();
        wipe(bench);
    });
}

/// Reads and discards the output of the queue pair, so that it never blocks on a full socket.
fn discard_output(stream: &mut UnixStream) {
    let mut bytes = [0; 16 << 10];
    if stream.set_nonblocking(true).is_ok() {
        while matches!(stream.read(&mut bytes), Ok(1..)) {}
    }
}

/// Zeroes the memory for the next input.
fn wipe(bench: &Bench) {
    bench.memory.write(PAGE, &[0; PAGE]);
    bench.memory.write(3 * PAGE, &[0; PAGE]);
}

/// Returns frames of honest peers.
pub(super) fn stream_seeds() -> Vec<Vec<u8>> {
    let frame = |opcode: u8, flags: u8, msn: u32, payload: u32, (length, arg0): (u32, u64)| {
        let mut bytes = vec![opcode, flags, 0, 0];
        for word in [payload, msn, KEY] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend((PLACE + 64).to_le_bytes());
        bytes.extend(7u32.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(arg0.to_le_bytes());
        bytes.extend(5u64.to_le_bytes());
        bytes
    };
    let with = |mut frame: Vec<u8>, payload: usize| {
        frame.extend((0..payload).map(|at| at as u8));
        frame
    };
    let (ack, imm) = (1, 2);
    let send = |msn| with(frame(1, ack, msn, 16, (0, 0)), 16);
    let write = |msn| with(frame(2, ack, msn, 100, (0, 0)), 100);
    let write_with_imm = |msn| with(frame(2, ack | imm, msn, 8, (0, 0)), 8);
    let read = |msn| frame(3, 0, msn, 0, (200, 0));
    let swap = |msn| frame(4, 0, msn, 0, (0, 0));
    let add = |msn| frame(5, 0, msn, 0, (0, 3));
    let minimum = |msn| frame(6, 0, msn, 0, (0, 3));
    let unknown_atomic = |msn| {
        let mut frame = minimum(msn);
        frame[40..].copy_from_slice(&7u64.to_le_bytes());
        frame
    };
    let acked = |msn| frame(16, 0, msn, 0, (0, 0));
    let nak = |msn| frame(17, 0, msn, 0, (0, 0));
    let response = |msn| with(frame(18, 0, msn, 64, (0, 0)), 64);
    let old_value = |msn| frame(19, 0, msn, 0, (0, 9));
    let memory = || frame(32, 4, 0, 0, (0, 4096));
    let tether = || frame(33, 0, 0, 0, (0, 0));
    let seed = |frames: &[Vec<u8>]| [&[2][..], &frames.concat()].concat();
    vec![
        seed(&[send(0), send(1), write_with_imm(2), write(3)]),
        seed(&[write(0), read(1), swap(2), add(3), read(4)]),
        seed(&[acked(0), response(1), old_value(2), acked(3)]),
        seed(&[send(0), acked(0), read(1), response(1), add(2), old_value(2), write(3), acked(3)]),
        seed(&[acked(0), nak(1)]),
        seed(&[minimum(0), minimum(1), read(2), unknown_atomic(3)]),
        seed(&[acked(0), response(1), old_value(2), acked(3), old_value(4)]),
        seed(&[tether(), memory(), write(0)]),
    ]
}
