//! The software device and its protection domains.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    completion::{ENGINE_LOOK, SoftCq},
    device_state::{DeviceState, TetherMaker},
    limits::{MAX_CQE, MAX_INLINE, MAX_MESSAGE, MAX_QP_WR, MAX_SGE, limit},
    qp::{SoftPd, SoftQp},
    stream::ConnectedProcess,
};
use crate::verbs::{
    AtomicOps, AtomicScope, CompletionQueue, Device, DeviceAttr, ProtectionDomain, VerbsError,
};

/// A software network card, over TCP and shared memory.
/// [The verbs layer](crate::guide#the-verbs-layer) has an example.
#[derive(Debug)]
pub struct SoftDevice {
    attr: DeviceAttr,
    shared: Arc<DeviceState<SoftQp>>,
}

impl SoftDevice {
    /// Creates a device. Its engine thread starts with the first queue pair that needs it.
    pub fn new() -> Result<Arc<SoftDevice>, VerbsError> {
        let attr = DeviceAttr {
            name: "soft".into(),
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_cqe: MAX_CQE,
            max_msg_sz: MAX_MESSAGE,
            max_mr_size: i64::MAX as u64,
            max_qp_rd_atom: MAX_QP_WR,
            max_inline_data: MAX_INLINE,
            atomics: AtomicScope::Global,
            atomic_ops: AtomicOps::all(),
        };
        let shared = DeviceState {
            engine: OnceLock::new(),
            engine_look: Mutex::new(ENGINE_LOOK),
            // 0 is the event data of the wake descriptor of poll sets.
            next_qp: AtomicU32::new(1),
            tether: OnceLock::new(),
        };
        Ok(Arc::new(SoftDevice { attr, shared: Arc::new(shared) }))
    }

    /// Sets the maximum time that the engine polls before it sleeps. Has no effect after the engine
    /// has started.
    pub(crate) fn engine_look(&self, look: Duration) {
        *self.shared.engine_look.lock() = look;
    }

    /// Passes a descriptor from `make` to each queue pair of a peer that maps memory of this
    /// device. The peer holds it until none of its requests can access the memory: its queue pair
    /// is in Err, or its process has ended. The first call wins; it affects queue pairs that
    /// connect later.
    pub(crate) fn tether(
        &self,
        make: impl Fn(Option<ConnectedProcess>) -> io::Result<OwnedFd> + Send + Sync + 'static,
    ) {
        let _ = self.shared.tether.set(TetherMaker(Box::new(make)));
    }
}

impl crate::verbs::Sealed for SoftDevice {}

impl Device for SoftDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(SoftPd::new(Arc::clone(&self.shared)))
    }

    fn create_cq(&self, depth: usize) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        limit("completion queue depth", depth as u64, u64::from(MAX_CQE))?;
        Ok(Arc::new(SoftCq::<SoftQp>::new(depth.max(1))?))
    }
}

#[cfg(all(not(loom), test))]
mod tests {
    use super::*;
    use crate::{
        mapping::Memory,
        provider::soft::wire::{Header, Opcode},
        verbs::{Access, Progress, QpInit, QueuePair},
    };

    #[test]
    fn the_reported_limit_is_the_exceeded_limit() {
        let pd = SoftDevice::new().unwrap().alloc_pd().unwrap();
        let memory = Arc::new(Memory::private(4096).unwrap());
        let register = |access| pd.register(&memory, 0, 8, access);
        let _regions: Vec<_> = (0..4096).map(|_| register(Access::REMOTE_READ).unwrap()).collect();
        assert!(matches!(register(Access::REMOTE_READ), Err(VerbsError::Limit { limit: 4096, .. })));
        // Regions for local use have a separate table.
        register(Access::LOCAL_WRITE).unwrap();
    }

    /// A device and a peer that speaks the protocol by hand, connected over TCP.
    struct ByHand {
        device: Arc<SoftDevice>,
        pd: Arc<SoftPd>,
        qp: Arc<SoftQp>,
        peer: std::net::TcpStream,
    }

    impl ByHand {
        fn new() -> ByHand {
            use super::super::wire::{Hello, MAGIC, VERSION};
            use std::{io::Write, net::TcpStream};
            use zerocopy::FromZeros;

            let device = SoftDevice::new().unwrap();
            let pd = SoftPd::new(Arc::clone(&device.shared));
            let cq = device.create_cq(16).unwrap();
            let caps = crate::verbs::QpCaps { max_send_wr: 1, max_recv_wr: 1, ..Default::default() };
            let (send_cq, recv_cq, progress) = (Arc::clone(&cq), cq, Progress::Engine);
            let qp = pd.create_soft_qp(QpInit { send_cq, recv_cq, caps, progress, maps: false }).unwrap();
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let stream = crate::verbs::Rendezvous::Tcp(listener.accept().unwrap().0);
            std::thread::scope(|scope| {
                let connected = scope.spawn(|| qp.connect(stream, Duration::from_secs(60)));
                let mut hello = Hello::new_zeroed();
                (hello.magic, hello.version, hello.qp_num) = (MAGIC, VERSION.into(), 1.into());
                peer.write_all(zerocopy::IntoBytes::as_bytes(&hello)).unwrap();
                connected.join().unwrap().unwrap();
            });
            ByHand { device, pd, qp, peer }
        }
    }

