//! The client: one method for each operation.
//!
//! # Concurrency
//! Any thread may use it; no locks.

use std::{sync::Arc, time::Duration};

use rdmabox::{Address, Session};

use super::{
    connect::connect,
    error::ClientError,
    keyspace::Keyspace,
    many,
    options::{ClientOptions, ItemInfo, Put},
    scratch::{Scratch, with_scratch},
    transfer,
};
use crate::{
    protocol::{DecodeError, MAX_PART, Request, Status, StoreRequest, ValueReply},
    store::{Counters, Delta, StoreError, StoreMode, StoreOutcome},
};

/// A client of a store, with a session to each of its partitions.
///
/// Any number of threads can share it. For many calls at a time, give each thread a client of its
/// own: a session has 16 places for calls. Keys have 1 to 250 bytes.
///
/// # Errors
/// All methods return [`ClientError`]. If [`ClientError::is_disconnected`] is true, connect a new
/// client. It is then unknown whether the operation was executed; a get can be repeated.
#[derive(Debug)]
pub struct Client {
    keyspace: Keyspace,
}

impl Client {
    /// Connects to all partitions of the server at `address`.
    ///
    /// # Errors
    /// [`ClientError::Connect`] and [`ClientError::NotAServer`]. Nothing is left behind.
    pub fn connect(address: &Address, options: &ClientOptions) -> Result<Client, ClientError> {
        Ok(Client { keyspace: connect(address, &options.session)? })
    }

