//! The software device and its protection domains.

use std::{
    any::Any,
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    completion::{ENGINE_LOOK, Engine, PollSet, SoftCq},
    memory::{OwnTable, PeerMappings, Region, Regions},
    qp::{SoftQp, SoftQpInit},
    stream::ConnectedProcess,
    wire::{FLAG_PLACED, Header, Opcode},
};
use crate::{
    mapping::Memory,
    verbs::{
        Access, AtomicScope, CompletionQueue, Device, DeviceAttr, MemoryRegion, MrHandle, Progress,
        ProtectionDomain, QpInit, QueuePair, VerbsError,
    },
};

/// Maximum message length in bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 30;
/// Maximum number of outstanding requests per work queue.
pub(crate) const MAX_QP_WR: u32 = 1 << 16;
const MAX_SGE: u32 = 256;
const MAX_INLINE: u32 = 1024;
const MAX_CQE: u32 = 1 << 20;

/// A software network card.
#[derive(Debug)]
pub struct SoftDevice {
    attr: DeviceAttr,
    shared: Arc<Shared>,
}

/// Creates the descriptor that a peer holds while it may access memory. The argument is `None` if
/// the kernel cannot name the peer's process here.
struct TetherMaker(Box<dyn Fn(Option<ConnectedProcess>) -> io::Result<OwnedFd> + Send + Sync>);

impl std::fmt::Debug for TetherMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TetherMaker")
    }
}

/// State that protection domains and queue pairs share with their device.
#[derive(Debug)]
struct Shared {
    engine: OnceLock<Engine>,
    /// Maximum time that the engine polls before it sleeps. Locked while the engine starts.
    engine_look: Mutex<Duration>,
    next_qp: AtomicU32,
    /// See [`SoftDevice::tether`].
    tether: OnceLock<TetherMaker>,
}

impl Shared {
    fn engine_set(&self) -> Result<Arc<PollSet>, VerbsError> {
        let look = self.engine_look.lock();
        if let Some(engine) = self.engine.get() {
            return Ok(Arc::clone(engine.set()));
        }
        let engine = Engine::start(*look)?;
        let set = Arc::clone(engine.set());
        // `engine_look` is locked, so no other thread can set the engine.
        let _ = self.engine.set(engine);
        Ok(set)
    }
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
        };
        let shared = Shared {
            engine: OnceLock::new(),
            engine_look: Mutex::new(ENGINE_LOOK),
            // 0 is the wake token of poll sets.
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

fn limit(what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
    if asked > limit { Err(VerbsError::Limit { what, asked, limit }) } else { Ok(()) }
}

impl Device for SoftDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(SoftPd::new(Arc::clone(&self.shared)))
    }

    fn create_cq(&self, depth: usize) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        limit("completion queue depth", depth as u64, u64::from(MAX_CQE))?;
        Ok(Arc::new(SoftCq::new(depth.max(1))?))
    }
}

/// Memory whose handle peers of this host have or will get.
#[derive(Debug)]
struct SharedMemory {
    id: u64,
    memory: Weak<Memory>,
    writable: bool,
}

#[derive(Debug, Default)]
struct Sharing {
    table: Option<OwnTable>,
    memories: HashMap<u64, SharedMemory>,
    next_id: u64,
    peers: Vec<Weak<SoftQp>>,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct SoftPd {
    me: Weak<SoftPd>,
    device: Arc<Shared>,
    regions: Regions,
    sharing: Mutex<Sharing>,
    peer_mappings: Arc<PeerMappings>,
}

impl SoftPd {
    fn new(device: Arc<Shared>) -> Arc<SoftPd> {
        Arc::new_cyclic(|me| SoftPd {
            me: me.clone(),
            device,
            regions: Regions::default(),
            sharing: Mutex::default(),
            peer_mappings: Arc::default(),
        })
    }

    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(crate) fn peer_mappings(&self) -> &Arc<PeerMappings> {
        &self.peer_mappings
    }

    /// Returns the descriptor and length of the region table, for a peer that can map it.
    pub(crate) fn table_for_peer(&self, unix: bool) -> Result<Option<(OwnedFd, usize)>, VerbsError> {
        if !unix {
            return Ok(None);
        }
        let mut sharing = self.sharing.lock();
        let table = sharing.table()?;
        let fd = table.memory().peer_fd(false).map_err(memory_error)?;
        Ok(Some((fd, table.memory().len())))
    }