    /// Returns the header of a READ of a whole region.
    fn read_of(region: &crate::verbs::MrHandle, msn: u32) -> Header {
        let mut read = Header::new(Opcode::Read, msn);
        read.length = (region.length() as u32).into();
        (read.rkey, read.addr) = (region.rkey().into(), region.addr().into());
        read
    }

    /// The host loads a word when it executes the READ, not when the kernel copies the answer.
    #[test]
    fn a_word_is_read_when_its_request_executes() {
        use super::super::wire::Hello;
        use std::io::{Read, Write};

        // Longer than socket buffers.
        const LONG: usize = 64 << 20;
        let ByHand { device: _device, pd, qp, mut peer } = ByHand::new();
        let memory = Arc::new(Memory::private(LONG + 4096).unwrap());
        let part = |offset, len| pd.register(&memory, offset, len, Access::REMOTE_READ).unwrap();
        let (long, word, bytes) = (part(0, LONG as u64), part(LONG as u64, 8), part(LONG as u64 + 12, 8));
        memory.write(LONG, &[7; 4096]);
        for (msn, region) in (0..).zip([&long, &word, &bytes]) {
            peer.write_all(zerocopy::IntoBytes::as_bytes(&read_of(region, msn))).unwrap();
        }
        // The header of the first answer has left; its payload fills the socket.
        while qp.tx().answers() < 2 {
            std::thread::yield_now();
        }
        memory.write(LONG, &[9; 4096]);
        let mut all = vec![0; size_of::<Hello>() + 3 * size_of::<Header>() + LONG + 16];
        peer.read_exact(&mut all).unwrap();
        let second = all.len() - 8 - size_of::<Header>();
        assert_eq!(all[second - 8..second], [7; 8], "the word as it was");
        assert_eq!(all[all.len() - 8..], [9; 8], "other bytes as they are");
    }

    /// A region is revoked while payload of a WRITE arrives, and while an answer waits to be sent.
    #[test]
    fn requests_under_way_on_a_revoked_region_end() {
        use crate::verbs::QpState;
        use std::io::Write;

        const LONG: usize = 64 << 20;
        for writes in [true, false] {
            let ByHand { device: _device, pd, qp, mut peer } = ByHand::new();
            let memory = Arc::new(Memory::private(LONG).unwrap());
            let register = || pd.register(&memory, 0, LONG as u64, Access::REMOTE_ALL).unwrap();
            let (other, region) = (register(), register());
            if writes {
                let mut write = Header::new(Opcode::Write, 0);
                write.payload_len = (LONG as u32).into();
                (write.rkey, write.addr) = (region.rkey().into(), region.addr().into());
                peer.write_all(zerocopy::IntoBytes::as_bytes(&write)).unwrap();
                peer.write_all(&[1; 4096]).unwrap();
                while memory.load_u64(4088) == 0 {
                    std::thread::yield_now();
                }
            } else {
                for msn in 0..2 {
                    peer.write_all(zerocopy::IntoBytes::as_bytes(&read_of(&region, msn))).unwrap();
                }
                while qp.tx().answers() != 1 {
                    std::thread::yield_now();
                }
            }
            // Nothing under way uses the other one.
            assert!(other.revoke());
            assert_eq!(qp.state(), QpState::Rts);
            assert!(region.revoke());
            assert_eq!(qp.state(), QpState::Err);
            assert!(qp.tx().is_empty());
            // The memory has another owner: bytes that the peer still sends do not arrive.
            memory.write(4096, &[2; 4096]);
            let _ = peer.write_all(&[1; 4096]);
            while let Ok(1..) = std::io::Read::read(&mut peer, &mut [0; 4096]) {}
            let mut found = [0; 4096];
            memory.read(4096, &mut found);
            assert_eq!(found, [2; 4096]);
        }
    }

    /// A peer that sends many requests and reads no answers, as an attacker would.
    #[test]
    fn few_answers_are_buffered_for_a_peer_that_reads_none() {
        use std::{io::Write, time::Instant};

        const LEN: u32 = 64 << 10;
        let ByHand { device: _device, pd, qp, mut peer } = ByHand::new();
        let memory = Arc::new(Memory::shared("test", LEN as usize).unwrap());
        let region = pd.register(&memory, 0, LEN.into(), Access::REMOTE_READ).unwrap();
        let most = super::super::qp::max_answers(1);
        peer.set_nonblocking(true).unwrap();
        let begin = Instant::now();
        let mut msn = 0;
        // Until the queue pair stops reading requests.
        while !qp.must_wait() && qp.tx().answers() <= most && begin.elapsed() < Duration::from_secs(60) {
            match peer.write(zerocopy::IntoBytes::as_bytes(&read_of(&region, msn))) {
                Ok(len) => assert_eq!(len, size_of::<Header>()),
                Err(_) => std::thread::yield_now(),
            }
            msn = msn.wrapping_add(1);
        }
        assert!(qp.must_wait() && qp.tx().answers() <= most, "{} answers", qp.tx().answers());
    }
}
