//! A session after its attach: it knows the regions, and translates places to their addresses.
//!
//! Large writes from a thread's receive buffer use its registration ([`with_registration`]).
//!
//! # Concurrency
//! Any number of threads. No locks.

use std::sync::{Arc, atomic::AtomicBool};

use rdmabox::{Memory, RemoteAddr, RequestError, Session, Until};
use rfs_proto::{Attached, Errno, Reply, VERSION, encode_reply, needed_version};
use smallvec::SmallVec;

use crate::remote::{
    CallOptions, Remote, ReplyWait, Status,
    address::{Epoch, Place, Region, Regions},
    operation::{Access, LIST, Op, Transfer, start_at},
    receive_buffer::with_registration,
    stores::{Move, StoreLinks},
};

/// A session and its names of the server's memory. It ignores epochs: all its places are of one.
#[derive(Debug)]
pub(crate) struct AttachedSession {
    session: Arc<Session>,
    regions: Regions,
    /// Version of the protocol. A mount that reconnects may get another one with the next session.
    version: u32,
    /// Sessions to stores, which have the places that the server does not have.
    stores: StoreLinks,
}

impl AttachedSession {
    /// Pairs a session with the memory of the server to which it has attached. `version` is the one
    /// that the session speaks. `reached` is shared by the sessions of a client that follow each
    /// other: whether one has reached a store.
    pub(crate) fn new(
        session: Arc<Session>,
        attached: &Attached,
        version: u32,
        reached: Arc<AtomicBool>,
    ) -> AttachedSession {
        let stores = StoreLinks::new(Arc::clone(&session), (attached.resumed, version), reached);
        AttachedSession { session, regions: Regions::of(attached), version, stores }
    }

    fn translate<'a>(&self, op: &'a mut Op<'_>) -> rdmabox::Op<'a> {
        let remote = self.regions.address(op.place());
        match op {
            Op::Write { data, .. } => rdmabox::Op::Write { remote, data },
            Op::Read { out, .. } => rdmabox::Op::Read { remote, out },
            Op::CompareSwap { compare, swap, old, .. } => {
                rdmabox::Op::CompareSwap { remote, compare: *compare, swap: *swap, old }
            }
        }
    }

