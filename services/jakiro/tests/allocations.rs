//! The store and the executor allocate nothing for a request of a short value.
//!
//! Own program: its allocator counts, and a program has one global allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};

use jakiro::{
    Delta, Store, StoreMode, StoreOptions,
    protocol::{Request, StoreRequest},
    server::Executor,
};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: all calls go to the system's allocator, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn requests_of_short_values_allocate_nothing() {
    let options = StoreOptions::new(1 << 20).max_value(60_000);
    let executor = Executor::new(Arc::new(Store::new(&options).unwrap()), 0);
    let buffer = || Vec::with_capacity(65_536);
    let (value, mut request, mut reply) = (vec![7; 20_000], buffer(), buffer());
    let change = |mode| StoreRequest { mode, flags: 1, time_to_live: Some(1000) };
    let run = |round: u32, request: &mut Vec<u8>, reply: &mut Vec<u8>| {
        let key = &round.to_le_bytes()[..];
        let requests = [
            Request::Store {
                change: change(StoreMode::Set),
                key,
                value: &value[..round as usize * 97 % 20_000],
            },
            Request::Get { with_version: true, key },
            Request::Store { change: change(StoreMode::Append), key, value: b"more" },
            Request::Store { change: change(StoreMode::Set), key: b"n", value: b"9" },
            Request::ChangeNumber { delta: Delta::Up(1), key: b"n" },
            Request::Touch { time_to_live: None, key },
            Request::GetMany { keys: b"\x01n\x04none" },
            Request::Delete { key: b"n" },
            Request::Counters,
        ];
        for asked in requests {
            request.clear();
            asked.encode(request);
            reply.clear();
            executor.execute(1, &Request::decode(request).unwrap(), reply).unwrap();
        }
    };
    let before = COUNT.get();
    (0..2000).for_each(|round| run(round, &mut request, &mut reply));
    assert_eq!(COUNT.get() - before, 0);
}
