//! READs and WRITEs that block.

use rdmabox::{RemoteAddr, RequestError, Session};

use super::{NOWHERE, Requests, Target};
use crate::run::record::Record;

/// A buffer for blocking requests. A mutable borrow is for READs, a shared borrow for WRITEs.
pub trait Borrowed: Sized {
    /// Executes one request.
    fn one(session: &Session, remote: RemoteAddr, buffer: &mut Self) -> Result<(), RequestError>;

    /// Executes all requests in one call.
    fn all(session: &Session, parts: &mut [(RemoteAddr, Self)]) -> Result<(), RequestError>;
}

impl Borrowed for &mut [u8] {
    fn one(session: &Session, remote: RemoteAddr, buffer: &mut Self) -> Result<(), RequestError> {
        session.read(remote, buffer)
    }

    fn all(session: &Session, parts: &mut [(RemoteAddr, Self)]) -> Result<(), RequestError> {
        session.read_vectored(parts)
    }
}

impl Borrowed for &[u8] {
    fn one(session: &Session, remote: RemoteAddr, buffer: &mut Self) -> Result<(), RequestError> {
        session.write(remote, buffer)
    }

    fn all(session: &Session, parts: &mut [(RemoteAddr, Self)]) -> Result<(), RequestError> {
        session.write_vectored(parts)
    }
}

/// READs or WRITEs, by one blocking call for several or for one.
#[derive(Debug)]
pub struct Blocking<'a, B> {
    targets: &'a [Target],
    parts: Vec<(RemoteAddr, B)>,
}

impl<'a, B: Borrowed> Blocking<'a, B> {
    /// Takes one buffer per outstanding request.
    pub fn new(targets: &'a [Target], buffers: impl Iterator<Item = B>) -> Self {
        Blocking { targets, parts: buffers.map(|buffer| (NOWHERE, buffer)).collect() }
    }
}

impl<B: Borrowed> Requests for Blocking<'_, B> {
    fn takes(&self) -> usize {
        self.parts.len()
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        let target = &self.targets[peer];
        let parts = &mut self.parts[..offsets.len()];
        let began = record.now();
        if let ([(_, buffer)], [offset]) = (&mut *parts, offsets) {
            B::one(&target.session, target.at(*offset), buffer)?;
        } else {
            for (part, offset) in parts.iter_mut().zip(offsets) {
                part.0 = target.at(*offset);
            }
            B::all(&target.session, parts)?;
        }
        record.completed(offsets.len() as u64, began, record.now());
        Ok(())
    }
}
