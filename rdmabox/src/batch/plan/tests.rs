use proptest::prelude::*;

use super::*;

const PAGE: u64 = 4096;

fn limits(mode: BatchMode) -> PlanLimits {
    PlanLimits {
        mode,
        max_msg_sz: 1 << 30,
        max_merge: 1 << 30,
        max_sge: 30,
        max_chain: 64,
        stage_threshold: 0,
    }
}

fn item(addr: u64, len: u64) -> Item {
    Item { remote: RemoteAddr { addr, rkey: 7 }, len, sges: 1, stageable: true }
}

fn planned(items: &[Item], limits: &PlanLimits) -> Plan {
    let mut out = Plan::default();
    plan(items, limits, &mut out);
    out
}

/// Returns the number of requests that share another request's work request.
fn merged(plan: &Plan) -> usize {
    plan.members.len() - plan.wrs.len()
}

fn counts(items: &[Item], mode: BatchMode) -> (usize, usize) {
    let plan = planned(items, &limits(mode));
    (plan.wrs.len(), plan.doorbells())
}

fn adjacent(n: u64) -> Vec<Item> {
    (0..n).map(|i| item(PAGE * (10 + i), PAGE)).collect()
}

fn disjoint(n: u64) -> Vec<Item> {
    (0..n).map(|i| item(PAGE * (10 + 2 * i), PAGE)).collect()
}

#[test]
fn an_empty_batch_yields_an_empty_plan() {
    for &mode in BatchMode::ALL {
        assert_eq!(counts(&[], mode), (0, 0));
    }
}

#[test]
fn adjacent_requests_become_one() {
    for n in [1, 2, 16, 30] {
        let items = adjacent(n);
        assert_eq!(counts(&items, BatchMode::Hybrid), (1, 1));
        assert_eq!(counts(&items, BatchMode::Merge), (1, 1));
        assert_eq!(counts(&items, BatchMode::Doorbell), (n as usize, 1));
        assert_eq!(counts(&items, BatchMode::Single), (n as usize, n as usize));
    }
}

#[test]
fn disjoint_requests_share_a_doorbell() {
    for n in [2, 16, 64] {
        let items = disjoint(n);
        assert_eq!(counts(&items, BatchMode::Hybrid), (n as usize, 1));
        assert_eq!(counts(&items, BatchMode::Doorbell), (n as usize, 1));
        assert_eq!(counts(&items, BatchMode::Merge), (n as usize, n as usize));
        assert_eq!(counts(&items, BatchMode::Single), (n as usize, n as usize));
    }
}

#[test]
fn mixed_runs_merge_and_chain() {
    let mut items = adjacent(5);
    items.extend(adjacent(3).iter().map(|i| item(i.remote.addr + PAGE * 100, PAGE)));
    items.push(item(PAGE * 1000, PAGE));
    assert_eq!(counts(&items, BatchMode::Hybrid), (3, 1));
    let plan = planned(&items, &limits(BatchMode::Hybrid));
    assert_eq!(plan.wrs.iter().map(|wr| wr.len / PAGE).collect::<Vec<_>>(), [5, 3, 1]);
    assert_eq!(merged(&plan), 6);
}

#[test]
fn modes_and_chain_limits_determine_work_requests_and_doorbells() {
    let items: Vec<Item> = [0, 1, 2, 10, 20].map(|page| item(PAGE * page, PAGE)).to_vec();
    // Merged requests, work requests, and the list length of each doorbell.
    let cost = |mode, max_chain| {
        let plan = planned(&items, &PlanLimits { max_chain, ..limits(mode) });
        (merged(&plan), plan.wrs.len(), plan.chains().map(<[_]>::len).collect::<Vec<_>>())
    };
    assert_eq!(cost(BatchMode::Hybrid, 64), (2, 3, vec![3]));
    assert_eq!(cost(BatchMode::Hybrid, 2), (2, 3, vec![2, 1]));
    assert_eq!(cost(BatchMode::Merge, 64), (2, 3, vec![1, 1, 1]));
    assert_eq!(cost(BatchMode::Doorbell, 64), (0, 5, vec![5]));
    assert_eq!(cost(BatchMode::Single, 64), (0, 5, vec![1; 5]));
}

