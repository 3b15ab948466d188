//! Tests of partitions and stores: against a model, and of their memory.

mod model;

use std::time::Duration;

use super::*;

fn key(bytes: &[u8]) -> Key<'_> {
    Key::new(bytes, 0).unwrap()
}

fn value(partition: &mut Partition, name: &[u8], now: u64) -> Option<Vec<u8>> {
    let item = partition.get(&key(name), now)?;
    let mut value = Vec::new();
    item.append_to(&mut value);
    Some(value)
}

fn set(partition: &mut Partition, name: &[u8], bytes: &[u8]) -> Result<StoreOutcome, StoreError> {
    partition.store(&key(name), &Change::new(StoreMode::Set), bytes, 0)
}

/// Returns the name of key `i`. Names have many of the lengths that a key may have.
fn name(i: usize) -> Vec<u8> {
    let digits = format!("{i:010}");
    let len = 10 + i * 7 % (MAX_KEY - 10);
    digits.bytes().chain(std::iter::repeat(b'.')).take(len).collect()
}

/// Fills a partition with values of a length until the first eviction. Returns the number of items.
fn fill(partition: &mut Partition, len: usize) -> usize {
    let (bytes, evictions) = (vec![7; len], partition.counters().evictions);
    let mut count = 0;
    while partition.counters().evictions == evictions {
        set(partition, &name(count), &bytes).unwrap();
        count += 1;
    }
    count
}

#[test]
fn a_partition_that_is_filled_and_emptied_1000_times_takes_as_much_as_at_first() {
    let limits = Limits { memory: 256 << 10, max_value: 16 << 10 };
    let mut partition = Partition::new(&limits).unwrap();
    let lengths = [0, 32, 100, 1000, 16 << 10];
    let first: Vec<usize> = lengths
        .iter()
        .map(|len| {
            let count = fill(&mut partition, *len);
            (0..count).for_each(|i| {
                partition.delete(&key(&name(i)), 0);
            });
            count
        })
        .collect();
    for round in 0..1000 {
        let which = round * 3 % lengths.len();
        let count = fill(&mut partition, lengths[which]);
        assert_eq!(count, first[which], "round {round}");
        let (all, free) = partition.items.counts();
        assert!(free * 20 <= all + 20 * 133, "round {round}: {free} of {all} blocks are free");
        // In an order that is not that of the stores.
        (0..count).rev().for_each(|i| {
            partition.delete(&key(&name(i)), 0);
        });
        assert_eq!(partition.counters().used_bytes, 0);
        assert_eq!(partition.items.counts(), (all, all));
    }
}

#[test]
fn the_memory_is_what_was_given() {
    let limits = Limits { memory: 10 << 20, max_value: MAX_VALUE };
    let mut partition = Partition::new(&limits).unwrap();
    for len in [MAX_VALUE, 0, 500, MAX_VALUE] {
        fill(&mut partition, len);
        let counters = partition.counters();
        assert!(counters.used_bytes <= counters.total_bytes && counters.total_bytes < limits.memory);
    }
}

#[test]
fn a_value_of_1_mib_is_stored_and_a_longer_one_is_refused() {
    let mut partition = Partition::new(&Limits::new(4 << 20)).unwrap();
    let long: Vec<u8> = (0..MAX_VALUE).map(|i| (i % 251) as u8).collect();
    set(&mut partition, b"long", &long).unwrap();
    assert_eq!(value(&mut partition, b"long", 0), Some(long));
    let refused = set(&mut partition, b"long", &vec![0; MAX_VALUE + 1]);
    assert_eq!(refused, Err(StoreError::ValueTooLong));
    let refused = partition.store(&key(b"long"), &Change::new(StoreMode::Append), b"x", 0);
    assert_eq!(refused, Err(StoreError::ValueTooLong));
    assert_eq!(value(&mut partition, b"long", 0).map(|value| value.len()), Some(MAX_VALUE));
}

#[test]
fn the_item_that_was_used_longest_ago_makes_room() {
    let mut partition = Partition::new(&Limits { memory: 20 << 10, max_value: 1000 }).unwrap();
    let count = fill(&mut partition, 50);
    let present: Vec<bool> = (0..count).map(|i| value(&mut partition, &name(i), 0).is_some()).collect();
    let oldest = present.iter().position(|present| *present).unwrap();
    assert!(oldest > 0 && present[oldest..].iter().all(|present| *present), "{present:?}");
    // The oldest item stays after a get, and the next one makes room.
    value(&mut partition, &name(oldest), 0);
    set(&mut partition, b"one more", &[7; 50]).unwrap();
    assert!(value(&mut partition, &name(oldest), 0).is_some());
    assert!(value(&mut partition, &name(oldest + 1), 0).is_none());
}