    /// Gets a value, which replaces the content of `value`. If there is no item, returns false and
    /// leaves `value` empty. The value arrives in the buffer without a further copy, and without
    /// an allocation if the buffer is large enough.
    ///
    /// # Errors
    /// See [`Client`]. The content of `value` is then undefined.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, ClientError> {
        let request = Request::Get { with_version: false, key };
        Ok(self.fetch(key, &request, value)?.status == Status::Done)
    }

    /// Gets a value as [`get`](Self::get), with the flags and the version of the item.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_item(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<ItemInfo>, ClientError> {
        let request = Request::Get { with_version: true, key };
        Ok(info(&self.fetch(key, &request, value)?))
    }

    /// Gets a value as [`get_item`](Self::get_item), and sets the time to live of the item.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_and_touch(
        &self,
        key: &[u8],
        time_to_live: Option<Duration>,
        value: &mut Vec<u8>,
    ) -> Result<Option<ItemInfo>, ClientError> {
        let request = Request::GetAndTouch { time_to_live: time_to_live.map(milliseconds), key };
        Ok(info(&self.fetch(key, &request, value)?))
    }

    /// Gets several values with one call for each partition, as a rule. Passes each to `visit` with
    /// the place of its key, in any order; `None` if there is no item.
    ///
    /// # Errors
    /// See [`Client`]. Some values may have been passed already.
    pub fn get_many(
        &self,
        keys: &[&[u8]],
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), ClientError> {
        with_scratch(|scratch| many::get_many(&self.keyspace, keys, &mut visit, scratch))
    }

    /// Stores a value, without flags and without a time to live.
    ///
    /// # Errors
    /// See [`Client`]; [`StoreError`] if the value is too long, or if there is no room.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        self.store(key, value, &Put::new(StoreMode::Set)).map(drop)
    }

    /// Stores a value if a condition holds.
    ///
    /// # Errors
    /// As for [`put`](Self::put). An append or a prepend takes at most 60 KiB at a time.
    pub fn store(&self, key: &[u8], value: &[u8], put: &Put) -> Result<StoreOutcome, ClientError> {
        let partition = self.keyspace.partition(key)?;
        let time_to_live = put.time_to_live.map(milliseconds);
        let change = StoreRequest { mode: put.mode, flags: put.flags, time_to_live };
        let is_joined = matches!(put.mode, StoreMode::Append | StoreMode::Prepend);
        if value.len() > self.keyspace.max_value || is_joined && value.len() > MAX_PART {
            return Err(StoreError::ValueTooLong.into());
        }
        let ending = with_scratch(|scratch| {
            if value.len() > MAX_PART {
                return transfer::upload(&self.keyspace, partition, change, key, value, scratch);
            }
            let Scratch { request, reply } = scratch;
            self.keyspace.call(partition, &Request::Store { change, key, value }, request, reply)
        })?;
        let reason = DecodeError::Field("version");
        match ending.status {
            Status::Done => {
                ending.version.map(StoreOutcome::Stored).ok_or(ClientError::Reply { partition, reason })
            }
            Status::OtherVersion => Ok(StoreOutcome::OtherVersion),
            Status::Missing => Ok(StoreOutcome::NotFound),
            _ => Ok(StoreOutcome::NotStored),
        }
    }

    /// Deletes an item. Returns false if there is none.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, ClientError> {
        Ok(self.ask(key, &Request::Delete { key })?.status == Status::Done)
    }

    /// Sets the time to live of an item. Returns false if there is none.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn touch(&self, key: &[u8], time_to_live: Option<Duration>) -> Result<bool, ClientError> {
        let request = Request::Touch { time_to_live: time_to_live.map(milliseconds), key };
        Ok(self.ask(key, &request)?.status == Status::Done)
    }

    /// Adds to a counter or subtracts from it. A counter is a value of decimal digits. Returns the
    /// new number, or `None` if there is no item.
    ///
    /// # Errors
    /// See [`Client`]; [`StoreError::NotANumber`] if the value is no number.
    pub fn change_number(&self, key: &[u8], delta: Delta) -> Result<Option<u64>, ClientError> {
        Ok(self.ask(key, &Request::ChangeNumber { delta, key })?.version)
    }

    /// Removes all items of all partitions, after a delay.
    ///
    /// # Errors
    /// See [`Client`]. Some partitions may have removed their items.
    pub fn flush(&self, delay: Duration) -> Result<(), ClientError> {
        let request = Request::Flush { delay: milliseconds(delay) };
        (0..self.keyspace.sessions.len()).try_for_each(|partition| {
            with_scratch(|Scratch { request: bytes, reply }| {
                self.keyspace.call(partition, &request, bytes, reply).map(drop)
            })
        })
    }

    /// Returns the counters of the store: the sums of its partitions.
    ///
    /// # Errors
    /// See [`Client`].
    pub fn counters(&self) -> Result<Counters, ClientError> {
        let mut sum = Counters::default();
        for partition in 0..self.keyspace.sessions.len() {
            with_scratch(|Scratch { request, reply }| {
                self.keyspace.call(partition, &Request::Counters, request, reply)?;
                sum += decode_counters(reply)
                    .ok_or(ClientError::Reply { partition, reason: DecodeError::Short })?;
                Ok::<(), ClientError>(())
            })?;
        }
        Ok(sum)
    }

    /// Returns the sessions with the partitions, for their statistics.
    pub fn sessions(&self) -> &[Arc<Session>] {
        &self.keyspace.sessions
    }

    /// Makes a call whose reply has no value.
    fn ask(&self, key: &[u8], request: &Request<'_>) -> Result<ValueReply, ClientError> {
        let partition = self.keyspace.partition(key)?;
        with_scratch(|Scratch { request: bytes, reply }| self.keyspace.call(partition, request, bytes, reply))
    }

    /// Makes a call for a value, and fetches the parts of a long value.
    fn fetch(
        &self,
        key: &[u8],
        request: &Request<'_>,
        value: &mut Vec<u8>,
    ) -> Result<ValueReply, ClientError> {
        let partition = self.keyspace.partition(key)?;
        with_scratch(|scratch| {
            let ending = self.keyspace.call(partition, request, &mut scratch.request, value)?;
            if let Some(rest) = ending.transfer {
                transfer::download(&self.keyspace, partition, rest, value, scratch)?;
            }
            Ok(ending)
        })
    }
}

fn info(ending: &ValueReply) -> Option<ItemInfo> {
    let version = ending.version.filter(|_| ending.status == Status::Done)?;
    Some(ItemInfo { flags: ending.flags, version })
}

fn milliseconds(time: Duration) -> u64 {
    // The largest number stands for no end.
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

fn decode_counters(bytes: &[u8]) -> Option<Counters> {
    let (values, rest) = bytes.as_chunks();
    let values: Vec<u64> = values.iter().map(|value| u64::from_le_bytes(*value)).collect();
    values.try_into().ok().filter(|_| rest.is_empty()).map(Counters::from_values)
}