#[test]
fn order_of_arrival_does_not_matter_for_merging() {
    let items: Vec<Item> = [3, 0, 2, 1, 4].map(|i| item(PAGE * i, PAGE)).to_vec();
    let plan = planned(&items, &limits(BatchMode::Hybrid));
    assert_eq!(plan.members, [1, 3, 2, 0, 4]);
    assert_eq!(plan.wrs.len(), 1);
    assert_eq!(plan.wrs[0].remote.addr, 0);
    assert_eq!(plan.wrs[0].len, 5 * PAGE);
    assert_eq!(plan.wrs[0].sges, 5);
}

#[test]
fn other_modes_keep_the_order_of_arrival() {
    let items: Vec<Item> = [3, 0, 2, 1, 4].map(|i| item(PAGE * i, PAGE)).to_vec();
    for mode in [BatchMode::Single, BatchMode::Doorbell] {
        assert_eq!(planned(&items, &limits(mode)).members, [0, 1, 2, 3, 4]);
    }
}

#[test]
fn requests_to_different_regions_do_not_merge() {
    let mut items = adjacent(2);
    items[1].remote.rkey = 8;
    assert_eq!(counts(&items, BatchMode::Hybrid), (2, 1));
}

#[test]
fn overlapping_requests_keep_their_order() {
    let items = [item(PAGE, PAGE), item(0, PAGE), item(PAGE, PAGE), item(2 * PAGE, PAGE)];
    let plan = planned(&items, &limits(BatchMode::Hybrid));
    assert_eq!(plan.members, [1, 0, 2, 3]);
    assert_eq!(plan.wrs.len(), 2);
    assert_eq!(plan.wrs[1].remote.addr, PAGE);
    assert!(plan.has_overlaps && !planned(&disjoint(4), &limits(BatchMode::Hybrid)).has_overlaps);
}

#[test]
fn overlapping_requests_with_different_keys_keep_their_order() {
    let mut items = [item(PAGE, PAGE), item(0, PAGE + 1)];
    items[1].remote.rkey = 8;
    assert_eq!(planned(&items, &limits(BatchMode::Hybrid)).members, [0, 1]);
}

#[test]
fn merging_stops_at_the_message_limit() {
    let limits = PlanLimits { max_msg_sz: 3 * PAGE, ..limits(BatchMode::Hybrid) };
    let plan = planned(&adjacent(7), &limits);
    assert_eq!(plan.wrs.iter().map(|wr| wr.len / PAGE).collect::<Vec<_>>(), [3, 3, 1]);
    assert_eq!(plan.doorbells(), 1);
}

#[test]
fn merging_stops_at_its_own_limit_and_a_longer_request_stays_whole() {
    let limits = PlanLimits { max_merge: 3 * PAGE, ..limits(BatchMode::Hybrid) };
    let lengths =
        |items: &[Item]| planned(items, &limits).wrs.iter().map(|wr| wr.len / PAGE).collect::<Vec<_>>();
    assert_eq!(lengths(&adjacent(7)), [3, 3, 1]);
    assert_eq!(lengths(&[item(0, PAGE), item(PAGE, 9 * PAGE), item(10 * PAGE, PAGE)]), [1, 9, 1]);
    let none = PlanLimits { max_merge: 0, ..limits };
    assert_eq!(planned(&adjacent(3), &none).wrs.len(), 3);
}

#[test]
fn the_oldest_request_can_be_posted_first() {
    // The oldest one is in the second of three runs. The last one overlaps it and stays behind.
    let items = [
        item(20 * PAGE, PAGE),
        item(30 * PAGE, PAGE),
        item(0, PAGE),
        item(PAGE, PAGE),
        item(21 * PAGE, PAGE),
        item(20 * PAGE, PAGE),
    ];
    let mut plan = planned(&items, &limits(BatchMode::Hybrid));
    let starts = |plan: &Plan| plan.wrs.iter().map(|wr| wr.remote.addr / PAGE).collect::<Vec<_>>();
    assert_eq!(starts(&plan), [0, 20, 30, 20]);
    plan.oldest_first();
    assert_eq!(starts(&plan), [20, 0, 30, 20]);
    assert_eq!(plan.members_of(&plan.wrs[0]), [0, 4]);
    assert_eq!(plan.members_of(&plan.wrs[1]), [2, 3]);
    plan.clear();
    plan.oldest_first();
}

