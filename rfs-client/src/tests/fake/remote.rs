//! The fake server as a remote.

use std::sync::{Arc, atomic::Ordering};

use rdmabox::{Memory, Op, RemoteAddr, RequestError};
use rfs_proto::{Reply, Request, decode_request, encode_reply, encode_reply_with};

use crate::{CallOptions, Remote, tests::fake::Fake};

impl Remote for Fake {
    fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions<'_>,
    ) -> Result<(), RequestError> {
        if let Some(cancel) = options.cancel {
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

    fn start_call(&self, request: &[u8]) -> Result<(), RequestError> {
        self.call(request, &mut Vec::new(), CallOptions::default())
    }

    fn finish_calls(&self) -> Result<(), RequestError> {
        self.alive()
    }

    fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError> {
        self.alive()?;
        for (remote, data) in parts {
            let (memory, offset) = self.memory(*remote, data.len())?;
            memory.write(offset, data);
        }
        Ok(())
    }

    fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError> {
        self.alive()?;
        for (remote, out) in parts {
            let (memory, offset) = self.memory(*remote, out.len())?;
            memory.read(offset, out);
        }
        Ok(())
    }

    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        for op in ops {
            match op {
                Op::Write { remote, data } => self.write_vectored(&[(*remote, data)])?,
                Op::Read { remote, out } => self.read_vectored(&mut [(*remote, out)])?,
                Op::CompareSwap { remote, compare, swap, old } => {
                    let (memory, offset) = self.memory(*remote, 8)?;
                    let (compare, swap) = (*compare, *swap);
                    let word = memory.atomic_u64(offset);
                    **old = word
                        .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                        .unwrap_or_else(|was| was);
                }
                Op::FetchAdd { remote, add, old } => {
                    let (memory, offset) = self.memory(*remote, 8)?;
                    **old = memory.atomic_u64(offset).fetch_add(*add, Ordering::SeqCst);
                }
            }
        }
        Ok(())
    }

    fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)> {
        let (memory, offset) = self.memory(remote, len as usize).ok()?;
        self.mapped.then(|| (memory.clone(), offset))
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    fn description(&self) -> String {
        "a fake".into()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("calls", self.calls())]
    }

    fn close(&self) {}
}
