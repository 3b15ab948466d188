//! Tests of mixed requests on one queue pair, against a model that executes one request after the
//! other.
//!
//! Requests of every kind, signaled or not, inline or not, go in lists of any length, and
//! receives come late. Half of the runs contain a request that the peer refuses. A request behind
//! a READ or an atomic is fenced where the specification demands it.

use std::time::{Duration, Instant};

use rdmabox::verbs::{
    Access, AtomicOp, AtomicOps, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};

use crate::fixture::{Config, Pair, Provider, Random, Setup, pattern};

conformance! {
    random_lists_behave_as_one_request_after_another,
}

const LEN: usize = 4096;
const REQUESTS: usize = 48;

#[derive(Clone, Debug)]
struct Request {
    op: SendOp,
    /// Bytes sent, or room for bytes fetched, at `local`.
    len: usize,
    local: usize,
    inline: Option<Vec<u8>>,
    flags: SendFlags,
    refused: bool,
}

/// Remote memory, and the expected result of each fetching request.
struct Model {
    memory: Vec<u8>,
    fetched: Vec<(usize, Vec<u8>)>,
    /// Expected immediate data and length of each receive.
    messages: Vec<(Option<u32>, usize)>,
}

impl Model {
    fn run(&mut self, base: u64, request: &Request, data: &[u8]) {
        let place = |remote: RemoteAddr| (remote.addr - base) as usize;
        let mut word = |remote: RemoteAddr, change: &dyn Fn(u64) -> u64| {
            let bytes = &mut self.memory[place(remote)..place(remote) + 8];
            let old = u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
            bytes.copy_from_slice(&change(old).to_ne_bytes());
            self.fetched.push((request.local, old.to_ne_bytes().to_vec()));
        };
        match request.op {
            SendOp::Send { imm } => self.messages.push((imm, request.len)),
            SendOp::Write { remote, imm } => {
                self.memory[place(remote)..place(remote) + request.len].copy_from_slice(data);
                if imm.is_some() {
                    self.messages.push((imm, request.len));
                }
            }
            SendOp::Read { remote } => {
                let bytes = self.memory[place(remote)..place(remote) + request.len].to_vec();
                self.fetched.push((request.local, bytes));
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                word(remote, &|old| if old == compare { swap } else { old });
            }
            SendOp::FetchAdd { remote, add } => word(remote, &|old| old.wrapping_add(add)),
            SendOp::FetchOp { remote, op } => word(remote, &|old| op.apply(old)),
            other => panic!("no model of {other:?}"),
        }
    }
}

/// Returns an atomic beyond compare-and-swap and fetch-and-add.
fn atomic_op(random: &mut Random) -> AtomicOp {
    use AtomicOp::{And, Max, Min, Or, Swap, Xor};
    let operand = random.next();
    [Swap, And, Or, Xor, Min, Max][random.below(6)](operand)
}

fn request(
    random: &mut Random,
    index: usize,
    base: RemoteAddr,
    (has, after_fetch): (AtomicOps, bool),
) -> Request {
    let len = [0, 1, 8, 100, 200, 1000][random.below(6)];
    let at = |random: &mut Random, len: usize| random.below(LEN - len + 1) as u64;
    let remote = RemoteAddr { addr: base.addr + at(random, len), ..base };
    let word = RemoteAddr { addr: base.addr + random.below(LEN / 8) as u64 * 8, ..base };
    let (op, len) = match random.below(9) {
        0 => (SendOp::Send { imm: None }, len),
        1 => (SendOp::Send { imm: Some(index as u32) }, len),
        2 => (SendOp::Write { remote, imm: Some(index as u32) }, len),
        3 => (SendOp::Read { remote }, len),
        4 => (SendOp::FetchAdd { remote: word, add: 3 }, 8),
        5 => (SendOp::CompareSwap { remote: word, compare: 0, swap: 5 }, 8),
        6 if has == AtomicOps::all() => (SendOp::FetchOp { remote: word, op: atomic_op(random) }, 8),
        _ => (SendOp::Write { remote, imm: None }, len),
    };
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALED, random.below(3) == 0);
    flags.set(SendFlags::FENCE, after_fetch || random.below(8) == 0);
    let sends = matches!(op, SendOp::Send { .. } | SendOp::Write { .. });
    let inline = (sends && len <= 200 && random.below(3) == 0).then(|| pattern(index as u64 + 1000, len));
    Request { op, len, local: index * 1024, inline, flags, refused: false }
}

fn make(random: &mut Random, base: RemoteAddr, has: AtomicOps) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    for index in 0..REQUESTS {
        let after_fetch =
            requests.last().is_some_and(|r| !matches!(r.op, SendOp::Send { .. } | SendOp::Write { .. }));
        requests.push(request(random, index, base, (has, after_fetch)));
    }
    if random.below(2) == 0 {
        let victim = &mut requests[random.below(REQUESTS)];
        let remote = RemoteAddr { rkey: !base.rkey, ..base };
        (victim.op, victim.len, victim.inline) = (SendOp::Read { remote }, 8, None);
        victim.refused = true;
    } else if let Some(last) = requests.last_mut() {
        last.flags |= SendFlags::SIGNALED;
    }
    requests
}