#[test]
fn the_element_limit_applies_unless_a_request_is_staged() {
    let direct = PlanLimits { max_sge: 4, ..limits(BatchMode::Hybrid) };
    let plan = planned(&adjacent(10), &direct);
    assert_eq!(plan.wrs.iter().map(|wr| wr.sges).collect::<Vec<_>>(), [4, 4, 2]);
    assert!(plan.wrs.iter().all(|wr| !wr.staged));

    let staged = PlanLimits { stage_threshold: 10 * PAGE, ..direct };
    let plan = planned(&adjacent(10), &staged);
    assert_eq!((plan.wrs.len(), plan.wrs[0].staged, plan.wrs[0].sges), (1, true, 1));

    let below = PlanLimits { stage_threshold: 10 * PAGE - 1, ..direct };
    let plan = planned(&adjacent(10), &below);
    assert_eq!(
        plan.wrs.iter().map(|wr| (wr.len / PAGE, wr.staged)).collect::<Vec<_>>(),
        [(9, true), (1, true)]
    );
}

#[test]
fn the_staging_threshold_applies_to_single_and_merged_requests() {
    let limits = PlanLimits { stage_threshold: 2 * PAGE, ..limits(BatchMode::Hybrid) };
    let staged = |items: &[Item]| planned(items, &limits).wrs.iter().map(|wr| wr.staged).collect::<Vec<_>>();
    assert_eq!(staged(&[item(0, 2 * PAGE)]), [true]);
    assert_eq!(staged(&[item(0, 2 * PAGE + 1)]), [false]);
    assert_eq!(staged(&adjacent(2)), [true]);
    assert_eq!(staged(&adjacent(3)), [false]);
}

#[test]
fn registered_memory_is_never_staged() {
    let limits = PlanLimits { stage_threshold: 10 * PAGE, ..limits(BatchMode::Hybrid) };
    let mut items = adjacent(3);
    items[2].stageable = false;
    let plan = planned(&items, &limits);
    let staged = |plan: &Plan| plan.wrs.iter().map(|wr| (wr.staged, wr.sges)).collect::<Vec<_>>();
    assert_eq!(staged(&plan), [(true, 1), (false, 1)]);
    // Beyond the threshold nothing is staged, so they merge.
    let short = PlanLimits { stage_threshold: PAGE, ..limits };
    assert_eq!(staged(&planned(&items, &short)), [(false, 3)]);
    items.iter_mut().for_each(|item| item.stageable = false);
    assert_eq!(staged(&planned(&items, &limits)), [(false, 3)]);
}

#[test]
fn chains_are_limited() {
    let limits = PlanLimits { max_chain: 8, ..limits(BatchMode::Hybrid) };
    let plan = planned(&disjoint(20), &limits);
    assert_eq!(plan.chains().map(<[_]>::len).collect::<Vec<_>>(), [8, 8, 4]);
    assert_eq!(plan.doorbells(), 3);
    let none = PlanLimits { max_chain: 0, ..limits };
    assert_eq!(planned(&disjoint(3), &none).doorbells(), 3);
}

#[test]
fn empty_requests_are_planned_alone() {
    let items = [item(0, PAGE), item(PAGE, 0), item(PAGE / 2, 0), item(PAGE, PAGE), item(u64::MAX, 0)];
    let limits = PlanLimits { stage_threshold: PAGE * 8, ..limits(BatchMode::Hybrid) };
    let plan = planned(&items, &limits);
    assert_eq!(plan.wrs.len(), 4);
    assert_eq!(plan.wrs.iter().filter(|wr| wr.len == 0).count(), 3);
    assert!(plan.wrs.iter().all(|wr| wr.staged == (wr.len != 0)));
    // An empty request between two others must not hide their overlap.
    let items = [item(0, 100), item(50, 0), item(50, 10), item(100, 100)];
    let plan = planned(&items, &limits);
    assert_eq!(plan.members, [1, 0, 2, 3]);
}

#[test]
fn a_request_beyond_the_address_space_is_planned_alone() {
    let top = u64::MAX - PAGE + 1;
    let items = [item(top - PAGE, PAGE), item(top, PAGE), item(top + 8, u64::MAX), item(u64::MAX, 2)];
    let plan = planned(&items, &limits(BatchMode::Hybrid));
    assert_eq!(plan.members.len(), 4);
    assert!(plan.wrs.iter().all(|wr| wr.members.len() == 1), "a request that the peer refuses is not merged");
    let huge = [item(0, u64::MAX), item(u64::MAX, 1)];
    assert_eq!(planned(&huge, &limits(BatchMode::Hybrid)).wrs.len(), 2);
}

