//! One worker of RSort.
//!
//! # Concurrency
//! One thread.

use super::records::{self, Digest, RECORD_BYTES, Record};
use crate::{
    client::{AllocFlags, Client, Mapping},
    error::Error,
    refusal::Refusal,
};

/// The facts that a worker needs.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// Prefix of all namespaces.
    pub(super) job: String,
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) records: u64,
    /// Number of key ranges.
    pub(super) buckets: usize,
}

/// Returns the records in bytes of whole records.
fn records_of(bytes: &[u8]) -> &[Record] {
    bytes.as_chunks().0
}

impl Share {
    fn bucket(&self, worker: usize, bucket: usize) -> String {
        format!("{}/worker_{worker}_bucket_{bucket}", self.job)
    }

    /// Returns the name of the result of a key range.
    pub(super) fn result(&self, bucket: usize) -> String {
        format!("{}/final_{bucket}", self.job)
    }

    fn input(&self) -> String {
        format!("{}/input_{}", self.job, self.worker)
    }

    /// Returns the key ranges of this worker in the second phase.
    pub(super) fn ranges(&self) -> impl Iterator<Item = usize> + use<> {
        (self.worker..self.buckets).step_by(self.workers)
    }

    /// Makes a namespace with one region, and maps it.
    fn make(client: &Client, name: &str, bytes: u64) -> Result<Mapping, Error> {
        let namespace = client.create(name)?;
        namespace.alloc_reserved(bytes, AllocFlags::InPlace)?.map_all()
    }

    /// Maps the region of a namespace that [`make`](Self::make) made. `None` if it has none.
    fn find(client: &Client, name: &str) -> Result<Option<Mapping>, Error> {
        let namespace = match client.join(name) {
            Err(Error::Refused(Refusal::NoSuchNamespace(_))) => return Ok(None),
            namespace => namespace?,
        };
        Ok(Some(namespace.open(namespace.first_address(), 1)?.map_all()?))
    }

    /// Writes the input of this worker. Returns its digest.
    pub(super) fn generate(&self, client: &Client) -> Result<Digest, Error> {
        let bytes = self.records * RECORD_BYTES as u64;
        let mut mapping = Share::make(client, &self.input(), bytes)?;
        let records = mapping.local_mut().as_chunks_mut().0;
        records::generate(self.worker, records);
        let mut digest = Digest::default();
        digest.add(records);
        mapping.write(0..bytes)?;
        Ok(digest)
    }

    /// Classifies the input into buckets (phase one).
    pub(super) fn classify(&self, client: &Client) -> Result<(), Error> {
        let Some(mut input) = Share::find(client, &self.input())? else { return Ok(()) };
        let len = input.len();
        let records = records_of(input.read(0..len)?);
        let mut counts = vec![0_u64; self.buckets];
        records.iter().for_each(|record| counts[records::bucket_of(record, self.buckets)] += 1);
        let mut buckets = Vec::new();
        for (bucket, count) in counts.iter().enumerate() {
            let bytes = count * RECORD_BYTES as u64;
            let name = self.bucket(self.worker, bucket);
            // A bucket without records has no namespace.
            let mapping = (bytes > 0).then(|| Share::make(client, &name, bytes)).transpose()?;
            buckets.push((mapping, 0));
        }
        for record in records {
            let (mapping, at) = &mut buckets[records::bucket_of(record, self.buckets)];
            if let Some(mapping) = mapping {
                mapping.local_mut()[*at..*at + RECORD_BYTES].copy_from_slice(record);
                *at += RECORD_BYTES;
            }
        }
        for (mapping, end) in &mut buckets {
            if let Some(mapping) = mapping {
                mapping.write(0..*end as u64)?;
            }
        }
        Ok(())
    }

    /// Assembles, sorts and writes the key ranges of this worker (phase two).
    pub(super) fn assemble(&self, client: &Client) -> Result<(), Error> {
        for range in self.ranges() {
            let mut sources = Vec::new();
            for worker in 0..self.workers {
                sources.extend(Share::find(client, &self.bucket(worker, range))?);
            }
            let total: u64 = sources.iter().map(Mapping::len).sum();
            if total == 0 {
                continue;
            }
            let mut result = Share::make(client, &self.result(range), total)?;
            let mut rest = result.local_mut();
            for mut source in sources {
                let (part, later) = rest.split_at_mut(source.len() as usize);
                source.read_into(0, part)?;
                rest = later;
            }
            records::sort(result.local_mut().as_chunks_mut().0);
            result.write(0..total)?;
        }
        Ok(())
    }

    /// Reads the results of all ranges, and checks that their keys ascend. Returns their digest.
    pub(super) fn validate(&self, client: &Client) -> Result<(bool, Digest), Error> {
        let (mut digest, mut is_sorted, mut last) = (Digest::default(), true, None::<Record>);
        for range in 0..self.buckets {
            let Some(mut mapping) = Share::find(client, &self.result(range))? else { continue };
            let len = mapping.len();
            let records = records_of(mapping.read(0..len)?);
            is_sorted &= records::is_sorted(records);
            if let (Some(last), Some(first)) = (last, records.first()) {
                is_sorted &= records::is_sorted(&[last, *first]);
            }
            last = records.last().copied().or(last);
            digest.add(records);
        }
        Ok((is_sorted, digest))
    }

    /// Deletes the namespaces of this worker.
    pub(super) fn clean(&self, client: &Client) -> Result<(), Error> {
        let buckets = (0..self.buckets).map(|bucket| self.bucket(self.worker, bucket));
        let names = buckets.chain(self.ranges().map(|range| self.result(range)));
        for name in names.chain([self.input()]) {
            match client.join(&name) {
                Ok(namespace) => namespace.delete()?,
                Err(Error::Refused(Refusal::NoSuchNamespace(_))) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