/// Posts all requests in lists of any length, posts receives in between, and polls both sides.
fn drive(pair: &Pair, random: &mut Random, wrs: &[SendWr<'_>], mut receives: usize, into: Sge) {
    let mut posted = 0;
    let mut receive = 0;
    if pair.config.provider == Provider::Rdma {
        // Soft-RoCE (Linux 6.1) stalls permanently if a message without a receive is followed by
        // fenced requests.
        while receives > 0 {
            pair.b.recv(receive, &[into]);
            (receive, receives) = (receive + 1, receives - 1);
        }
    }
    while posted < wrs.len() || receives > 0 {
        match random.below(3) {
            0 if posted < wrs.len() => {
                let count = 1 + random.below((wrs.len() - posted).min(12));
                pair.a.post(&wrs[posted..posted + count]);
                posted += count;
            }
            1 if receives > 0 => {
                pair.b.recv(receive, &[into]);
                (receive, receives) = (receive + 1, receives - 1);
            }
            _ => pair.pump(),
        }
    }
}

/// No completion came for a long time.
#[derive(Debug)]
struct Stalled;

/// Longer than anything takes, and short enough to be waited for more than once.
const SILENCE: Duration = Duration::from_secs(10);

/// Returns the next completion of a send, on a device that may stall.
fn sent(pair: &Pair) -> Result<WorkCompletion, Stalled> {
    if pair.config.provider != Provider::Rdma {
        return Ok(pair.sent(&pair.a));
    }
    let start = Instant::now();
    pair.until("the completion of a send work request", || match pair.a.take_send() {
        Some(wc) => Some(Ok(wc)),
        None => (start.elapsed() > SILENCE).then_some(Err(Stalled)),
    })
}

/// Runs random lists, and repeats a list on which Soft-RoCE stalls.
///
/// Soft-RoCE (Linux 6.1) stalls permanently when it retransmits a fenced request after it has
/// sent READs or atomics behind it. It waits until none is outstanding, including those behind it
/// (`rxe_wqe_is_fenced` in `rxe_req.c`). On a busy machine any request may be retransmitted. A
/// fault of the provider would stall the repetition as well.
fn random_lists_behave_as_one_request_after_another(config: Config) {
    for seed in 0..80 {
        let stalls = (0..3).take_while(|_| random_list(config, seed).is_err()).count();
        assert!(stalls < 3, "seed {seed}: waited in vain, three times");
    }
}

fn random_list(config: Config, seed: u64) -> Result<(), Stalled> {
    let mut random = Random::new(seed);
    let pair = Setup::new(config).queues(64, 64).pair();
    let remote = pair.b.guarded(LEN, Access::REMOTE_ALL);
    let messages = pair.b.local(1024);
    let local = pair.a.local(REQUESTS * 1024);
    local.set(0, &pattern(seed, REQUESTS * 1024));
    let requests = make(&mut random, remote.remote(0), pair.a.device.attr().atomic_ops);

    let executed = requests.iter().position(|r| r.refused).unwrap_or(REQUESTS);
    let mut model = Model { memory: vec![0; LEN], fetched: Vec::new(), messages: Vec::new() };
    for request in &requests[..executed] {
        let data = request.inline.clone().unwrap_or_else(|| local.get(request.local, request.len));
        model.run(remote.mr.addr(), request, &data);
    }

    let sges: Vec<[Sge; 1]> = requests.iter().map(|r| [local.sge(r.local, r.len)]).collect();
    let wrs: Vec<SendWr<'_>> = (0u64..)
        .zip(&requests)
        .zip(&sges)
        .map(|((wr_id, r), sges)| {
            let wr = SendWr::new(wr_id, r.op, sges).with_flags(r.flags);
            r.inline.as_ref().map_or(wr, |bytes| wr.with_inline(bytes))
        })
        .collect();
    drive(&pair, &mut random, &wrs, model.messages.len(), messages.all());

    let expected: Vec<(u64, WcStatus)> = (0u64..)
        .zip(&requests)
        .filter_map(|(id, request)| match (id as usize).cmp(&executed) {
            std::cmp::Ordering::Less => {
                request.flags.contains(SendFlags::SIGNALED).then_some((id, WcStatus::Success))
            }
            std::cmp::Ordering::Equal => Some((id, WcStatus::RemAccessErr)),
            std::cmp::Ordering::Greater => Some((id, WcStatus::WrFlushErr)),
        })
        .collect();
    let mut completed = Vec::new();
    for _ in &expected {
        let wc = sent(&pair)?;
        completed.push((wc.wr_id, wc.status));
    }
    assert_eq!(completed, expected, "seed {seed}");
    for (id, (imm, len)) in (0u64..).zip(&model.messages) {
        let wc = pair.received(&pair.b);
        assert_eq!((wc.wr_id, wc.status, wc.imm), (id, WcStatus::Success, *imm), "seed {seed}");
        assert_eq!(wc.byte_len as usize, *len);
    }
    assert!(remote.contents() == model.memory, "seed {seed}");
    for (at, bytes) in &model.fetched {
        assert!(local.get(*at, bytes.len()) == *bytes, "seed {seed}: fetched by request {}", at / 1024);
    }
    remote.assert_guards();
    assert_eq!(pair.a.pending(), []);
    assert_eq!(pair.b.pending(), []);
    Ok(())
}
