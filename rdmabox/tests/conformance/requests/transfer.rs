//! Tests of READ and WRITE: every byte arrives in its place, and no other byte changes.

use std::sync::Arc;

use rdmabox::{
    memory::Memory,
    verbs::{Access, QpState, SendFlags, SendWr, Sge, VerbsError, WcOpcode, WcStatus},
};

use crate::fixture::{
    Config, Provider, Random, Setup, pair, pattern, read, signaled, unsignaled, until, write,
};

const SIZES: [usize; 14] =
    [1, 2, 7, 8, 9, 63, 64, 65, 4095, 4096, 4097, 65_536 + 13, 1 << 20, (8 << 20) - 16];

conformance! {
    write_places_exactly_its_bytes,
    read_fetches_exactly_its_bytes,
    write_gathers,
    read_scatters,
    requests_of_no_bytes_succeed,
    completions_describe_their_request,
    a_read_sees_the_writes_before_it,
    a_fenced_write_sends_what_a_read_fetched,
    random_requests_behave_as_on_an_array,
    both_directions_at_once,
    many_reads_at_once,
    one_sided_requests_need_no_thread_of_the_peer,
    regions_may_be_registered_after_the_connection,
    a_region_is_a_window_on_its_memory,
    borrowed_memory_serves_the_local_side,
    memory_of_every_kind_can_be_registered,
    ranges_outside_the_memory_cannot_be_registered,
    threads_share_a_queue_pair,
    mapped_memory_is_seen_in_place,
}

fn write_places_exactly_its_bytes(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(8 << 20, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let source = pair.a.local(8 << 20);
    for (seed, len) in (1..).zip(SIZES) {
        for (from, to) in [(0, 0), (3, 5), (8, 9)] {
            let data = pattern(seed, len);
            source.set(from, &data);
            target.memory.zero(crate::fixture::GUARD, 8 << 20);
            let wc = pair.run(signaled(seed, write(target.remote(to)), &[source.sge(from, len)]));
            assert_eq!(wc.status, WcStatus::Success);
            let mut expected = vec![0; 8 << 20];
            expected[to..to + len].copy_from_slice(&data);
            assert!(target.contents() == expected, "{len} bytes from {from} to {to}");
        }
    }
    target.assert_guards();
}

fn read_fetches_exactly_its_bytes(config: Config) {
    let pair = pair(config);
    let source = pair.b.buf(8 << 20, Access::REMOTE_READ);
    let target = pair.a.guarded(8 << 20, Access::LOCAL_WRITE);
    for (seed, len) in (1..).zip(SIZES) {
        for (from, to) in [(0, 0), (3, 5), (8, 9)] {
            let data = pattern(seed, len);
            source.set(from, &data);
            target.memory.zero(crate::fixture::GUARD, 8 << 20);
            let wc = pair.run(signaled(seed, read(source.remote(from)), &[target.sge(to, len)]));
            assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, len));
            let mut expected = vec![0; 8 << 20];
            expected[to..to + len].copy_from_slice(&data);
            assert!(target.contents() == expected, "{len} bytes from {from} to {to}");
        }
    }
    target.assert_guards();
}

/// Returns `count` elements of odd lengths, some empty, in memory order or not. Returns their
/// offsets and lengths, too.
fn elements(buf: &crate::fixture::Buf, count: usize) -> (Vec<Sge>, Vec<(usize, usize)>) {
    let mut random = Random::new(count as u64);
    let ranges: Vec<(usize, usize)> = (0..count)
        .map(|i| {
            let len = if i % 7 == 3 { 0 } else { 1 + random.below(5000) };
            ((i * 11 % count) * 5000, len)
        })
        .collect();
    (ranges.iter().map(|&(at, len)| buf.sge(at, len)).collect(), ranges)
}

