//! Executes requests on one partition.
//!
//! A request is executed under the lock of the partition, so it is atomic. Values longer than
//! [`MAX_PART`] travel in parts. Replies are appended to a buffer of the caller, and no request of
//! a short value allocates.
//!
//! # Concurrency
//! Any thread may call it. Lock order: the partition, then `transfers`.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rdmabox::CallError;

use super::transfers::{Transfer, Transfers};
use crate::{
    protocol::{Entry, MAX_KEYS, MAX_PART, Request, Status, StoreRequest, ValueReply},
    store::{Change, Key, Partition, Store, StoreMode, StoreOutcome},
};

/// Executes the requests to one partition.
#[derive(Debug)]
pub struct Executor {
    store: Arc<Store>,
    index: usize,
    transfers: Mutex<Transfers>,
}

impl Executor {
    /// Makes an executor for partition `index` of a store.
    ///
    /// # Panics
    /// If the store has fewer partitions.
    pub fn new(store: Arc<Store>, index: usize) -> Executor {
        assert!(index < store.partitions(), "no partition {index}");
        Executor { store, index, transfers: Mutex::default() }
    }

    /// Executes a request of a session, and appends the reply. [`Request::Hello`] is refused: the
    /// listener answers it.
    ///
    /// # Errors
    /// [`CallError::Rejected`] for a request that no client of this version makes.
    pub fn execute(&self, session: u64, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<(), CallError> {
        let ending = match *request {
            Request::Hello => return Err("a hello inside a session".into()),
            Request::Get { with_version, key } => self.on_key(key, |partition, key, now| {
                self.get(session, partition, key, now, with_version, reply)
            })?,
            Request::GetAndTouch { time_to_live, key } => {
                let expires = self.expires(time_to_live);
                self.on_key(key, |partition, key, now| {
                    let ending = self.get(session, partition, key, now, true, reply);
                    // Behind the lookup: the reply has the value also if the new time is over.
                    partition.touch(key, expires, now);
                    ending
                })?
            }
            Request::GetMany { keys } => self.get_many(keys, reply)?,
            Request::Store { change, key, value } => {
                let change = self.change(&change);
                self.on_key(key, |partition, key, now| {
                    partition.store(key, &change, value, now).map_or_else(refuse, answer)
                })?
            }
            Request::Delete { key } => {
                self.on_key(key, |partition, key, now| found(partition.delete(key, now)))?
            }
            Request::Touch { time_to_live, key } => {
                let expires = self.expires(time_to_live);
                self.on_key(key, |partition, key, now| found(partition.touch(key, expires, now)))?
            }
            Request::ChangeNumber { delta, key } => {
                self.on_key(key, |partition, key, now| match partition.change_number(key, delta, now) {
                    Ok(Some(number)) => ValueReply { version: Some(number), ..found(true) },
                    Ok(None) => found(false),
                    Err(error) => refuse(error),
                })?
            }
            Request::BeginUpload { change, value_len, key } => {
                self.begin_upload(session, &change, value_len as usize, key)?
            }
            Request::ContinueUpload { transfer, part } => self.continue_upload(session, transfer, part),
            Request::FinishUpload { transfer } => self.finish_upload(session, transfer),
            Request::ContinueDownload { transfer } => self.continue_download(session, transfer, reply),
            Request::Flush { delay } => self.store.with_partition(self.index, |partition, now| {
                partition.flush(now.saturating_add(delay), now);
                found(true)
            }),
            Request::Counters => self.store.with_partition(self.index, |partition, _| {
                partition.counters().values().iter().for_each(|value| reply.extend(value.to_le_bytes()));
                found(true)
            }),
        };
        ending.encode(reply);
        Ok(())
    }

    /// Ends the transfers of a session that has ended.
    pub fn end_session(&self, session: u64) {
        let transfers = self.transfers.lock().take_all(session);
        self.store.with_partition(self.index, |partition, _| {
            transfers.for_each(|transfer| transfer.abort(partition));
        });
    }

    /// Runs a function with the partition and the key, if the key belongs to it.
    fn on_key(
        &self,
        bytes: &[u8],
        run: impl FnOnce(&mut Partition, &Key<'_>, u64) -> ValueReply,
    ) -> Result<ValueReply, CallError> {
        let key = Key::new(bytes, self.store.seed()).map_err(|error| error.to_string())?;
        if key.partition(self.store.partitions()) != self.index {
            return Ok(ValueReply::of_status(Status::OtherPartition));
        }
        Ok(self.store.with_partition(self.index, |partition, now| run(partition, &key, now)))
    }

    fn get(
        &self,
        session: u64,
        partition: &mut Partition,
        key: &Key<'_>,
        now: u64,
        with_version: bool,
        reply: &mut Vec<u8>,
    ) -> ValueReply {
        let Some(item) = partition.get(key, now) else { return found(false) };
        let version = with_version.then(|| item.version());
        let ending = ValueReply { flags: item.flags(), version, ..found(true) };
        if item.value_len() <= MAX_PART {
            item.append_to(reply);
            return ending;
        }
        let mut transfers = self.transfers.lock();
        if !transfers.has_room(session) {
            return ValueReply::of_status(Status::NoTransfer);
        }
        let Some(mut download) = partition.begin_download(key, now) else { return found(false) };
        partition.continue_download(&mut download, MAX_PART, reply);
        let rest = download.left() as u32;
        let transfer = transfers.add(session, Transfer::Download(download));
        ValueReply { transfer: Some((transfer, rest)), ..ending }
    }

    fn get_many(&self, keys: &[u8], reply: &mut Vec<u8>) -> Result<ValueReply, CallError> {
        let (seed, partitions) = (self.store.seed(), self.store.partitions());
        self.store.with_partition(self.index, |partition, now| {
            for key in Request::keys(keys).take(MAX_KEYS) {
                let key = key.map_err(|error| error.to_string())?;
                let key = Key::new(key, seed).map_err(|error| error.to_string())?;
                if key.partition(partitions) != self.index {
                    reply.clear();
                    return Ok(ValueReply::of_status(Status::OtherPartition));
                }
                let Some(item) = partition.get(&key, now) else {
                    Entry::Missing.encode(reply);
                    continue;
                };
                let room = MAX_PART.saturating_sub(reply.len() + Entry::FRAMING);
                if item.value_len() <= room {
                    Entry::begin_found(reply, item.value_len());
                    item.append_to(reply);
                } else if reply.is_empty() {
                    Entry::Long.encode(reply);
                } else {
                    // The client asks again, from this key on.
                    break;
                }
            }
            Ok(found(true))
        })
    }

    fn begin_upload(
        &self,
        session: u64,
        change: &StoreRequest,
        value_len: usize,
        key: &[u8],
    ) -> Result<ValueReply, CallError> {
        if matches!(change.mode, StoreMode::Append | StoreMode::Prepend) {
            return Err("an append or a prepend in parts".into());
        }
        let change = self.change(change);
        self.on_key(key, |partition, key, now| {
            let mut transfers = self.transfers.lock();
            if !transfers.has_room(session) {
                return ValueReply::of_status(Status::NoTransfer);
            }
            match partition.begin_upload(key, &change, value_len, now) {
                Ok(upload) => {
                    let transfer = transfers.add(session, Transfer::Upload(upload));
                    ValueReply { transfer: Some((transfer, value_len as u32)), ..found(true) }
                }
                Err(error) => refuse(error),
            }
        })
    }

    fn continue_upload(&self, session: u64, number: u32, part: &[u8]) -> ValueReply {
        self.store.with_partition(self.index, |partition, _| {
            let mut transfers = self.transfers.lock();
            let mut transfer = transfers.take(session, number);
            let is_stored = match &mut transfer {
                Some(Transfer::Upload(upload)) => partition.continue_upload(upload, part),
                _ => false,
            };
            match transfer {
                Some(upload) if is_stored => {
                    transfers.put_back(session, number, upload);
                    found(true)
                }
                other => no_transfer(other, partition),
            }
        })
    }

    fn finish_upload(&self, session: u64, number: u32) -> ValueReply {
        self.store.with_partition(self.index, |partition, now| {
            match self.transfers.lock().take(session, number) {
                Some(Transfer::Upload(upload)) if upload.left() == 0 => {
                    answer(partition.finish_upload(upload, now))
                }
                other => no_transfer(other, partition),
            }
        })
    }

    fn continue_download(&self, session: u64, number: u32, reply: &mut Vec<u8>) -> ValueReply {
        self.store.with_partition(self.index, |partition, _| {
            let mut transfers = self.transfers.lock();
            match transfers.take(session, number) {
                Some(Transfer::Download(mut download)) => {
                    partition.continue_download(&mut download, MAX_PART, reply);
                    if download.left() == 0 {
                        partition.end_download(download);
                    } else {
                        transfers.put_back(session, number, Transfer::Download(download));
                    }
                    found(true)
                }
                other => no_transfer(other, partition),
            }
        })
    }

    fn change(&self, request: &StoreRequest) -> Change {
        Change { mode: request.mode, flags: request.flags, expires: self.expires(request.time_to_live) }
    }

    fn expires(&self, time_to_live: Option<u64>) -> u64 {
        self.store.expires(time_to_live.map(Duration::from_millis))
    }
}

fn found(found: bool) -> ValueReply {
    ValueReply::of_status(if found { Status::Done } else { Status::Missing })
}

fn refuse(error: crate::store::StoreError) -> ValueReply {
    ValueReply::of_status(error.into())
}

fn answer(outcome: StoreOutcome) -> ValueReply {
    let version = match outcome {
        StoreOutcome::Stored(version) => Some(version),
        _ => None,
    };
    ValueReply { version, ..ValueReply::of_status(Status::of_outcome(outcome)) }
}

/// Ends a transfer that cannot go on, if there is one.
fn no_transfer(transfer: Option<Transfer>, partition: &mut Partition) -> ValueReply {
    if let Some(transfer) = transfer {
        transfer.abort(partition);
    }
    ValueReply::of_status(Status::NoTransfer)
}
