//! Replies of partitions: a value with its trailer, and the entries of a reply with many values.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use super::{
    fields::Fields,
    status::{DecodeError, Status},
};

/// Bits of the last byte of a reply: which fields are in front of it.
const HAS_FLAGS: u8 = 0x10;
const HAS_VERSION: u8 = 0x20;
const HAS_TRANSFER: u8 = 0x40;
const STATUS: u8 = 0x0f;

/// The end of a reply with a value: all that is not value.
///
/// The fields stand behind the value, from the transfer to the flags, and the last byte tells which
/// ones there are. A reply with a value and without any field is one byte longer than the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueReply {
    /// [`Status::Done`] if there is a value.
    pub status: Status,
    /// Flags of the item.
    pub flags: u32,
    /// Version of the item, or a number that is the result.
    pub version: Option<u64>,
    /// Number of the transfer that has the rest of the value, and the length of the rest in bytes.
    pub transfer: Option<(u32, u32)>,
}

impl ValueReply {
    /// Returns the end of a reply without a value.
    pub fn of_status(status: Status) -> ValueReply {
        ValueReply { status, flags: 0, version: None, transfer: None }
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut last = self.status.code();
        if let Some((transfer, rest)) = self.transfer {
            out.extend_from_slice(&rest.to_le_bytes());
            out.extend_from_slice(&transfer.to_le_bytes());
            last |= HAS_TRANSFER;
        }
        if let Some(version) = self.version {
            out.extend_from_slice(&version.to_le_bytes());
            last |= HAS_VERSION;
        }
        if self.flags != 0 {
            out.extend_from_slice(&self.flags.to_le_bytes());
            last |= HAS_FLAGS;
        }
        out.push(last);
    }

    /// Takes the end off a reply, and leaves the value.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no reply.
    pub fn take(reply: &mut Vec<u8>) -> Result<ValueReply, DecodeError> {
        let (ending, value_len) = Self::split(reply)?;
        reply.truncate(value_len);
        Ok(ending)
    }

    /// Returns the end of a reply and the length of the value in front.
    fn split(reply: &[u8]) -> Result<(ValueReply, usize), DecodeError> {
        let (last, mut rest) = reply.split_last().ok_or(DecodeError::Short)?;
        if last & !(HAS_FLAGS | HAS_VERSION | HAS_TRANSFER | STATUS) != 0 {
            return Err(DecodeError::Field("status"));
        }
        let mut ending = ValueReply::of_status(Status::of_code(last & STATUS)?);
        if last & HAS_FLAGS != 0 {
            ending.flags = u32::from_le_bytes(take_last(&mut rest)?);
        }
        if last & HAS_VERSION != 0 {
            ending.version = Some(u64::from_le_bytes(take_last(&mut rest)?));
        }
        if last & HAS_TRANSFER != 0 {
            let transfer = u32::from_le_bytes(take_last(&mut rest)?);
            ending.transfer = Some((transfer, u32::from_le_bytes(take_last(&mut rest)?)));
        }
        if ending.status != Status::Done && !rest.is_empty() {
            return Err(DecodeError::Long);
        }
        Ok((ending, rest.len()))
    }
}

fn take_last<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (rest, last) = bytes.split_last_chunk().ok_or(DecodeError::Short)?;
    *bytes = rest;
    Ok(*last)
}

const MISSING: u8 = 0;
const FOUND: u8 = 1;
const LONG: u8 = 2;

/// One answer of a reply with many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// There is no item with the key.
    Missing,
    /// The value of the item.
    Found(&'a [u8]),
    /// The value is too long for a reply with others: the client asks for it alone.
    Long,
}

impl Entry<'_> {
    /// Bytes of an entry that are not its value.
    pub const FRAMING: usize = 5;

    /// Appends the encoding of the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Missing => out.push(MISSING),
            Entry::Long => out.push(LONG),
            Entry::Found(value) => {
                Entry::begin_found(out, value.len());
                out.extend_from_slice(value);
            }
        }
    }

    /// Appends the begin of an entry with a value of `len` bytes, which the caller appends.
    pub(crate) fn begin_found(out: &mut Vec<u8>, len: usize) {
        out.push(FOUND);
        out.extend_from_slice(&(len as u32).to_le_bytes());
    }
}

/// The entries of a reply with many values: the answers to the first keys of the request. The
/// client asks again for keys without an answer.
#[derive(Clone, Debug)]
pub struct Entries<'a>(Fields<'a>);

impl<'a> Entries<'a> {
    /// Returns the entries of a reply.
    ///
    /// # Errors
    /// [`DecodeError`] if the reply does not end with [`Status::Done`].
    pub fn decode(reply: &'a [u8]) -> Result<Entries<'a>, DecodeError> {
        match reply.split_last() {
            None => Err(DecodeError::Short),
            Some((last, rest)) if *last == Status::Done.code() => Ok(Entries(Fields::new(rest))),
            Some(_) => Err(DecodeError::Field("status")),
        }
    }

    fn entry(&mut self) -> Result<Entry<'a>, DecodeError> {
        match self.0.u8()? {
            MISSING => Ok(Entry::Missing),
            LONG => Ok(Entry::Long),
            FOUND => {
                let len = self.0.u32()?;
                self.0.bytes(len as usize).map(Entry::Found)
            }
            _ => Err(DecodeError::Field("entry")),
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.0.rest();
        }
        Some(entry)
    }
}
