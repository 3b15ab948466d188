//! The store behind the simulated server: it executes each call, and tells the bytes.
//!
//! # Concurrency
//! One thread.

use std::{sync::Arc, time::Instant};

use jakiro::{
    Store, StoreMode, StoreOptions,
    protocol::{Request, StoreRequest},
    server::Executor,
    store::Key,
};

use crate::load::{Load, Requests, key};

/// A call: its partition, and the bytes of request and reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) partition: usize,
    pub(super) request: usize,
    pub(super) reply: usize,
}

/// A store with an executor for each partition.
pub(crate) struct ServedStore {
    executors: Vec<Executor>,
    request: Vec<u8>,
    reply: Vec<u8>,
    value: Vec<u8>,
}

const SEED: u64 = 7;

impl ServedStore {
    /// Makes a store that has all keys of a load.
    pub(crate) fn filled(partitions: usize, load: &Load) -> ServedStore {
        let blocks = (0..load.keys).map(|number| 1 + load.lengths.of(number) as u64 / 64).sum::<u64>();
        let memory = (2 * blocks * 132).max(3 << 20) * 2 * partitions as u64;
        let mut options = StoreOptions::new(memory).partitions(partitions);
        options.seed = Some(SEED);
        let store = Arc::new(Store::new(&options).expect("sizes that fit"));
        let executors = (0..partitions).map(|index| Executor::new(Arc::clone(&store), index)).collect();
        let (request, reply, value) = (Vec::new(), Vec::new(), Vec::new());
        let mut filled = ServedStore { executors, request, reply, value };
        for number in 0..load.keys {
            filled.call(false, number, load);
        }
        filled
    }

    /// Encodes and executes a call.
    pub(super) fn call(&mut self, is_get: bool, number: u64, load: &Load) -> Call {
        let bytes = key(number);
        let partition = Key::new(&bytes, SEED).map_or(0, |key| key.partition(self.executors.len()));
        let request = if is_get {
            Request::Get { with_version: false, key: &bytes }
        } else {
            self.value.clear();
            self.value.resize(load.lengths.of(number), number as u8);
            let change = StoreRequest { mode: StoreMode::Set, flags: 0, time_to_live: None };
            Request::Store { change, key: &bytes, value: &self.value }
        };
        self.request.clear();
        request.encode(&mut self.request);
        self.reply.clear();
        let decoded = Request::decode(&self.request).expect("a request of this program");
        self.executors[partition].execute(1, &decoded, &mut self.reply).expect("a valid request");
        Call { partition, request: self.request.len(), reply: self.reply.len() }
    }
}

/// Measures the time of this machine for a call, in ns: the median of batches.
pub(crate) fn measure_server_ns(load: &Load) -> u64 {
    const BATCH: u32 = 1000;
    let (mut store, mut requests) = (ServedStore::filled(1, load), Requests::new(*load, 1));
    let mut times: Vec<u64> = (0..21)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..BATCH {
                let request = requests.next();
                store.call(request.is_get, request.key, load);
            }
            (began.elapsed() / BATCH).as_nanos() as u64
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2].max(1)
}