    /// Sends a newly connected peer every existing memory handle, and registers it for later
    /// handles.
    pub(crate) fn share_with(&self, qp: &Weak<SoftQp>) {
        let Some(strong) = qp.upgrade() else { return };
        if let Some(tether) = self.device.tether.get() {
            // The peer receives descriptors in order, so it has the tether before any memory.
            match (tether.0)(strong.connected_process()) {
                Ok(fd) => strong.send_descriptor(&Header::new(Opcode::Tether, 0), fd),
                Err(e) => {
                    log::error!("creating the tether failed, the peer gets no memory: {e}");
                    return;
                }
            }
        }
        let mut sharing = self.sharing.lock();
        for entry in sharing.memories.values() {
            if let Some(memory) = entry.memory.upgrade() {
                announce(&strong, &memory, entry.id, entry.writable);
            }
        }
        sharing.peers.retain(|peer| peer.strong_count() > 0);
        sharing.peers.push(qp.clone());
    }

    /// Makes a region visible to the peers of this host.
    fn publish(&self, region: &Region, memory: &Arc<Memory>) -> Result<(), VerbsError> {
        let writable = region.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let mut sharing = self.sharing.lock();
        sharing.table()?;
        sharing.memories.retain(|_, entry| entry.memory.strong_count() > 0);
        let known = sharing
            .memories
            .values_mut()
            .find(|entry| std::ptr::eq(entry.memory.as_ptr(), Arc::as_ptr(memory)));
        let (id, news) = match known {
            Some(entry) => {
                let news = writable && !entry.writable;
                entry.writable |= writable;
                (entry.id, news)
            }
            None => {
                let id = sharing.next_id;
                sharing.next_id += 1;
                let entry = SharedMemory { id, memory: Arc::downgrade(memory), writable };
                sharing.memories.insert(id, entry);
                (id, true)
            }
        };
        if let Some(table) = &sharing.table {
            table.publish(region, id, region.addr - memory.addr());
        }
        if news {
            for peer in sharing.peers.iter().filter_map(Weak::upgrade) {
                announce(&peer, memory, id, writable);
            }
        }
        Ok(())
    }

    fn deregister(&self, region: &Region) {
        // The table entry goes first, because the index may be reused as soon as it is free.
        if region.access.intersects(Access::REMOTE_ANY)
            && let Some(table) = &self.sharing.lock().table
        {
            table.revoke(region);
        }
        self.regions.remove(region.key);
    }

    fn add(
        &self,
        addr: u64,
        length: u64,
        access: Access,
        memory: Option<&Arc<Memory>>,
    ) -> Result<MrHandle, VerbsError> {
        let limit = Regions::limit(access) as u64;
        let too_many = VerbsError::Limit { what: "number of memory regions", asked: limit + 1, limit };
        let region = self.regions.insert(addr, length, access, memory.cloned()).ok_or(too_many)?;
        // This handle deregisters the region if a later step fails. The upgrade cannot fail,
        // because `self` is borrowed.
        let Some(pd) = self.me.upgrade() else { return Err(VerbsError::Foreign("the protection domain")) };
        let handle = SoftMr { region, pd };
        if let Some(memory) = memory
            && access.intersects(Access::REMOTE_ANY)
            && memory.fd().is_some()
        {
            self.publish(&handle.region, memory)?;
        }
        Ok(Arc::new(handle))
    }
}

impl Sharing {
    fn table(&mut self) -> Result<&OwnTable, VerbsError> {
        if self.table.is_none() {
            self.table = Some(OwnTable::new().map_err(memory_error)?);
        }
        self.table.as_ref().ok_or(VerbsError::PeerGone)
    }
}

fn memory_error(e: crate::mapping::MemoryError) -> VerbsError {
    match e {
        crate::mapping::MemoryError::Os { what, source } => VerbsError::Os { what, source },
        other => VerbsError::os("memory", std::io::Error::other(other.to_string())),
    }
}

fn announce(qp: &SoftQp, memory: &Memory, id: u64, writable: bool) {
    let mut header = Header::new(Opcode::Memory, 0);
    header.flags = if writable { FLAG_PLACED } else { 0 };
    header.arg0 = (memory.len() as u64).into();
    header.arg1 = id.into();
    match memory.peer_fd(writable) {
        Ok(fd) => qp.send_descriptor(&header, fd),
        Err(e) => log::error!("cannot pass memory to a peer, its requests will fail: {e}"),
    }
}

impl ProtectionDomain for SoftPd {
    fn register(
        &self,
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        let size = memory.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(VerbsError::Range { offset, length, size });
        }
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !memory.is_writable() {
            return Err(VerbsError::NotShareable { access, why: "the mapping is read-only" });
        }
        self.add(memory.addr() + offset, length, access, Some(memory))
    }