#[test]
fn an_item_beyond_the_limits_is_planned_alone() {
    let limits = PlanLimits { max_sge: 2, max_msg_sz: PAGE, ..limits(BatchMode::Hybrid) };
    let mut items = [item(0, 2 * PAGE), item(2 * PAGE, 8), item(2 * PAGE + 8, 8)];
    items[1].sges = 3;
    let plan = planned(&items, &limits);
    assert_eq!(
        plan.wrs.iter().map(|wr| (wr.len, wr.sges)).collect::<Vec<_>>(),
        [(2 * PAGE, 1), (8, 3), (8, 1)]
    );
}

#[test]
fn steady_state_allocates_nothing() {
    let mut out = Plan::with_capacity(64);
    let before = (out.wrs.capacity(), out.members.capacity(), out.order.capacity());
    for n in [64, 1, 33, 64] {
        plan(&disjoint(n), &limits(BatchMode::Hybrid), &mut out);
        plan(&adjacent(n), &limits(BatchMode::Hybrid), &mut out);
    }
    assert_eq!((out.wrs.capacity(), out.members.capacity(), out.order.capacity()), before);
}

const MEMORY: usize = 512;

fn any_item() -> impl Strategy<Value = Item> {
    // Ranges on a coarse grid make both adjacency and overlap frequent.
    (0..24u64, prop_oneof![8 => 1..4u64, 1 => Just(0u64)], 0..4u32, 1..3u32, prop::bool::weighted(0.8))
        .prop_map(|(block, blocks, rkey, sges, stageable)| Item {
            remote: RemoteAddr { addr: block * 16, rkey: rkey / 3 },
            len: blocks * 16,
            sges,
            stageable,
        })
}

fn any_limits() -> impl Strategy<Value = PlanLimits> {
    (0..4usize, 3..12u64, 0..14u64, 2..10u32, 0..6u32, 0..12u64).prop_map(
        |(mode, msg, merge, max_sge, max_chain, stage)| PlanLimits {
            mode: BatchMode::ALL[mode],
            max_msg_sz: msg * 16,
            max_merge: merge * 16,
            max_sge,
            max_chain,
            stage_threshold: stage * 16,
        },
    )
}