    /// Moves the data of a list, part of which lies in stores, everywhere at once. Returns the
    /// steps on records, which are at the server.
    ///
    /// They come later: a list reads its data before the record, and writes it before it raises the
    /// size.
    fn move_stored<'o, 'd>(
        &self,
        ops: &'o mut [Op<'d>],
    ) -> Result<SmallVec<[&'o mut Op<'d>; LIST]>, RequestError> {
        let (mut own, mut moved) = (SmallVec::new(), Vec::new());
        for op in ops {
            match op {
                op if op.place().region != Region::Arena => own.push(op),
                Op::Write { place, data } => moved.push(Move::Write(*place, data)),
                Op::Read { place, out } => moved.push(Move::Read(*place, out)),
                // The words of a record are in the table of the server.
                Op::CompareSwap { .. } => {
                    return Err(RequestError::Invalid("a compare-and-swap of data".into()));
                }
            }
        }
        self.stores.run(&mut moved, |place| self.regions.address(place))?;
        Ok(own)
    }

    fn write(&self, parts: &[(Place, &[u8])]) -> Result<(), RequestError> {
        if parts.iter().any(|(place, _)| place.store() != 0) {
            let mut moves: Vec<_> = parts.iter().map(|(place, data)| Move::Write(*place, data)).collect();
            return self.stores.run(&mut moves, |place| self.regions.address(place));
        }
        let first = parts.first().map_or(&[][..], |(_, data)| *data);
        with_registration(&self.session, first, || {
            if let [(place, data)] = parts {
                return self.session.write(self.regions.address(*place), data);
            }
            let mut there: SmallVec<[(RemoteAddr, &[u8]); LIST]> = SmallVec::new();
            there.extend(parts.iter().map(|(place, data)| (self.regions.address(*place), *data)));
            self.session.write_vectored(&there)
        })
    }

    fn read(&self, parts: &mut [(Place, &mut [u8])]) -> Result<(), RequestError> {
        if parts.iter().any(|(place, _)| place.store() != 0) {
            let mut moves: Vec<_> = parts.iter_mut().map(|(place, out)| Move::Read(*place, out)).collect();
            return self.stores.run(&mut moves, |place| self.regions.address(place));
        }
        if let [(place, out)] = parts {
            return self.session.read(self.regions.address(*place), out);
        }
        let mut there: SmallVec<[(RemoteAddr, &mut [u8]); LIST]> = SmallVec::new();
        there.extend(parts.iter_mut().map(|(place, out)| (self.regions.address(*place), &mut **out)));
        self.session.read_vectored(&mut there)
    }

    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> {
        if ops.iter().any(|op| op.place().store() != 0) {
            let own = self.move_stored(ops)?;
            let mut there: SmallVec<[rdmabox::Op<'_>; LIST]> = SmallVec::new();
            there.extend(own.into_iter().map(|op| self.translate(op)));
            return if there.is_empty() { Ok(()) } else { self.session.execute(&mut there) };
        }
        let first =
            ops.iter().find_map(|op| if let Op::Write { data, .. } = op { Some(*data) } else { None });
        let mut there: SmallVec<[rdmabox::Op<'_>; LIST]> = SmallVec::new();
        there.extend(ops.iter_mut().map(|op| self.translate(op)));
        with_registration(&self.session, first.unwrap_or(&[]), || self.session.execute(&mut there))
    }
}

/// Returns true if a session of this version of the protocol must not send the request.
///
/// The check is at the last moment: a request of an earlier session may be repeated in one of an
/// older version.
fn is_too_new(request: &[u8], version: u32) -> bool {
    version < VERSION && needed_version(request) > version
}

impl Remote for AttachedSession {
    fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions<'_>,
    ) -> Result<(), RequestError> {
        self.stores.settle()?;
        if is_too_new(request, self.version) {
            // As a server would answer that has the request and not the feature.
            encode_reply(&Reply::Error(Errno::EOPNOTSUPP), reply);
            return Ok(());
        }
        match options.wait {
            ReplyWait::Bounded => self.session.call(request, reply),
            ReplyWait::Cancellable(cancel) => self.session.call_waiting(request, reply, cancel),
            ReplyWait::None => self.session.start_call(request),
        }
    }

    fn call_all(
        &self,
        _: Epoch,
        requests: &[Vec<u8>],
        replies: &mut Vec<Vec<u8>>,
    ) -> Result<(), RequestError> {
        self.stores.settle()?;
        if requests.iter().any(|request| is_too_new(request, self.version)) {
            replies.resize_with(requests.len(), Vec::new);
            let mut pairs = requests.iter().zip(replies);
            return pairs.try_for_each(|(request, reply)| self.call(request, reply, CallOptions::default()));
        }
        self.session.call_all(requests, replies)
    }

    fn finish_calls(&self) -> Result<(), RequestError> {
        self.session.finish_calls()
    }

    fn access(&self, access: &mut Access<'_, '_>) -> Result<(), RequestError> {
        match access {
            Access::Write(parts) => self.write(parts),
            Access::Read(parts) => self.read(parts),
            Access::List(ops) => self.execute(ops),
        }
    }

    fn has_session_to(&self, store: u16) -> bool {
        self.stores.is_connected(store)
    }

    fn start(&self, mut transfers: Vec<Transfer>, until: Option<Until>) {
        let stored: Vec<_> = transfers.extract_if(.., |transfer| transfer.place().store() != 0).collect();
        self.stores.start(stored);
        if transfers.is_empty() && until.is_none() {
            return;
        }
        let address = |place| self.regions.address(place);
        let start_one = |transfer| start_at(&self.session, &address, transfer);
        let start_all = || self.session.together(|| transfers.into_iter().for_each(start_one));
        match until {
            None => start_all(),
            Some(until) => self.session.serve(until, start_all),
        }
    }

    fn map(&self, region: Region) -> Option<(Arc<Memory>, usize)> {
        let region = self.regions.get(region);
        self.session.map(RemoteAddr { addr: region.addr, rkey: region.rkey }, region.len)
    }

    fn ready(&self) -> Result<(), RequestError> {
        if self.session.is_connected() { Ok(()) } else { Err(RequestError::Disconnected) }
    }

    fn status(&self) -> Status {
        let stats = self.session.stats();
        Status {
            is_connected: self.session.is_connected(),
            lost_since: None,
            final_loss: None,
            transport: self.session.description(),
            counters: stats.counters().collect(),
            latencies: vec![
                ("read", stats.read_latency),
                ("write", stats.write_latency),
                ("atomic", stats.atomic_latency),
                ("call", stats.call_latency),
            ],
        }
    }

    fn close(&self) {
        self.stores.close();
        self.session.close(self.session.options().operation_timeout);
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::{OLDEST_VERSION, Request, encode_request};

    use super::*;

    /// Detects a request that a server of the last release does not know: it would end the session.
    #[test]
    fn a_session_sends_no_request_that_its_version_does_not_have() {
        let too_new = |request: &Request<'_>| {
            let mut bytes = Vec::new();
            encode_request(request, &mut bytes);
            [OLDEST_VERSION, VERSION].map(|version| is_too_new(&bytes, version))
        };
        assert_eq!(too_new(&Request::GetAttr { ino: 1 }), [false, false]);
        assert_eq!(too_new(&Request::Birth { ino: 1 }), [true, false]);
        let mut birth = Vec::new();
        encode_request(&Request::Birth { ino: 1 }, &mut birth);
        assert_eq!(too_new(&Request::Once { slot: 0, sequence: 1, request: &birth }), [true, false]);
    }
}
