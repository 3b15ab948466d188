//! A peer of plain bytes: it performs the handshake, then sends the frames that a test chooses.
//! The frames are defined here a second time, so that a change of the wire format is noticed.

use std::{
    io::{ErrorKind, IoSlice, Read, Write},
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

use parking_lot::Mutex;
use rdmabox::{
    memory::Memory,
    tls::TlsStream,
    verbs::{QpState, Rendezvous, WcStatus, WorkCompletion},
};
use socket2::{MsgHdr, Socket};

use crate::fixture::{Config, Side, WAIT_LIMIT, until};

pub(crate) const ACK_WANTED: u8 = 1;
pub(crate) const IMM: u8 = 2;
pub(crate) const PLACED: u8 = 4;

/// Longest message.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// Bytes of a header.
pub(crate) const FRAME: usize = 48;
const HELLO: usize = 24;

/// A header, with the names that it has on the wire.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) status: u8,
    pub(crate) payload: u32,
    pub(crate) msn: u32,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) imm: u32,
    pub(crate) length: u32,
    pub(crate) arg0: u64,
    pub(crate) arg1: u64,
}

impl Frame {
    fn new(opcode: u8, msn: u32) -> Frame {
        Frame { opcode, msn, ..Frame::default() }
    }

    pub(crate) fn send(msn: u32) -> Frame {
        Frame::new(1, msn)
    }

    pub(crate) fn write(msn: u32) -> Frame {
        Frame::new(2, msn)
    }

    pub(crate) fn read(msn: u32) -> Frame {
        Frame::new(3, msn)
    }

    pub(crate) fn fetch_add(msn: u32) -> Frame {
        Frame::new(5, msn)
    }

    /// Returns an atomic of the kind `arg1`.
    pub(crate) fn fetch_op(msn: u32, arg1: u64) -> Frame {
        Frame { arg1, ..Frame::new(6, msn) }
    }

    pub(crate) fn ack(msn: u32) -> Frame {
        Frame::new(16, msn)
    }

    pub(crate) fn nak(msn: u32, status: WcStatus) -> Frame {
        Frame { status: status.code() as u8, ..Frame::new(17, msn) }
    }

    pub(crate) fn read_response(msn: u32, payload: u32) -> Frame {
        Frame { payload, ..Frame::new(18, msn) }
    }

    pub(crate) fn atomic_response(msn: u32) -> Frame {
        Frame::new(19, msn)
    }

    /// Returns a handle to memory of `len` bytes.
    pub(crate) fn memory(id: u64, len: usize) -> Frame {
        Frame { arg0: len as u64, arg1: id, ..Frame::new(32, 0) }
    }

    /// Returns the frame with a descriptor that the peer holds for as long as it touches memory of
    /// this side.
    pub(crate) fn tether() -> Frame {
        Frame::new(33, 0)
    }

    pub(crate) fn bytes(self) -> [u8; FRAME] {
        let mut out = Vec::with_capacity(FRAME);
        out.extend([self.opcode, self.flags, self.status, 0]);
        for word in [self.payload, self.msn, self.rkey] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.addr.to_le_bytes());
        for word in [self.imm, self.length] {
            out.extend(word.to_le_bytes());
        }
        for word in [self.arg0, self.arg1] {
            out.extend(word.to_le_bytes());
        }
        out.try_into().expect("the length of a header")
    }
}

/// The other end of a connection.
#[derive(Debug)]
pub(crate) struct RawPeer {
    socket: Socket,
    /// With TLS, the stream that encrypts its bytes.
    tls: Option<Mutex<TlsStream>>,
}

/// Both directions of a stream.
trait Duplex: Read + Write {}

impl<T: Read + Write> Duplex for T {}

impl RawPeer {
    /// Connects `side` to a peer that has no memory to share: everything goes over the socket.
    pub(crate) fn meet(config: Config, side: &Side) -> RawPeer {
        RawPeer::meet_with(config, side, false, None)
    }

    /// Returns a peer of the same host, with a region table in which there is nothing.
    pub(crate) fn meet_sharing(config: Config, side: &Side) -> RawPeer {
        RawPeer::meet_with(config, side, true, None)
    }

    /// Connects with small socket buffers.
    pub(crate) fn meet_narrow(config: Config, side: &Side, buffer: usize) -> RawPeer {
        RawPeer::meet_with(config, side, false, Some(buffer))
    }

