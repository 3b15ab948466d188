//! Measures the cost of a session above its queue pair: 4 KiB WRITEs, one at a time, over shared
//! memory.
//!
//! `cargo bench -p rdmabox --bench own_cost [-- --rounds N]` prints microseconds per request as
//! JSON, for each round and as medians. `bare` posts on a queue pair of the software device and
//! polls its completion queue, with registered memory. `bare_direct` makes the queue pair execute
//! the request at once. `posted` and `direct` do the same through [`Session::write`], with
//! unregistered memory.

use std::{
    error::Error,
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rdmabox::{
    Address, Memory, MemoryServer, RemoteAddr, Session,
    provider::soft::SoftDevice,
    verbs::{
        Access, CompletionQueue, Device, DirectOp, MrHandle, QpInit, QueuePair, Rendezvous, SendOp, SendWr,
        Sge, WorkCompletion,
    },
};

const LEN: usize = 4096;
const REQUESTS: u32 = 200_000;
const SERIES: [&str; 4] = ["bare", "bare_direct", "posted", "direct"];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A queue pair, its completion queue, and memory on both sides.
struct Bare {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    local: MrHandle,
    remote: MrHandle,
    _peer: Arc<dyn QueuePair>,
}

impl Bare {
    fn new() -> Result<Bare> {
        let side = || -> Result<_> {
            let device: Arc<dyn Device> = SoftDevice::new()?;
            let pd = device.alloc_pd()?;
            let cq = device.create_cq(1024)?;
            let init = QpInit::new(Arc::clone(&cq), Arc::clone(&cq));
            let qp = pd.create_qp(init)?;
            let memory = Arc::new(Memory::shared("own-cost", LEN)?);
            let region = pd.register(&memory, 0, LEN as u64, Access::LOCAL_WRITE | Access::REMOTE_ALL)?;
            Ok((qp, cq, region))
        };
        let ((qp, cq, local), (peer, _, remote)) = (side()?, side()?);
        let (ours, theirs) = UnixStream::pair()?;
        let patience = Duration::from_secs(10);
        thread::scope(|scope| {
            let other = scope.spawn(|| peer.connect(Rendezvous::Unix(theirs), patience));
            qp.connect(Rendezvous::Unix(ours), patience)?;
            other.join().map_err(|_| "the peer's thread ended")??;
            Ok::<(), Box<dyn Error>>(())
        })?;
        Ok(Bare { qp, cq, local, remote, _peer: peer })
    }

    fn at(&self) -> RemoteAddr {
        RemoteAddr { addr: self.remote.addr(), rkey: self.remote.rkey() }
    }

    fn post_and_poll(&self) -> Result<()> {
        let sge = [Sge { addr: self.local.addr(), length: LEN as u32, lkey: self.local.lkey() }];
        let wr = SendWr::new(1, SendOp::Write { remote: self.at(), imm: None }, &sge);
        self.qp.post_send(&[wr])?;
        let mut done = [WorkCompletion::EMPTY];
        while self.cq.poll(&mut done)? == 0 {}
        Ok(())
    }

    fn execute(&self, data: &[u8]) -> Result<()> {
        match self.qp.execute_now(&mut DirectOp::Write { remote: self.at(), data }) {
            Some(Ok(())) => Ok(()),
            other => Err(format!("not executed: {other:?}").into()),
        }
    }
}

/// Returns the microseconds of a request.
fn time(mut request: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..REQUESTS / 10 {
        request()?;
    }
    let began = Instant::now();
    for _ in 0..REQUESTS {
        request()?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(REQUESTS))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn rounds() -> Result<usize> {
    let mut args = std::env::args().skip_while(|arg| arg != "--rounds").skip(1);
    args.next().map_or(Ok(5), |value| Ok(value.parse::<usize>()?.max(1)))
}

fn main() -> Result<()> {
    let rounds = rounds()?;
    let bare = Bare::new()?;
    let dir = tempfile::tempdir()?;
    let running = MemoryServer::listen(&[Address::Unix(dir.path().join("socket"))], LEN)?;
    let session = |direct| -> Result<(Arc<Session>, RemoteAddr)> {
        let session = Session::builder().direct(direct).connect(&running.addresses()[0])?;
        let base = MemoryServer::locate(&session)?.base();
        Ok((session, base))
    };
    let ((direct, base), (posting, _)) = (session(true)?, session(false)?);
    let data = vec![7; LEN];
    let mut measured: [Vec<f64>; 4] = Default::default();
    for _ in 0..rounds {
        let round = [
            time(|| bare.post_and_poll())?,
            time(|| bare.execute(&data))?,
            time(|| Ok(posting.write(base, &data)?))?,
            time(|| Ok(direct.write(base, &data)?))?,
        ];
        measured.iter_mut().zip(round).for_each(|(series, value)| series.push(value));
    }
    let fields = |values: [f64; 4]| {
        let fields = SERIES.iter().zip(values).map(|(name, value)| format!("\"{name}\": {value:.4}"));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
    };
    let each: Vec<String> =
        (0..rounds).map(|round| fields(std::array::from_fn(|i| measured[i][round]))).collect();
    println!("{{\"rounds\": [{}], \"median\": {}}}", each.join(", "), fields(measured.map(median)));
    Ok(())
}
