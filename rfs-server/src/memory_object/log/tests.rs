use proptest::prelude::*;

use super::*;

const LEN: usize = 4096;

fn memory() -> Arc<Memory> {
    Arc::new(Memory::private(8 + 2 * LEN).unwrap())
}

fn copy(memory: &Memory) -> Arc<Memory> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    let copy = Memory::private(bytes.len()).unwrap();
    copy.write(0, &bytes);
    Arc::new(copy)
}

fn gone(ino: u64) -> Vec<u8> {
    let mut ops = Vec::new();
    op::encode(&Op::Gone(ino), &mut ops);
    ops
}

fn read(memory: &Arc<Memory>) -> Result<Vec<u64>, LogError> {
    let mut seen = Vec::new();
    Log::open(Arc::clone(memory), 8, LEN, |op| match op {
        Op::Gone(ino) => {
            seen.push(ino);
            Ok(())
        }
        _ => Err(LogError::Nonsense),
    })?;
    Ok(seen)
}

#[test]
fn both_segments_are_read_until_the_newer_is_complete() {
    let memory = memory();
    assert_eq!(read(&memory), Err(LogError::NoBeginning));
    let log = Log::new(Arc::clone(&memory), 8, LEN);
    log.append(&gone(1)).unwrap();
    assert_eq!(read(&memory), Err(LogError::Missing));
    log.complete().unwrap();
    log.append(&gone(2)).unwrap();
    assert_eq!(read(&memory), Ok(vec![1, 2]));
    log.exchange();
    log.append(&gone(3)).unwrap();
    log.exchange();
    log.append(&gone(4)).unwrap();
    assert_eq!(read(&memory), Ok(vec![1, 2, 3, 4]));
    log.complete().unwrap();
    assert_eq!(read(&memory), Ok(vec![3, 4]));
    log.exchange();
    log.complete().unwrap();
    log.append(&gone(5)).unwrap();
    assert_eq!(read(&memory), Ok(vec![5]));
}

#[test]
fn a_full_log_rejects_appends_and_is_unchanged() {
    let memory = memory();
    let log = Log::new(Arc::clone(&memory), 8, LEN);
    log.complete().unwrap();
    let mut written = Vec::new();
    let mut warned = None;
    while log.append(&gone(written.len() as u64)) != Err(Full) {
        written.push(written.len() as u64);
        warned = warned.or(log.is_nearly_full().then_some(written.len()));
    }
    assert_eq!(read(&memory), Ok(written.clone()));
    assert!(warned.is_some_and(|at| at < written.len() && at > written.len() / 2));
    log.exchange();
    assert!(!log.is_nearly_full());
    log.append(&gone(7)).unwrap();
}

/// Without room for the description, the log could not be compacted: there is no third segment.
#[test]
fn requests_leave_room_for_the_description() {
    let memory = memory();
    let log = Log::new(Arc::clone(&memory), 8, LEN);
    let mut all = 0;
    while !log.is_nearly_full() {
        log.append(&gone(all)).unwrap();
        all += 1;
    }
    log.complete().unwrap();
    log.exchange();
    let mut meanwhile = 0;
    while log.append(&gone(1000 + meanwhile)) != Err(Full) {
        meanwhile += 1;
    }
    assert!(meanwhile > 10, "{meanwhile}");
    (0..all).for_each(|ino| log.describe(&gone(ino)).unwrap());
    // Room is not released to requests before the description is complete.
    assert_eq!(log.append(&gone(7)), Err(Full));
    log.complete().unwrap();
    assert_eq!(read(&memory).unwrap().len() as u64, meanwhile + all);
}

/// A log whose description takes a large part of its segment fills up after less growth than
/// that.
#[test]
fn the_compactor_is_woken_before_the_log_is_full() {
    let log = Log::new(memory(), 8, LEN);
    while log.tail.lock().at < LEN * 5 / 8 {
        log.describe(&gone(1)).unwrap();
    }
    log.complete().unwrap();
    assert!(!log.is_long() && !log.signal.lock().is_due);
    while !log.is_nearly_full() {
        log.append(&gone(1)).unwrap();
    }
    assert!(log.is_long() && log.signal.lock().is_due);
    // Transactions that requests add during a description count as growth.
    log.exchange();
    while log.append(&gone(1)).is_ok() {}
    while log.tail.lock().at < LEN * 11 / 16 {
        log.describe(&gone(1)).unwrap();
    }
    log.complete().unwrap();
    assert!(log.is_long());
    log.exchange();
    log.complete().unwrap();
    assert!(!log.is_long());
    // A full log wakes the compactor, however little it has grown.
    log.signal.lock().is_due = false;
    log.append(&[0; LEN]).unwrap_err();
    assert!(log.signal.lock().is_due);
}

proptest! {
    /// Recovery reads all complete transactions before a torn one, and appends after them.
    #[test]
    fn a_torn_transaction_is_not_read(
        steps in proptest::collection::vec(prop_oneof![8 => Just(0u8), 1 => Just(1), 1 => Just(2)], 1..60),
        last in any::<u64>(),
        cut in any::<prop::sample::Index>(),
        junk in any::<u8>(),
    ) {
        let memory = memory();
        let log = Log::new(Arc::clone(&memory), 8, LEN);
        log.complete().unwrap();
        for (at, step) in steps.iter().enumerate() {
            match step {
                0 => log.append(&gone(at as u64)).unwrap(),
                1 => log.exchange(),
                _ => log.complete().unwrap(),
            }
        }
        let before = read(&memory).unwrap();
        let tail = *log.tail.lock();
        let start = log.place(tail.segment) + tail.at;
        let torn = copy(&memory);
        log.append(&gone(last)).unwrap();
        let after = read(&memory).unwrap();
        prop_assert_eq!(&after[..before.len()], &before[..]);
        prop_assert_eq!(&after[before.len()..], &[last]);
        // A torn write stores in the order of addresses; the first word comes last.
        let mut written = vec![0; 32];
        memory.read(start, &mut written);
        let cut = cut.index(24);
        torn.write(start + 8, &written[8..8 + cut]);
        prop_assert_eq!(&read(&torn).unwrap(), &before);
        // Other bytes in its place.
        torn.write(start, &written);
        torn.write(start + cut, &[written[cut] ^ (junk | 1)]);
        let damaged = read(&torn).unwrap();
        prop_assert!(damaged == before || cut >= 16 + gone(last).len());
        let log = Log::open(Arc::clone(&torn), 8, LEN, |_| Ok(())).unwrap();
        log.append(&gone(77)).unwrap();
        let last = read(&torn).unwrap().last().copied();
        prop_assert_eq!(last, Some(77));
    }
}