    fn meet_with(config: Config, side: &Side, sharing: bool, buffer: Option<usize>) -> RawPeer {
        let (theirs, mine) = config.streams();
        let peer = match mine {
            Rendezvous::Unix(stream) => RawPeer { socket: stream.into(), tls: None },
            Rendezvous::Tcp(stream) => RawPeer { socket: stream.into(), tls: None },
            Rendezvous::Tls(stream) => {
                let socket = stream.tcp().try_clone().expect("dup").into();
                RawPeer { socket, tls: Some(Mutex::new(stream)) }
            }
            other => panic!("no socket of {other:?}"),
        };
        if let Some(bytes) = buffer {
            let theirs = match &theirs {
                Rendezvous::Unix(stream) => socket2::SockRef::from(stream),
                Rendezvous::Tcp(stream) => socket2::SockRef::from(stream),
                Rendezvous::Tls(stream) => socket2::SockRef::from(stream.tcp()),
                other => panic!("no socket of {other:?}"),
            };
            for socket in [&theirs, &socket2::SockRef::from(&peer.socket)] {
                socket.set_send_buffer_size(bytes).expect("SO_SNDBUF");
                socket.set_recv_buffer_size(bytes).expect("SO_RCVBUF");
            }
        }
        // More than any table needs, and no page of it is ever touched.
        let table = sharing.then(|| Memory::shared("table", 64 << 20).expect("memory"));
        let mut hello = b"rdmabox\x01".to_vec();
        hello.extend(3u32.to_le_bytes());
        hello.extend(9u32.to_le_bytes());
        hello.extend((table.as_ref().map_or(0, Memory::len) as u64).to_le_bytes());
        let handles: Vec<_> = table.iter().map(|table| table.fd().expect("shared")).collect();
        peer.say_with(&hello, &handles);
        side.qp.connect(theirs, WAIT_LIMIT).expect("connect");
        let mut hello = [0; HELLO];
        peer.with(|stream| stream.read_exact(&mut hello)).expect("hello");
        assert_eq!(hello[..10], *b"rdmabox\x01\x03\0", "the version that these frames are of");
        peer
    }

    fn with<T>(&self, with: impl FnOnce(&mut dyn Duplex) -> T) -> T {
        match &self.tls {
            None => with(&mut &self.socket),
            Some(tls) => with(&mut *tls.lock()),
        }
    }

    /// Says something that fits the socket.
    pub(crate) fn say(&self, bytes: &[u8]) {
        self.with(|stream| stream.write_all(bytes)).expect("write");
    }

    /// Says something to an end that may have hung up.
    pub(crate) fn try_say(&self, bytes: &[u8]) -> bool {
        self.with(|stream| stream.write_all(bytes)).is_ok()
    }

    /// Says something with descriptors attached to its first byte.
    pub(crate) fn say_with(&self, bytes: &[u8], handles: &[BorrowedFd<'_>]) {
        assert!(self.try_say_with(bytes, handles), "the other end has hung up");
    }

    /// Says the same to an end that may have hung up.
    pub(crate) fn try_say_with(&self, bytes: &[u8], handles: &[BorrowedFd<'_>]) -> bool {
        if self.tls.is_some() {
            assert!(handles.is_empty(), "nothing of the kind goes over a network");
            return self.try_say(bytes);
        }
        let mut control = Vec::new();
        if !handles.is_empty() {
            let (level, rights) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            control.extend((16 + 4 * handles.len()).to_ne_bytes());
            control.extend(level.to_ne_bytes());
            control.extend(rights.to_ne_bytes());
            handles.iter().for_each(|handle| control.extend(handle.as_raw_fd().to_ne_bytes()));
            control.resize(control.len().next_multiple_of(8), 0);
        }
        let buffers = [IoSlice::new(bytes)];
        let message = MsgHdr::new().with_buffers(&buffers);
        let message = if handles.is_empty() { message } else { message.with_control(&control) };
        match self.socket.sendmsg(&message, libc::MSG_NOSIGNAL) {
            Ok(sent) => {
                assert_eq!(sent, bytes.len(), "short messages go as a whole");
                true
            }
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{e}");
                false
            }
        }
    }

    /// Says as much as goes without waiting.
    pub(crate) fn offer(&self, bytes: &[u8]) -> usize {
        self.socket.set_nonblocking(true).expect("O_NONBLOCK");
        match self.with(|stream| stream.write(bytes)) {
            Ok(count) => count,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
                0
            }
        }
    }

    /// Appends the received bytes to `into`, without blocking. Returns false at the end of the
    /// stream.
    pub(crate) fn hear(&self, into: &mut Vec<u8>) -> bool {
        self.socket.set_nonblocking(true).expect("O_NONBLOCK");
        let mut bytes = [0; 64 << 10];
        // Retries bytes that the socket refused before.
        let read = self.with(|stream| {
            let _ = stream.flush();
            stream.read(&mut bytes)
        });
        match read {
            Ok(0) => false,
            Ok(count) => {
                into.extend_from_slice(&bytes[..count]);
                true
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => true,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}");
                false
            }
        }
    }

    /// Resets the connection: bytes in flight are lost where the transport can lose them.
    pub(crate) fn reset(self) {
        // Unix sockets know no such thing.
        let _ = self.socket.set_linger(Some(Duration::ZERO));
    }
}

/// Returns the next `count` completions of sends of a side on its own.
pub(crate) fn sends(side: &Side, count: usize) -> Vec<(u64, WcStatus)> {
    take(side, count, Side::take_send)
}

/// Returns the next `count` completions of receives.
pub(crate) fn recvs(side: &Side, count: usize) -> Vec<(u64, WcStatus)> {
    take(side, count, Side::take_recv)
}

fn take(side: &Side, count: usize, next: impl Fn(&Side) -> Option<WorkCompletion>) -> Vec<(u64, WcStatus)> {
    let one = |_| {
        until("a completion", || {
            side.pump();
            next(side)
        })
    };
    (0..count).map(one).map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Waits for the connection to end.
pub(crate) fn ends(side: &Side, what: &str) {
    until(what, || {
        side.pump();
        (side.qp.state() == QpState::Err).then_some(())
    });
}

/// Polls often, and panics if anything completes.
pub(crate) fn quiet(side: &Side) {
    for _ in 0..500 {
        side.pump();
        std::thread::yield_now();
    }
    assert_eq!(side.pending(), []);
}
