//! Eviction from an export with stores, one of which drains.

use super::*;
use crate::space::tests::fake_store::FakeStore;

/// Returns an export of 100 blocks with a store of 400. Files are cut at multiples of ten blocks.
fn evicting_with_store() -> Fixture {
    let arena = Arc::new(Memory::private((100 * B) as usize).unwrap());
    let table = Arc::new(Memory::private(1000 * record::LEN).unwrap());
    let clock = Arc::new(ManualClock::new(1000));
    let own = Space::new(Arc::clone(&arena), Zeroing::Inline);
    let space = Arc::new(
        own.with_stores(Arc::new(FakeStore::new(400 * B)), [(1, 400 * B)], 10 * B).expect("a space"),
    );
    let dispatcher =
        Dispatcher::new(space, Arc::clone(&table), ROOT, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
    Fixture { dispatcher: dispatcher.with_eviction(LRU), arena, table, clock }
}

/// The marks are those of the space that is handed out. Otherwise all files would go when a store
/// drains, because the low mark is never reached.
#[test]
fn a_store_that_drains_does_not_count() {
    let fixture = evicting_with_store();
    let client = fixture.client(1);
    for at in 0..8 {
        client.put(ROOT_INO, &format!("f{at}"), 20);
    }
    fixture.dispatcher.space().drain_store(1, true);
    fixture.evict();
    assert_eq!(fixture.evicted(), (0, 0), "80 of 100 blocks are in use");
    client.put(ROOT_INO, "more", 11);
    fixture.evict();
    assert_eq!((fixture.evicted(), fixture.free_blocks()), ((1, 0), 19));
}

/// Files whose space is not handed out again stay when space is short.
#[test]
fn files_in_a_store_that_drains_stay() {
    let fixture = evicting_with_store();
    let client = fixture.client(1);
    let resize = |ino, size| {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        client.attr(Request::SetAttr { ino, changes });
    };
    // The second piece of a file is in the store.
    let files: Vec<u64> = (0..30)
        .map(|at| {
            let ino = client.opened(create(ROOT_INO, &format!("f{at}"), true)).attr.ino;
            client.allocate(ino, 10 * B, 10 * B);
            resize(ino, 20 * B);
            ino
        })
        .collect();
    let held: Vec<u64> = (0..9)
        .map(|at| {
            let ino = client.opened(create(ROOT_INO, &format!("held{at}"), true)).attr.ino;
            client.allocate(ino, 0, 10 * B);
            resize(ino, 10 * B);
            ino
        })
        .collect();
    files.into_iter().for_each(|ino| client.close(ino));
    fixture.dispatcher.space().drain_store(1, true);
    client.allocate(held[0], 10 * B, 9 * B);
    resize(held[0], 19 * B);
    fixture.evict();
    assert_eq!(client.error(Request::Allocate { ino: held[0], offset: 20 * B, len: 50 * B }), Errno::ENOSPC);
    assert_eq!((fixture.evicted(), client.names(ROOT_INO).len()), ((0, 0), 39));
    // A file that frees space goes, although it comes last.
    client.close(held[1]);
    fixture.evict();
    assert_eq!((fixture.evicted(), client.names(ROOT_INO).len()), ((1, 0), 38));
}
