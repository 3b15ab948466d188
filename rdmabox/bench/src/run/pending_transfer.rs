//! A started request, and how its thread learns of the end.
//!
//! A thread waits for a [`Transfer`], and polls for it. Or a callback wakes the thread: then the
//! session's poller has polled and run the callback.

use crossbeam_channel::{Receiver, Sender, bounded};
use rdmabox::{Failed, RecvBuf, RemoteAddr, RequestError, SendBuf, Session, Transfer};

use super::requests::Direction;
use crate::load::Submit;

/// A started request with a buffer of type `B`.
#[derive(Debug)]
pub struct PendingTransfer<B: Send + 'static>(Way<B>);

#[derive(Debug)]
enum Way<B: Send + 'static> {
    Transfer(Transfer<B>),
    Callback(Receiver<Result<B, Failed<B>>>),
}

impl<B: SendBuf + RecvBuf> PendingTransfer<B> {
    /// Starts a request, with a callback if `submit` says so.
    pub fn start(
        session: &Session,
        direction: Direction,
        remote: RemoteAddr,
        buffer: B,
        submit: Submit,
    ) -> PendingTransfer<B> {
        let way = match (submit, direction) {
            (Submit::Callback, Direction::Write) => with_callback(|ended| {
                session.write_then(remote, buffer, report(ended));
            }),
            (Submit::Callback, Direction::Read) => with_callback(|ended| {
                session.read_then(remote, buffer, report(ended));
            }),
            (_, Direction::Write) => Way::Transfer(session.start_write(remote, buffer)),
            (_, Direction::Read) => Way::Transfer(session.start_read(remote, buffer)),
        };
        PendingTransfer(way)
    }
}

impl<B: Send + 'static> PendingTransfer<B> {
    /// Returns true if [`wait`](Self::wait) would not block.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            Way::Transfer(transfer) => transfer.is_done(),
            Way::Callback(ended) => !ended.is_empty(),
        }
    }

    /// Waits for the end. Returns the buffer.
    pub fn wait(self) -> Result<B, RequestError> {
        match self.0 {
            Way::Transfer(transfer) => transfer.wait().map_err(|failed| failed.error),
            Way::Callback(ended) => match ended.recv() {
                Ok(outcome) => outcome.map_err(|failed| failed.error),
                Err(_) => Err(RequestError::Invalid("a callback was dropped and did not run".into())),
            },
        }
    }
}

/// Returns a request whose callback `start` connects to a channel.
fn with_callback<B: Send + 'static>(start: impl FnOnce(Sender<Result<B, Failed<B>>>)) -> Way<B> {
    let (ended, outcome) = bounded(1);
    start(ended);
    Way::Callback(outcome)
}

/// Returns a callback that wakes the thread at the other end.
fn report<B: Send + 'static>(
    ended: Sender<Result<B, Failed<B>>>,
) -> impl FnOnce(Result<B, Failed<B>>) + Send + 'static {
    move |outcome| {
        // The thread may have given up after another failure.
        let _ = ended.send(outcome);
    }
}

#[cfg(test)]
mod tests {
    use rdmabox::MemoryServer;

    use super::*;

    /// Catches a callback that reports nothing, another request's bytes, or before its end.
    #[test]
    fn both_ways_move_the_bytes_and_return_the_buffer() {
        let host = MemoryServer::listen(&["127.0.0.1:0".parse().unwrap()], 4096).unwrap();
        let session = Session::builder().direct(false).connect(&host.addresses()[0]).unwrap();
        let memory = MemoryServer::locate(&session).unwrap();
        for (submit, byte) in [(Submit::Callback, 7), (Submit::Started, 8)] {
            let (to, from) = (memory.for_write(64, 16).unwrap(), memory.for_read(64, 16).unwrap());
            let written =
                PendingTransfer::start(&session, Direction::Write, to, vec![byte; 16], submit).wait();
            assert_eq!(written.unwrap(), [byte; 16]);
            let read = PendingTransfer::start(&session, Direction::Read, from, vec![0; 16], submit);
            assert_eq!(read.wait().unwrap(), [byte; 16]);
        }
    }

    /// Catches a thread that waits forever for a callback that is gone.
    #[test]
    fn a_dropped_callback_is_a_failure() {
        let pending = PendingTransfer::<Vec<u8>>(with_callback(drop));
        assert!(!pending.is_done());
        assert!(pending.wait().unwrap_err().to_string().contains("did not run"));
    }
}