fn write_gathers(config: Config) {
    let pair = pair(config);
    let count = pair.a.qp.caps().max_send_sge.min(64) as usize;
    assert!(count >= 30);
    let source = pair.a.filled(&pattern(1, count * 5000));
    let target = pair.b.guarded(count * 5000, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let (sges, ranges) = elements(&source, count);
    assert_eq!(pair.run(signaled(1, write(target.remote(1)), &sges)).status, WcStatus::Success);
    let expected: Vec<u8> = ranges.iter().flat_map(|&(at, len)| source.get(at, len)).collect();
    assert!(target.get(1, expected.len()) == expected);
    assert_eq!(target.get(0, 1), [0]);
    assert!(target.get(1 + expected.len(), 100) == [0; 100]);
    target.assert_guards();
}

fn read_scatters(config: Config) {
    let pair = pair(config);
    let count = pair.a.qp.caps().max_send_sge.min(64) as usize;
    let source = pair.b.buf(count * 5000, Access::REMOTE_READ);
    source.set(0, &pattern(1, count * 5000));
    let target = pair.a.guarded(count * 5000, Access::LOCAL_WRITE);
    let (sges, ranges) = elements(&target, count);
    let wc = pair.run(signaled(1, read(source.remote(1)), &sges));
    assert_eq!(wc.status, WcStatus::Success);
    let mut expected = vec![0; count * 5000];
    let mut from = 1;
    for (at, len) in ranges {
        expected[at..at + len].copy_from_slice(&source.get(from, len));
        from += len;
    }
    assert_eq!(wc.byte_len as usize, from - 1);
    assert!(target.contents() == expected);
    target.assert_guards();
}

fn requests_of_no_bytes_succeed(config: Config) {
    let pair = pair(config);
    let target = pair.b.guarded(64, Access::REMOTE_ALL);
    let local = pair.a.local(64);
    let empty = [local.sge(0, 0)];
    for sges in [&empty[..], &[]] {
        for at in [0, 1, 64] {
            let wc = pair.run(signaled(1, write(target.remote(at)), sges));
            assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::RdmaWrite));
            let wc = pair.run(signaled(2, read(target.remote(at)), sges));
            assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::RdmaRead, 0));
        }
    }
    target.assert_untouched();
    assert_eq!(pair.a.qp.state(), QpState::Rts);
}

fn completions_describe_their_request(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(64, Access::REMOTE_ALL);
    let local = pair.a.local(64);
    let sges = [local.sge(0, 5), local.sge(5, 6)];
    let wc = pair.run(signaled(u64::MAX, write(target.remote(0)), &sges));
    assert_eq!((wc.wr_id, wc.opcode, wc.imm), (u64::MAX, WcOpcode::RdmaWrite, None));
    let wc = pair.run(signaled(0, read(target.remote(0)), &sges));
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len, wc.imm), (0, WcOpcode::RdmaRead, 11, None));
    assert_ne!(pair.a.qp.qp_num(), 0);
    assert_eq!(pair.a.qp.executes_at_post(), config.provider == Provider::Shm);
}

fn a_read_sees_the_writes_before_it(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(1 << 20, Access::REMOTE_ALL);
    let local = pair.a.local(2 << 20);
    for round in 0..20 {
        let data = pattern(round, 1 << 20);
        local.set(0, &data);
        // The READ follows its WRITEs in one list, without a completion in between.
        let halves = [[local.sge(0, 1 << 19)], [local.sge(1 << 19, 1 << 19)]];
        let back = [local.sge(1 << 20, 1 << 20)];
        pair.a.post(&[
            unsignaled(1, write(target.remote(0)), &halves[0]),
            unsignaled(2, write(target.remote(1 << 19)), &halves[1]),
            signaled(3, read(target.remote(0)), &back),
        ]);
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::Success));
        assert!(local.get(1 << 20, 1 << 20) == data);
    }
}

