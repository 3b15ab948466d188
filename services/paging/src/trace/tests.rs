//! Properties of traces.
//!
//! # Concurrency
//! Plain values.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn options() -> impl Strategy<Value = TraceOptions> {
    let load = prop::sample::select(vec![KeyValueLoad::Etc, KeyValueLoad::Sys]);
    (load, 200_usize..3000, 20_u32..=90, 1_usize..40, any::<u64>())
        .prop_map(|(load, pages, local, threads, seed)| TraceOptions { load, pages, local, threads, seed })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Catches a pager that lets pages stay, loses a dirty page, reads a page that is here, or
    /// writes one that is clean.
    #[test]
    fn pages_are_local_or_stored_and_never_more_than_the_budget(options in options(), steps in 1_usize..600) {
        let budget = options.pages * options.local as usize / 100;
        let mut trace = Trace::new(&options).unwrap();
        for _ in 0..steps {
            let before = resident(&mut trace);
            let leaving = |page: &usize| before.get(page).is_some_and(|is_writing| *is_writing);
            let step = trace.step();
            prop_assert!(resident(&mut trace).len() <= budget);
            // A page that was read ahead may have left for this fault. The demanded one has not.
            let demanded = step.reads.first();
            prop_assert!(demanded.is_none_or(|page| !before.contains_key(page) || leaving(page)), "{:?}", step);
            prop_assert!(step.writes.iter().all(|page| before.contains_key(page)), "{:?}", step);
            prop_assert!(step.reads.is_sorted() && step.reads.windows(2).all(|two| two[0] + 1 == two[1]));
            for page in 0..options.pages {
                let state = trace.pages.region().get(page);
                prop_assert!(state.is_resident() || state.is_remote(), "page {} is lost", page);
            }
        }
    }

    /// Catches a store whose page leaves without a write-out, and a write-out without a store.
    #[test]
    fn a_page_is_written_once_for_the_stores_since_it_came(options in options(), accesses in 100_usize..3000) {
        let budget = options.pages * options.local as usize / 100;
        let mut pages = Pages::new(options.pages, budget);
        let mut queries = Queries::new(options.load, options.pages, options.seed);
        // Stores that no write-out has taken, by page.
        let mut dirty: BTreeMap<usize, u32> = BTreeMap::new();
        let mut list = Vec::new();
        for _ in 0..accesses {
            if list.is_empty() {
                queries.next(&mut list);
            }
            let Some(access) = list.pop() else { continue };
            let fresh = pages.region().get(access.page) == Default::default();
            let (writes, _) = pages.access(0, access).unwrap_or_default();
            for page in writes {
                prop_assert!(dirty.remove(&page).is_some(), "page {} was not stored to", page);
            }
            if access.store || fresh {
                *dirty.entry(access.page).or_default() += 1;
            }
            pages.end_writes(0);
            for page in dirty.keys() {
                prop_assert!(pages.region().get(*page).is_resident(), "page {} left dirty", page);
            }
        }
    }

    /// Catches a choice that depends on anything but the options.
    #[test]
    fn equal_seeds_give_equal_steps(options in options()) {
        let steps = |seed| -> Vec<Step> {
            Trace::new(&TraceOptions { seed, ..options }).unwrap().take(200).collect()
        };
        prop_assert_eq!(steps(options.seed), steps(options.seed));
        prop_assert_ne!(steps(options.seed), steps(options.seed ^ 1));
    }
}

/// Returns the resident pages, and whether a write-out of each is under way.
fn resident(trace: &mut Trace) -> BTreeMap<usize, bool> {
    let region = trace.pages.region();
    let pages = (0..region.pages()).map(|page| (page, region.get(page)));
    pages.filter(|(_, state)| state.is_resident()).map(|(page, state)| (page, state.is_writing())).collect()
}

fn trace(load: KeyValueLoad, local: u32) -> Trace {
    Trace::new(&TraceOptions { load, pages: 2048, local, threads: 8, seed: 7 }).unwrap()
}

/// Catches threads that do not take turns, and loads that do not differ as the paper's do.
#[test]
fn less_memory_means_more_reads_and_more_stores_more_writes() {
    let rates = |load, local| {
        let steps: Vec<Step> = trace(load, local).take(8000).collect();
        assert!(steps.windows(2).all(|two| two[1].thread == (two[0].thread + 1) % 8));
        let queries: u32 = steps.iter().map(|step| step.queries).sum();
        let count =
            |pages: fn(&Step) -> usize| steps.iter().map(pages).sum::<usize>() as f64 / f64::from(queries);
        (count(|step| step.reads.len()), count(|step| step.writes.len()))
    };
    let (etc_half, etc_quarter) = (rates(KeyValueLoad::Etc, 50), rates(KeyValueLoad::Etc, 25));
    let (sys_half, sys_quarter) = (rates(KeyValueLoad::Sys, 50), rates(KeyValueLoad::Sys, 25));
    assert!(etc_quarter.0 > 1.2 * etc_half.0 && sys_quarter.0 > 1.2 * sys_half.0);
    assert!(sys_quarter.1 > 2.0 * etc_quarter.1 && sys_half.1 > 2.0 * etc_half.1);
}

#[test]
fn too_few_pages_and_no_share_are_refused() {
    let options = TraceOptions { load: KeyValueLoad::Etc, pages: 127, local: 25, threads: 1, seed: 1 };
    let refused = |options: TraceOptions| Trace::new(&options).unwrap_err().to_string();
    assert_eq!(refused(options), "the number of local pages is 31; allowed: at least 32");
    assert!(refused(TraceOptions { local: 0, ..options }).contains("1 to 90 percent"));
    assert!(refused(TraceOptions { local: 91, ..options }).contains("1 to 90 percent"));
    assert!(refused(TraceOptions { threads: 0, ..options }).contains("1 or more"));
}