    unsafe fn register_borrowed(
        &self,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        if access.intersects(Access::REMOTE_ANY) {
            return Err(VerbsError::NotShareable { access, why: "borrowed memory is for local use only" });
        }
        self.add(addr, length, access, None)
    }

    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        Ok(self.create_soft_qp(init)?)
    }
}

impl SoftPd {
    fn create_soft_qp(&self, init: QpInit) -> Result<Arc<SoftQp>, VerbsError> {
        let soft = |cq: Arc<dyn CompletionQueue>| -> Result<Arc<SoftCq>, VerbsError> {
            let any: Arc<dyn Any + Send + Sync> = cq;
            any.downcast().map_err(|_| VerbsError::Foreign("the completion queue"))
        };
        let (send_cq, recv_cq) = (soft(init.send_cq)?, soft(init.recv_cq)?);
        let caps = init.caps;
        limit("send queue depth", caps.max_send_wr.into(), MAX_QP_WR.into())?;
        limit("receive queue depth", caps.max_recv_wr.into(), MAX_QP_WR.into())?;
        limit("send scatter/gather elements", caps.max_send_sge.into(), MAX_SGE.into())?;
        limit("receive scatter/gather elements", caps.max_recv_sge.into(), MAX_SGE.into())?;
        limit("inline data", caps.max_inline_data.into(), MAX_INLINE.into())?;
        let mut sets = SmallVec::new();
        match init.progress {
            Progress::Engine => sets.push(self.device.engine_set()?),
            Progress::Caller => {
                sets.push(Arc::clone(send_cq.set()));
                if !Arc::ptr_eq(&send_cq, &recv_cq) {
                    sets.push(Arc::clone(recv_cq.set()));
                }
            }
        }
        let num = self.device.next_qp.fetch_add(1, Ordering::Relaxed);
        let pd = self.me.upgrade().ok_or(VerbsError::Foreign("the protection domain"))?;
        Ok(SoftQp::new(SoftQpInit { num, caps, pd, send_cq, recv_cq, sets, maps: init.maps }))
    }
}

/// A registered region. The drop deregisters it.
#[derive(Debug)]
struct SoftMr {
    region: Arc<Region>,
    pd: Arc<SoftPd>,
}

impl MemoryRegion for SoftMr {
    fn addr(&self) -> u64 {
        self.region.addr
    }

    fn length(&self) -> u64 {
        self.region.length
    }

    fn lkey(&self) -> u32 {
        self.region.key
    }

    fn rkey(&self) -> u32 {
        self.region.key
    }

    fn access(&self) -> Access {
        self.region.access
    }
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        self.pd.deregister(&self.region);
    }
}

#[cfg(all(not(loom), test))]
mod tests {
    use super::*;

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

    /// A peer that sends many requests and reads no answers, as an attacker would.
    #[test]
    fn few_answers_are_buffered_for_a_peer_that_reads_none() {
        use std::{io::Write, net::TcpStream, time::Instant};

        use zerocopy::FromZeros;

        use super::super::wire::{Hello, MAGIC, VERSION};

        const LEN: u32 = 64 << 10;
        let device = SoftDevice::new().unwrap();
        let pd = SoftPd::new(Arc::clone(&device.shared));
        let memory = Arc::new(Memory::shared("test", LEN as usize).unwrap());
        let region = pd.register(&memory, 0, LEN.into(), Access::REMOTE_READ).unwrap();
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
        let most = super::super::qp::max_answers(1);
        peer.set_nonblocking(true).unwrap();
        let begin = Instant::now();
        let mut msn = 0;
        // Until the queue pair stops reading requests.
        while !qp.must_wait() && qp.tx().answers() <= most && begin.elapsed() < Duration::from_secs(60) {
            let mut read = Header::new(Opcode::Read, msn);
            (read.length, read.rkey, read.addr) = (LEN.into(), region.rkey().into(), region.addr().into());
            match peer.write(zerocopy::IntoBytes::as_bytes(&read)) {
                Ok(len) => assert_eq!(len, size_of::<Header>()),
                Err(_) => std::thread::yield_now(),
            }
            msn = msn.wrapping_add(1);
        }
        assert!(qp.must_wait() && qp.tx().answers() <= most, "{} answers", qp.tx().answers());
    }
}