fn a_fenced_write_sends_what_a_read_fetched(config: Config) {
    let pair = pair(config);
    let remote = pair.b.buf(2 << 20, Access::REMOTE_ALL);
    let local = pair.a.local(1 << 20);
    for round in 0..10 {
        let data = pattern(round, 1 << 20);
        remote.set(0, &data);
        let sges = [local.all()];
        pair.a.post(&[
            unsignaled(1, read(remote.remote(0)), &sges),
            signaled(2, write(remote.remote(1 << 20)), &sges)
                .with_flags(SendFlags::SIGNALED | SendFlags::FENCE),
        ]);
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::Success));
        assert!(remote.get(1 << 20, 1 << 20) == data);
    }
}

fn random_requests_behave_as_on_an_array(config: Config) {
    const LEN: usize = 300_000;
    let pair = pair(config);
    let remote = pair.b.guarded(LEN, Access::REMOTE_ALL);
    let local = pair.a.local(LEN);
    let mut model = vec![0u8; LEN];
    let mut random = Random::new(7);
    for round in 0..400 {
        let limit = if random.below(4) == 0 { 100_000 } else { 3000 };
        let len = random.below(limit);
        let at = random.below(LEN - len);
        let pieces = 1 + random.below(4);
        let mut sges = Vec::new();
        let mut from = 0;
        for piece in 0..pieces {
            let until = if piece + 1 == pieces { len } else { from + random.below(len - from + 1) };
            sges.push(local.sge(from, until - from));
            from = until;
        }
        if random.below(2) == 0 {
            let data = pattern(round, len);
            local.set(0, &data);
            model[at..at + len].copy_from_slice(&data);
            let wc = pair.run(signaled(round, write(remote.remote(at)), &sges));
            assert_eq!(wc.status, WcStatus::Success);
        } else {
            local.set(0, &vec![0xee; len]);
            let wc = pair.run(signaled(round, read(remote.remote(at)), &sges));
            assert_eq!(wc.status, WcStatus::Success);
            assert!(local.get(0, len) == model[at..at + len], "round {round}: {len} bytes at {at}");
        }
    }
    assert!(remote.contents() == model);
    remote.assert_guards();
}

fn both_directions_at_once(config: Config) {
    const LEN: usize = 4 << 20;
    const ROUNDS: u64 = 6;
    let pair = pair(config);
    let source_a = pair.a.filled(&pattern(1, LEN));
    let source_b = pair.b.filled(&pattern(2, LEN));
    let target_a = pair.a.buf(LEN, Access::REMOTE_ALL);
    let target_b = pair.b.buf(LEN, Access::REMOTE_ALL);
    let (back_a, back_b) = (pair.a.local(LEN), pair.b.local(LEN));
    // Neither side reads its stream before it has posted everything, so both directions fill up.
    for round in 0..ROUNDS {
        pair.a.post(&[signaled(2 * round, write(target_b.remote(0)), &[source_a.all()])]);
        pair.b.post(&[signaled(2 * round, write(target_a.remote(0)), &[source_b.all()])]);
        pair.a.post(&[signaled(2 * round + 1, read(target_b.remote(0)), &[back_a.all()])]);
        pair.b.post(&[signaled(2 * round + 1, read(target_a.remote(0)), &[back_b.all()])]);
    }
    for id in 0..2 * ROUNDS {
        for side in [&pair.a, &pair.b] {
            let wc = pair.sent(side);
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        }
    }
    assert!(target_b.contents() == pattern(1, LEN) && back_a.contents() == pattern(1, LEN));
    assert!(target_a.contents() == pattern(2, LEN) && back_b.contents() == pattern(2, LEN));
}

fn many_reads_at_once(config: Config) {
    let pair = Setup::new(config).queues(256, 1).pair();
    let source = pair.b.buf(256 * 16_384, Access::REMOTE_READ);
    source.set(0, &pattern(3, 256 * 16_384));
    let target = pair.a.local(256 * 16_384);
    let sges: Vec<[Sge; 1]> = (0..256).map(|i| [target.sge(i * 16_384, 16_384)]).collect();
    let list: Vec<_> =
        (0..256).map(|i| signaled(i as u64, read(source.remote(i * 16_384)), &sges[i])).collect();
    pair.a.post(&list);
    for id in 0..256 {
        let wc = pair.sent(&pair.a);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (id, WcStatus::Success, 16_384));
    }
    assert!(target.contents() == source.contents());
}

