//! The description of a store, which a client gets first.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use super::{
    fields::{Fields, put_short},
    status::{DecodeError, Status},
};
use crate::store::StoreOptions;

/// Maximum number of addresses at which a server listens.
pub const MAX_ADDRESSES: usize = 8;
/// Maximum length of the text of an address, in bytes: the addresses of all partitions fit a reply.
pub const MAX_ADDRESS: usize = 120;
const _: () =
    assert!(StoreOptions::MAX_PARTITIONS * MAX_ADDRESSES * (1 + MAX_ADDRESS) + 64 <= rdmabox::MAX_CALL);

/// The description of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Seed of the hash of keys.
    pub seed: u64,
    /// Maximum length of a value in bytes.
    pub max_value: u32,
    /// Number of the partition that answers.
    pub partition: u16,
    /// The addresses of each partition. All partitions have equally many, in the same order.
    pub addresses: Vec<Vec<String>>,
}

impl Hello {
    /// Appends the encoding of the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.seed.to_le_bytes());
        out.extend_from_slice(&self.max_value.to_le_bytes());
        out.extend_from_slice(&self.partition.to_le_bytes());
        out.push(self.addresses.len() as u8);
        out.push(self.addresses.first().map_or(0, Vec::len) as u8);
        for address in self.addresses.iter().flatten() {
            put_short(out, address.as_bytes());
        }
        out.push(Status::Done.code());
    }

    /// Decodes a reply.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no description of a store.
    pub fn decode(bytes: &[u8]) -> Result<Hello, DecodeError> {
        let mut fields = Fields::new(bytes);
        let (seed, max_value, partition) = (fields.u64()?, fields.u32()?, fields.u16()?);
        let (partitions, each) = (usize::from(fields.u8()?), usize::from(fields.u8()?));
        if !(1..=StoreOptions::MAX_PARTITIONS).contains(&partitions) {
            return Err(DecodeError::Field("partitions"));
        }
        if !(1..=MAX_ADDRESSES).contains(&each) {
            return Err(DecodeError::Field("addresses"));
        }
        if usize::from(partition) >= partitions {
            return Err(DecodeError::Field("partition"));
        }
        let mut addresses = Vec::new();
        for _ in 0..partitions {
            let mut own = Vec::new();
            for _ in 0..each {
                let text = std::str::from_utf8(fields.short_bytes()?);
                own.push(text.map_err(|_| DecodeError::Field("address"))?.to_owned());
            }
            addresses.push(own);
        }
        if fields.u8()? != Status::Done.code() {
            return Err(DecodeError::Field("status"));
        }
        fields.end()?;
        Ok(Hello { seed, max_value, partition, addresses })
    }
}
