//! Who asks one request at a time, and from which core: what a software device says of a peer on its own host.

use rdmabox::verbs::{Access, Progress, SendFlags, SendOp, SendWr, WcStatus};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::fixture::{Config, Pair, SEND, pair, signaled};

software_conformance! {
    who_asks_one_at_a_time_is_known,
    a_row_ends_with_any_other_request,
}

fn sole(wr: SendWr<'_>) -> SendWr<'_> {
    SendWr { flags: wr.flags | SendFlags::SOLE, ..wr }
}

/// Those who make progress themselves are told, where the peer sends on a core of this host.
fn is_told(config: Config) -> bool {
    config.is_tcp() && config.progress == Progress::Caller
}

fn row(pair: &Pair) -> Option<(u32, u64)> {
    pair.b.recv_cq.asker().map(|asker| (asker.requests, asker.work))
}

fn who_asks_one_at_a_time_is_known(config: Config) {
    let pair = pair(config);
    // Nobody moves this thread, which sends and receives.
    let before = sched_getaffinity(None).expect("told");
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).expect("allowed");
    let (source, target) = (
        pair.a.local(64 << 10),
        pair.b.buf(64 << 10, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ),
    );
    assert_eq!(row(&pair), None);
    let (remote, imm) = (target.remote(0), None);
    for (id, (op, len)) in (1..).zip([
        (SendOp::Write { remote, imm }, 64 << 10),
        (SendOp::Read { remote }, 64 << 10),
        (SendOp::Write { remote, imm }, 0),
        (SendOp::Read { remote }, 31 << 10),
        (SEND, 100),
    ]) {
        pair.b.recv(id, &[target.all()]);
        let wc = pair.run(sole(signaled(id, op, &[source.sge(0, len)])));
        assert_eq!(wc.status, WcStatus::Success);
        let work = [0, 3, 6, 7, 8, 9][id as usize];
        assert_eq!(row(&pair), is_told(config).then_some((id as u32, work)));
    }
    let core = pair.b.recv_cq.asker().map(|asker| asker.core);
    assert_eq!(core, is_told(config).then_some(sched_getcpu()));
    assert_eq!(pair.a.recv_cq.asker(), None, "answers are no requests");
    sched_setaffinity(None, &before).expect("allowed");
}

fn a_row_ends_with_any_other_request(config: Config) {
    let pair = pair(config);
    let source = pair.a.local(64);
    let word = pair.b.buf(64, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let remote = word.remote(0);
    for (id, other) in (0..).zip([SendOp::Write { remote, imm: None }, SendOp::FetchAdd { remote, add: 1 }]) {
        let sges = [source.sge(0, 8)];
        let write = signaled(id, SendOp::Write { remote, imm: None }, &sges);
        assert_eq!(pair.run(sole(write)).status, WcStatus::Success);
        assert_eq!(row(&pair).is_some(), is_told(config));
        let wc = pair.run(signaled(id, other, &sges));
        assert_eq!(wc.status, WcStatus::Success);
        assert_eq!(row(&pair), None);
    }
}