fn one_sided_requests_need_no_thread_of_the_peer(config: Config) {
    if !config.peer_may_sleep() {
        return eprintln!("not run: this provider needs the peer for its requests");
    }
    let pair = Setup::new(config).apart();
    let target = pair.b.buf(1 << 20, Access::REMOTE_ALL);
    let local = pair.a.filled(&pattern(1, 1 << 20));
    pair.connect();
    let alone = |wr: SendWr<'_>| {
        pair.a.post(&[wr]);
        let wc = until("a completion with the peer asleep", || {
            pair.a.pump();
            pair.a.take_send()
        });
        assert_eq!(wc.status, WcStatus::Success);
    };
    let sges = [local.all()];
    alone(signaled(1, write(target.remote(0)), &sges));
    assert!(target.contents() == local.contents());
    alone(signaled(2, read(target.remote(0)), &sges));
}

fn regions_may_be_registered_after_the_connection(config: Config) {
    let pair = Setup::new(config).apart();
    let early = pair.b.buf(4096, Access::REMOTE_ALL);
    pair.connect();
    let local = pair.a.filled(&pattern(1, 4096));
    let mut regions = vec![early];
    for _ in 0..40 {
        regions.push(pair.b.buf(4096, Access::REMOTE_ALL));
        for region in &regions {
            let wc = pair.run(signaled(1, write(region.remote(0)), &[local.all()]));
            assert_eq!(wc.status, WcStatus::Success);
            assert!(region.contents() == local.contents());
            region.set(0, &[0; 4096]);
        }
    }
}

fn a_region_is_a_window_on_its_memory(config: Config) {
    let pair = pair(config);
    let memory = Arc::new(Memory::shared("conformance", 64 << 10).expect("memory"));
    let low = pair.b.pd.register(&memory, 100, 1000, Access::REMOTE_READ).expect("register");
    let high = pair.b.pd.register(&memory, 500, 10_000, Access::REMOTE_ALL).expect("register");
    assert_eq!((low.addr(), low.length()), (memory.addr() + 100, 1000));
    assert_eq!(
        (high.addr(), high.length(), high.access()),
        (memory.addr() + 500, 10_000, Access::REMOTE_ALL)
    );
    assert_ne!(low.rkey(), high.rkey());
    let local = pair.a.filled(&pattern(1, 2000));
    let remote = |mr: &rdmabox::verbs::MrHandle, at: u64| rdmabox::verbs::RemoteAddr {
        addr: mr.addr() + at,
        rkey: mr.rkey(),
    };
    let wc = pair.run(signaled(1, write(remote(&high, 0)), &[local.sge(0, 400)]));
    assert_eq!(wc.status, WcStatus::Success);
    // The bytes at 500 of the memory are those at 400 of the other region.
    let wc = pair.run(signaled(2, read(remote(&low, 400)), &[local.sge(1000, 400)]));
    assert_eq!(wc.status, WcStatus::Success);
    assert!(local.get(1000, 400) == local.get(0, 400));
}

fn borrowed_memory_serves_the_local_side(config: Config) {
    let pair = pair(config);
    let target = pair.b.buf(10_000, Access::REMOTE_ALL);
    let mut heap = pattern(5, 10_000);
    let addr = heap.as_mut_ptr() as u64;
    // SAFETY: `heap` lives, and is not touched, until the handle is dropped below.
    let mr = unsafe { pair.a.pd.register_borrowed(addr, 10_000, Access::LOCAL_WRITE) }.expect("register");
    let sge = |at: u64, length| Sge { addr: mr.addr() + at, length, lkey: mr.lkey() };
    let wc = pair.run(signaled(1, write(target.remote(0)), &[sge(0, 6000)]));
    assert_eq!(wc.status, WcStatus::Success);
    let wc = pair.run(signaled(2, read(target.remote(0)), &[sge(6000, 4000)]));
    assert_eq!(wc.status, WcStatus::Success);
    drop(mr);
    assert!(heap[..6000] == pattern(5, 10_000)[..6000]);
    assert!(heap[6000..] == heap[..4000]);
    // SAFETY: as above; the registration is refused.
    let refused = unsafe { pair.a.pd.register_borrowed(addr, 10_000, Access::REMOTE_READ) };
    assert!(matches!(refused, Err(VerbsError::NotShareable { .. })), "{refused:?}");
}

