//! Calls that block.

use rdmabox::RequestError;

use super::{Requests, Target};
use crate::{run::record::Record, servers::protocol};

/// Calls, one at a time.
#[derive(Debug)]
pub struct Calls<'a> {
    targets: &'a [Target],
    request: Vec<u8>,
    reply: Vec<u8>,
    expected: usize,
}

impl<'a> Calls<'a> {
    /// Returns calls of `size` bytes with replies of `reply` bytes.
    pub fn new(targets: &'a [Target], size: u64, reply: u64) -> Self {
        let mut request = vec![0x5a; size as usize];
        protocol::make_echo(&mut request, reply as u32);
        Calls { targets, request, reply: Vec::with_capacity(reply as usize), expected: reply as usize }
    }
}

impl Requests for Calls<'_> {
    fn takes(&self) -> usize {
        1
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        for _ in offsets {
            let began = record.now();
            self.targets[peer].session.call(&self.request, &mut self.reply)?;
            record.completed(1, began, record.now());
            if self.reply.len() != self.expected {
                let text = format!("a reply of {} bytes instead of {}", self.reply.len(), self.expected);
                return Err(RequestError::Invalid(text));
            }
        }
        Ok(())
    }
}
