//! Carafe on a pool of programs, against the same algorithms in local memory.

use std::collections::VecDeque;

use rstore::{
    Error,
    graph::{Csr, Explorer, GraphStore, page_rank, page_rank_locally, rmat},
};

use crate::support::{PROVIDERS, Pool};

fn small() -> Csr {
    Csr::new(1 << 9, &rmat(9, 8, 7))
}

#[test]
fn page_rank_on_partitions_has_the_ranks_of_one_process() {
    let graph = small();
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 64, &[]);
        for (workers, supersteps) in [(1, 3), (3, 10), (4, 0)] {
            let report =
                page_rank(&pool.master_address, &pool.client_options(), "g", &graph, workers, supersteps);
            let report = report.expect("ranks");
            assert_eq!(report.ranks, page_rank_locally(&graph, supersteps), "{workers} workers");
            pool.wait_free();
        }
    }
}

/// Returns the lengths of shortest paths with edges of weight 1, by breadth-first search.
fn distances(graph: &Csr, from: u32) -> Vec<Option<u64>> {
    let mut found = vec![None; graph.vertices() as usize];
    found[from as usize] = Some(0);
    let mut next = VecDeque::from([from]);
    while let Some(vertex) = next.pop_front() {
        for target in graph.neighbours(vertex) {
            if found[*target as usize].is_none() {
                found[*target as usize] = found[vertex as usize].map(|length: u64| length + 1);
                next.push_back(*target);
            }
        }
    }
    found
}

#[test]
fn explored_paths_are_shortest_paths() {
    let graph = small();
    let pool = Pool::start(PROVIDERS[0], 2, 16, &[]);
    let client = pool.client();
    let store = GraphStore::import(&client, "g", &graph).expect("an import");
    let other = pool.client();
    let mut explorer = Explorer::new(GraphStore::open(&other, "g").expect("the graph"));
    assert_eq!(explorer.vertex(5).expect("a vertex").neighbours, graph.neighbours(5));
    assert!(matches!(explorer.vertex(1 << 9), Err(Error::OutOfBounds { .. })));
    let from = (0..graph.vertices()).max_by_key(|vertex| graph.neighbours(*vertex).len()).expect("a vertex");
    let expected = distances(&graph, from);
    for to in (0..graph.vertices()).step_by(37) {
        let path = explorer.shortest_path(from, to, |_, _| 1).expect("a search");
        assert_eq!(path.as_ref().map(|path| path.length), expected[to as usize], "to {to}");
        for pair in path.iter().flat_map(|path| path.vertices.windows(2)) {
            assert!(graph.neighbours(pair[0]).contains(&pair[1]), "no edge from {} to {}", pair[0], pair[1]);
        }
    }
    assert!(explorer.explored() > 0);
    drop(explorer);
    store.delete(&client).expect("no other handle");
    pool.wait_free();
}

#[test]
fn a_store_that_dies_ends_the_job() {
    let graph = small();
    for provider in PROVIDERS {
        let mut pool = Pool::start(provider, 2, 64, &[]);
        let (master, options) = (pool.master_address.clone(), pool.client_options());
        let failed = std::thread::scope(|scope| {
            // More supersteps than a test has time for.
            let job = scope.spawn(|| page_rank(&master, &options, "g", &graph, 3, 1_000_000));
            pool.wait("the job has begun", |status| status.clients == 4);
            std::thread::sleep(std::time::Duration::from_millis(300));
            pool.stores.remove(0).kill();
            job.join().expect("no panic").expect_err("a store is gone")
        });
        let is_expected = matches!(
            failed,
            Error::Transfer(_) | Error::Link(_) | Error::Refused(_) | Error::WorkerFailed(_)
        );
        assert!(is_expected, "{failed}");
    }
}