/// A mapping that this test makes itself.
struct Mapping {
    addr: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    /// Maps memory. Returns `None` if the system has no such memory left.
    fn new(len: usize, flags: i32, fd: i32) -> Option<Mapping> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, fd, 0) };
        (addr != libc::MAP_FAILED).then_some(Mapping { addr, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the kernel has mapped and zeroed the range, and no other reference exists during
        // the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.addr.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and unmapped once.
        unsafe { libc::munmap(self.addr, self.len) };
    }
}

fn memory_of_every_kind_can_be_registered(config: Config) {
    const LEN: usize = 4 << 20;
    // SAFETY: the name is a C string; the descriptor is this test's own.
    let file = unsafe {
        let fd = libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, LEN as i64) == 0);
        <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    let of_file = std::os::fd::AsRawFd::as_raw_fd(&file);
    let alone = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let kinds = [
        ("anonymous memory", alone, -1),
        ("a memfd", libc::MAP_SHARED, of_file),
        ("huge pages", alone | libc::MAP_HUGETLB, -1),
    ];
    let pair = pair(config);
    let target = pair.b.buf(LEN, Access::REMOTE_ALL);
    for (seed, (what, flags, fd)) in (1..).zip(kinds) {
        let Some(mut mapping) = Mapping::new(LEN, flags, fd) else {
            // ci/rdma-vm sets some aside.
            assert!(std::env::var_os("RDMA_VM").is_none(), "no {what}");
            eprintln!("not run: this machine has no {what}");
            continue;
        };
        let data = pattern(seed, LEN / 2);
        mapping.bytes()[..LEN / 2].copy_from_slice(&data);
        let addr = mapping.addr as u64;
        // SAFETY: the mapping is there, and not touched, until the handle is dropped below.
        let mr = unsafe { pair.a.pd.register_borrowed(addr, LEN as u64, Access::LOCAL_WRITE) }.expect(what);
        let sge = |at: usize| Sge { addr: addr + at as u64, length: (LEN / 2) as u32, lkey: mr.lkey() };
        let wc = pair.run(signaled(1, write(target.remote(77)), &[sge(0)]));
        assert_eq!(wc.status, WcStatus::Success, "{what}");
        let wc = pair.run(signaled(2, read(target.remote(77)), &[sge(LEN / 2)]));
        assert_eq!(wc.status, WcStatus::Success, "{what}");
        drop(mr);
        assert!(mapping.bytes()[LEN / 2..] == data, "{what}");
        assert!(target.get(77, LEN / 2) == data, "{what}");
    }
}

fn ranges_outside_the_memory_cannot_be_registered(config: Config) {
    let side = Setup::new(config).side();
    let memory = Arc::new(Memory::shared("conformance", 8192).expect("memory"));
    for (offset, length) in [(0, 8193), (8192, 1), (1, u64::MAX), (u64::MAX, 2), (u64::MAX, u64::MAX)] {
        let result = side.pd.register(&memory, offset, length, Access::REMOTE_ALL);
        assert!(matches!(result, Err(VerbsError::Range { size: 8192, .. })), "{offset}+{length}: {result:?}");
    }
    side.pd.register(&memory, 0, 8192, Access::REMOTE_ALL).expect("all of it");
    side.pd.register(&memory, 8191, 1, Access::REMOTE_ALL).expect("its last byte");
}

