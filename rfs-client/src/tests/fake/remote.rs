//! The fake server as a remote.

use std::sync::{Arc, atomic::Ordering};

use rdmabox::{Memory, RequestError};
use rfs_proto::{Reply, Request, decode_request, encode_reply, encode_reply_with};

use crate::{
    remote::{
        CallOptions, Remote, ReplyWait, Status,
        address::{Place, Region},
        operation::{Access, Op},
    },
    tests::fake::Fake,
};

impl Remote for Fake {
    fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions<'_>,
    ) -> Result<(), RequestError> {
        if let ReplyWait::Cancellable(cancel) = options.wait {
            let Ok(Request::Recalls { done }) = decode_request(request) else { panic!("no recalls") };
            return self.recalls.next(done, reply, cancel, || self.alive());
        }
        self.alive()?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let request = decode_request(request).expect("the client encodes requests");
        let answer = self.handle(&request).unwrap_or_else(Reply::Error);
        match *self.directory.lock() {
            Some(directory) if request.directory().is_some() => encode_reply_with(&answer, &directory, reply),
            _ => encode_reply(&answer, reply),
        }
        Ok(())
    }

    fn finish_calls(&self) -> Result<(), RequestError> {
        self.alive()
    }

    fn access(&self, access: &mut Access<'_, '_>) -> Result<(), RequestError> {
        match access {
            Access::Write(parts) => self.write(parts),
            Access::Read(parts) => self.read(parts),
            Access::List(ops) => self.execute(ops),
        }
    }

    fn map(&self, region: Region) -> Option<(Arc<Memory>, usize)> {
        self.mapped.then(|| (self.region(region).clone(), 0))
    }

    fn status(&self) -> Status {
        Status {
            is_connected: self.connected.load(Ordering::Relaxed),
            transport: "a fake".into(),
            counters: vec![("calls", self.calls())],
            ..Status::default()
        }
    }
}

impl Fake {
    fn write(&self, parts: &[(Place, &[u8])]) -> Result<(), RequestError> {
        self.alive()?;
        for (place, data) in parts {
            let (memory, offset) = self.memory(*place, data.len())?;
            memory.write(offset, data);
        }
        Ok(())
    }

    fn read(&self, parts: &mut [(Place, &mut [u8])]) -> Result<(), RequestError> {
        self.alive()?;
        for (place, out) in parts {
            let (memory, offset) = self.memory(*place, out.len())?;
            memory.read(offset, out);
        }
        Ok(())
    }

    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        for op in ops {
            match op {
                Op::Write { place, data } => self.write(&[(*place, data)])?,
                Op::Read { place, out } => self.read(&mut [(*place, out)])?,
                Op::CompareSwap { place, compare, swap, old } => {
                    let (memory, offset) = self.memory(*place, 8)?;
                    let (compare, swap) = (*compare, *swap);
                    let word = memory.atomic_u64(offset);
                    **old = word
                        .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                        .unwrap_or_else(|was| was);
                }
            }
        }
        Ok(())
    }
}