fn fill(memory: &mut [u8], items: &[Item], order: impl Iterator<Item = u32>) {
    for index in order {
        let Item { remote, len, .. } = items[index as usize];
        memory[remote.addr as usize..(remote.addr + len) as usize].fill(index as u8 + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_plan_has_the_effect_of_its_items_in_order(items in prop::collection::vec(any_item(), 0..40), limits in any_limits()) {
        let mut plan = Plan::default();
        super::plan(&[item(0, 1), item(1, 1), item(0, 1)], &limits, &mut plan);
        super::plan(&items, &limits, &mut plan);

        let mut in_order = [0u8; MEMORY];
        fill(&mut in_order, &items, 0..items.len() as u32);
        let mut as_planned = [0u8; MEMORY];
        fill(&mut as_planned, &items, plan.members.iter().copied());
        prop_assert_eq!(in_order, as_planned);

        plan.oldest_first();
        let mut oldest_first = [0u8; MEMORY];
        let order = plan.wrs.iter().flat_map(|wr| plan.members_of(wr)).copied();
        fill(&mut oldest_first, &items, order);
        prop_assert_eq!(in_order, oldest_first);
        if let Some(first) = plan.wrs.first() {
            prop_assert!(plan.members_of(first).contains(&0));
        }

        let mut seen = plan.members.clone();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..items.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn work_requests_cover_their_members(
        items in prop::collection::vec(any_item(), 0..40),
        limits in any_limits(),
    ) {
        let plan = planned(&items, &limits);
        let mut next = 0;
        for wr in &plan.wrs {
            prop_assert_eq!(wr.members.start, next);
            prop_assert!(!wr.members.is_empty());
            next = wr.members.end;
            let members: Vec<&Item> = plan.members_of(wr).iter().map(|&i| &items[i as usize]).collect();
            let mut end = wr.remote.addr;
            for member in &members {
                prop_assert_eq!(member.remote, RemoteAddr { addr: end, rkey: wr.remote.rkey });
                end += member.len;
            }
            prop_assert_eq!(end, wr.remote.addr + wr.len);
            // Each part of a refused work request is repeated where its caller asked for.
            let lengths: Vec<u64> = members.iter().map(|member| member.len).collect();
            let parts: Vec<RemoteAddr> = part_addresses(wr.remote, &lengths).collect();
            prop_assert_eq!(parts, members.iter().map(|member| member.remote).collect::<Vec<_>>());
            let stageable = members.iter().all(|member| member.stageable);
            prop_assert_eq!(wr.staged, stageable && wr.len != 0 && wr.len <= limits.stage_threshold);
            let sges: u32 = members.iter().map(|member| member.sges).sum();
            prop_assert_eq!(wr.sges, if wr.staged { 1 } else { sges });
        }
        prop_assert_eq!(next as usize, plan.members.len());
    }

    #[test]
    fn a_plan_keeps_all_limits(items in prop::collection::vec(any_item(), 0..40), limits in any_limits()) {
        let plan = planned(&items, &limits);
        for wr in &plan.wrs {
            prop_assert!(wr.len <= limits.max_msg_sz);
            prop_assert!(wr.members.len() == 1 || wr.len <= limits.max_merge);
            prop_assert!(wr.sges <= limits.max_sge);
        }
        let chain = if limits.mode.chains() { limits.max_chain.max(1) as usize } else { 1 };
        prop_assert!(plan.chains().all(|list| !list.is_empty() && list.len() <= chain));
        prop_assert_eq!(plan.chains().map(<[_]>::len).sum::<usize>(), plan.wrs.len());
        prop_assert_eq!(plan.doorbells(), plan.wrs.len().div_ceil(chain));
    }

    #[test]
    fn merging_stops_only_at_a_limit_or_an_overlap(items in prop::collection::vec(any_item(), 0..40)) {
        let limits = limits(BatchMode::Hybrid);
        let plan = planned(&items, &limits);
        for pair in plan.wrs.windows(2) {
            let adjacent = pair[0].len != 0 && pair[1].len != 0
                && pair[0].remote.rkey == pair[1].remote.rkey
                && pair[0].remote.addr + pair[0].len == pair[1].remote.addr;
            if adjacent && pair[0].sges + pair[1].sges <= limits.max_sge {
                // The two work requests are then in different segments: an item up to the last
                // member of the second overlaps an earlier item.
                let later = plan.members_of(&pair[1]).iter().max().copied().unwrap_or(0);
                let cut = (0..=later).any(|b| (0..b).any(|a| {
                    let span = |i: u32| Span::new(items[i as usize].remote, items[i as usize].len);
                    span(a).overlaps(span(b))
                }));
                prop_assert!(cut, "{:?} could have merged", pair);
            }
        }
    }

    /// Table I of the RDMAbox paper as inequalities. A trace is a sequence of batches with
    /// sequential and random requests.
    #[test]
    fn merging_and_chaining_reduce_work_requests_and_doorbells_as_in_table_one(trace in prop::collection::vec(
        (0..1000u64, prop::collection::vec(prop::bool::weighted(0.4), 1..20)), 1..50,
    )) {
        let mut work_requests = [0usize; 4];
        let mut doorbells = [0usize; 4];
        let (mut any_adjacent, mut any_two) = (false, false);
        for (start, steps) in &trace {
            let mut page = *start;
            let mut batch = vec![item(page * PAGE, PAGE)];
            for &sequential in steps {
                page += if sequential { 1 } else { 17 };
                any_adjacent |= sequential;
                any_two = true;
                batch.push(item(page * PAGE, PAGE));
            }
            for (index, mode) in BatchMode::ALL.iter().copied().enumerate() {
                let (w, d) = counts(&batch, mode);
                work_requests[index] += w;
                doorbells[index] += d;
            }
        }
        let [single, merge, doorbell, hybrid] = work_requests;
        prop_assert_eq!(doorbell, single);
        prop_assert_eq!(hybrid, merge);
        prop_assert!(hybrid <= single && (hybrid < single) == any_adjacent);
        let [single, merge, doorbell, hybrid] = doorbells;
        prop_assert!((doorbell < single) == any_two && (hybrid < single) == any_two);
        prop_assert!(hybrid <= doorbell && merge <= single);
    }
}