#[test]
fn numbers_go_up_and_down_within_64_bits() {
    let mut partition = Partition::new(&Limits { memory: 1 << 20, max_value: 1000 }).unwrap();
    let mut number = |text: &[u8], delta| {
        set(&mut partition, b"n", text).unwrap();
        let changed = partition.change_number(&key(b"n"), delta, 0);
        (changed, value(&mut partition, b"n", 0).unwrap())
    };
    assert_eq!(number(b"9", Delta::Up(1)), (Ok(Some(10)), b"10".to_vec()));
    assert_eq!(number(b"10", Delta::Down(1)), (Ok(Some(9)), b"9".to_vec()));
    assert_eq!(number(b"5", Delta::Down(7)), (Ok(Some(0)), b"0".to_vec()));
    assert_eq!(number(b"18446744073709551615", Delta::Up(2)), (Ok(Some(1)), b"1".to_vec()));
    assert_eq!(number(b"007 ", Delta::Up(0)), (Ok(Some(7)), b"7".to_vec()));
    for text in [&b""[..], b"-1", b"1x", b" 1", b"18446744073709551616", &[b'1'; 25]] {
        assert_eq!(number(text, Delta::Up(1)), (Err(StoreError::NotANumber), text.to_vec()));
    }
    assert_eq!(partition.change_number(&key(b"none"), Delta::Up(1), 0), Ok(None));
    let counters = partition.counters();
    assert_eq!((counters.incr_hits, counters.decr_hits, counters.incr_misses), (3, 2, 1));
}

#[test]
fn a_held_value_outlives_its_item() {
    let mut partition = Partition::new(&Limits { memory: 20 << 10, max_value: 5000 }).unwrap();
    set(&mut partition, b"a", &[1; 5000]).unwrap();
    let mut download = partition.begin_download(&key(b"a"), 0).unwrap();
    set(&mut partition, b"a", &[2; 5000]).unwrap();
    fill(&mut partition, 100);
    let mut read = Vec::new();
    while download.left() > 0 {
        partition.continue_download(&mut download, 999, &mut read);
    }
    assert_eq!(read, [1; 5000]);
    let held = partition.counters().used_bytes;
    partition.end_download(download);
    assert!(partition.counters().used_bytes + 5000 <= held);
}

#[test]
fn transfers_that_hold_all_memory_refuse_others_and_evict_nothing() {
    let mut partition = Partition::new(&Limits { memory: 20 << 10, max_value: 5000 }).unwrap();
    set(&mut partition, b"small", b"value").unwrap();
    let change = Change::new(StoreMode::Set);
    let mut uploads = Vec::new();
    let refused = loop {
        match partition.begin_upload(&key(b"up"), &change, 5000, 0) {
            Ok(upload) => uploads.push(upload),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, uploads.len()), (StoreError::Full, 3));
    assert_eq!(value(&mut partition, b"small", 0), Some(b"value".to_vec()));
    uploads.into_iter().for_each(|upload| partition.abort_upload(upload));
    assert!(set(&mut partition, b"a", &[2; 5000]).is_ok());
}

#[test]
fn a_store_selects_the_partition_of_a_key() {
    let options = StoreOptions::new(40 << 20).partitions(4);
    let store = Store::new(&options).unwrap();
    for i in 0..100_u32 {
        let put = store.with_key(&i.to_le_bytes(), |partition, key, now| {
            partition.store(key, &Change::new(StoreMode::Set), b"value", now)
        });
        assert!(matches!(put, Ok(Ok(StoreOutcome::Stored(_)))));
    }
    let counts: Vec<u64> = (0..4).map(|i| store.with_partition(i, |part, _| part.counters().items)).collect();
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
    assert_eq!(store.counters().items, 100);
    assert_eq!(store.with_key(b"", |_, _, _| ()), Err(KeyError(0)));
    assert_eq!(store.expires(None), NEVER);
    assert!(store.expires(Some(Duration::from_secs(1))) >= 1001);
    assert_eq!(Store::new(&options.partitions(65)).unwrap_err(), SizeError::Partitions(65));
}
