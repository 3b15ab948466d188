//! RSort on a pool of programs: its output has the records of its input, in order.

use rstore::{
    Error, Refusal,
    sort::{SortJob, sort, sort_locally},
};

use crate::support::{PROVIDERS, Pool};

#[test]
fn sorted_output_has_all_records_and_leaves_nothing() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 256, &[]);
        for (workers, records, ranges) in [(1, 500, 1), (3, 2000, 2), (2, 3, 5)] {
            let job = SortJob {
                name: format!("job{workers}"),
                workers,
                records_per_worker: records,
                ranges_per_worker: ranges,
            };
            let report = sort(&pool.master_address, &pool.client_options(), &job).expect("a sort");
            assert!(report.is_valid(), "{report:?}");
            assert_eq!(report.output.records, workers as u64 * records);
            assert_eq!(sort_locally(workers, records, 2).1, report.output);
            pool.wait_free();
        }
    }
}

#[test]
fn a_worker_that_fails_ends_the_job() {
    // The input of both workers and the barrier take all of the memory, so the classification
    // fails.
    let pool = Pool::start(PROVIDERS[0], 1, 5, &[]);
    let job = SortJob { name: "job".into(), workers: 2, records_per_worker: 1000, ranges_per_worker: 2 };
    let failed = sort(&pool.master_address, &pool.client_options(), &job).expect_err("no memory");
    assert!(matches!(failed, Error::Refused(Refusal::NotEnoughMemory { .. })), "{failed}");
}