fn threads_share_a_queue_pair(config: Config) {
    const THREADS: usize = 4;
    const EACH: usize = 500;
    let pair = Setup::new(config).queues((THREADS * EACH) as u32, 1).pair();
    let target = pair.b.buf(THREADS * EACH * 64, Access::REMOTE_ALL);
    let source = pair.a.filled(&pattern(9, THREADS * EACH * 64));
    assert!(pair.a.cq.depth() >= 1024);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pair, target, source) = (&pair, &target, &source);
            scope.spawn(move || {
                for i in (thread * EACH..(thread + 1) * EACH).step_by(5) {
                    let sges: Vec<[Sge; 1]> = (i..i + 5).map(|i| [source.sge(i * 64, 64)]).collect();
                    let list: Vec<_> = (0..5)
                        .map(|k| {
                            let wr = signaled((i + k) as u64, write(target.remote((i + k) * 64)), &sges[k]);
                            if k == 4 { wr } else { wr.with_flags(SendFlags::empty()) }
                        })
                        .collect();
                    pair.a.post(&list);
                }
            });
        }
    });
    let mut ids: Vec<u64> = (0..THREADS * EACH / 5)
        .map(|_| {
            let wc = pair.sent(&pair.a);
            assert_eq!(wc.status, WcStatus::Success);
            wc.wr_id
        })
        .collect();
    ids.sort_unstable();
    assert!(ids == (0..(THREADS * EACH) as u64).skip(4).step_by(5).collect::<Vec<_>>());
    assert!(target.contents() == source.contents());
}

fn mapped_memory_is_seen_in_place(config: Config) {
    let pair = Setup::new(config).apart();
    let region = pair.b.guarded(4096, Access::REMOTE_READ);
    let writable = pair.b.guarded(4096, Access::REMOTE_ALL);
    let secret = pair.b.guarded(4096, Access::LOCAL_WRITE);
    assert!(pair.a.qp.map_remote(region.remote(0), 8, Access::REMOTE_READ).is_none(), "not connected");
    pair.connect();
    let map = |remote, len, needs| pair.a.qp.map_remote(remote, len, needs);
    if config.provider != Provider::Shm {
        assert!(map(region.remote(0), 8, Access::REMOTE_READ).is_none());
        return;
    }
    let (memory, at) = pair.until("the mapping", || map(region.remote(100), 200, Access::REMOTE_READ));
    region.set(100, &pattern(1, 200));
    let mut out = [0; 200];
    memory.read(at, &mut out);
    assert!(out[..] == pattern(1, 200));
    assert!(map(region.remote(0), 8, Access::REMOTE_WRITE).is_none(), "no such right");
    assert!(map(region.remote(0), 4097, Access::REMOTE_READ).is_none(), "past the region");
    assert!(map(region.remote(4096), u64::MAX, Access::REMOTE_READ).is_none());
    assert!(map(secret.remote(0), 8, Access::empty()).is_none(), "no remote rights at all");
    let (memory, at) = pair.until("the mapping", || map(writable.remote(8), 8, Access::REMOTE_ALL));
    memory.write(at, &[9; 8]);
    assert_eq!(writable.get(8, 8), [9; 8]);
    // Invalidated memory is not handed out again.
    let remote = region.remote(0);
    drop(region);
    assert!(map(remote, 8, Access::REMOTE_READ).is_none());
}

/// Over a network nothing has to be mapped: private memory can be a target.
#[test]
fn private_memory_is_a_target_over_a_network() {
    for config in [Config::TCP_ENGINE, Config::TCP_CALLER] {
        let pair = pair(config);
        let memory = Arc::new(Memory::private(4096).expect("memory"));
        let mr = pair.b.pd.register(&memory, 0, 4096, Access::REMOTE_ALL).expect("register");
        let remote = rdmabox::verbs::RemoteAddr { addr: mr.addr(), rkey: mr.rkey() };
        let source = pair.a.filled(&pattern(1, 4096));
        assert_eq!(pair.run(signaled(1, write(remote), &[source.all()])).status, WcStatus::Success);
        let mut out = vec![0; 4096];
        memory.read(0, &mut out);
        assert!(out == source.contents());
    }
}
