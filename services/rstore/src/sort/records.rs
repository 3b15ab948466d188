//! Records in the form of sortbenchmark.org: 10 bytes of key, 90 bytes of payload.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

/// Length of a record in bytes.
pub const RECORD_BYTES: usize = 100;
/// Length of a key in bytes.
const KEY: usize = 10;

/// A record.
pub(super) type Record = [u8; RECORD_BYTES];

/// Number of records and the sum of their checksums: equal for equal records in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// Number of records.
    pub records: u64,
    /// Sum of the CRC-32C of all records, modulo 2^64.
    pub sum: u64,
}

impl Digest {
    /// Adds records.
    pub(super) fn add(&mut self, records: &[Record]) {
        for record in records {
            self.records += 1;
            self.sum = self.sum.wrapping_add(u64::from(crc32c::crc32c(record)));
        }
    }

    pub(super) fn merge(&mut self, other: Digest) {
        self.records += other.records;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Makes the records of one worker: random keys, and payloads with the number of the record.
pub(super) fn generate(worker: usize, out: &mut [Record]) {
    let mut random = fastrand::Rng::with_seed(0x5eed_0000 + worker as u64);
    for (number, record) in out.iter_mut().enumerate() {
        let (key, payload) = record.split_at_mut(KEY);
        random.fill(key);
        let (name, filler) = payload.split_at_mut(32);
        let text = format!("{:032x}", (worker as u128) << 64 | number as u128);
        name.copy_from_slice(text.as_bytes());
        let letter = b'A' + random.u8(0..26);
        filler.fill(letter);
    }
}

/// Returns the bucket of a record: key ranges of equal width, by the first four bytes.
pub(super) fn bucket_of(record: &Record, buckets: usize) -> usize {
    let head = u32::from_be_bytes([record[0], record[1], record[2], record[3]]);
    ((u64::from(head) * buckets as u64) >> 32) as usize
}

/// Sorts records by their keys.
pub(super) fn sort(records: &mut [Record]) {
    records.sort_unstable_by(|one, two| one[..KEY].cmp(&two[..KEY]));
}

/// Returns true if the keys ascend.
pub(super) fn is_sorted(records: &[Record]) -> bool {
    records.is_sorted_by(|one, two| one[..KEY] <= two[..KEY])
}
