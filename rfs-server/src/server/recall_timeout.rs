//! Ends sessions that miss the recall timeout, so that the waiting requests proceed.
//!
//! # Concurrency
//! One thread for all exports. It sleeps until something is recalled, then until the first session
//! misses the timeout. Times are those of `run_clock`, because sessions cannot answer a stopped
//! server.

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use crate::{
    coherence::{alarm::Alarm, run_clock},
    dispatch::Dispatcher,
};

/// Handle of the thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub(crate) struct RecallTimeout {
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

impl RecallTimeout {
    /// Starts the thread. It calls `end` with the index of the dispatcher and the session for each
    /// session that misses `timeout`. The dispatchers share `alarm`.
    pub(crate) fn start(
        alarm: Arc<Alarm>,
        dispatchers: Vec<Arc<Dispatcher>>,
        timeout: Duration,
        end: impl Fn(usize, u64) + Send + 'static,
    ) -> io::Result<RecallTimeout> {
        let watched = Arc::clone(&alarm);
        let watch = move || {
            while watched.sleep(dispatchers.iter().filter_map(|d| d.recalls().deadline(timeout)).min()) {
                let now = run_clock::now();
                for (export, dispatcher) in dispatchers.iter().enumerate() {
                    dispatcher
                        .recalls()
                        .give_up(timeout, now)
                        .into_iter()
                        .for_each(|session| end(export, session));
                }
            }
        };
        let thread = std::thread::Builder::new().name("rfs-recall".into()).spawn(watch)?;
        Ok(RecallTimeout { alarm, thread: Some(thread) })
    }
}

impl Drop for RecallTimeout {
    fn drop(&mut self) {
        self.alarm.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the recall timeout thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rdmabox::Memory;
    use rfs_proto::{Errno, ROOT_INO, RegionRef, Reply, Request, VERSION, record};

    use super::*;
    use crate::{
        dispatch::{Outcome, Sender},
        metadata::{clock::ManualClock, root::Root},
        session::registry::Regions,
        space::account::{Space, Zeroing},
    };

    fn dispatcher(alarm: &Arc<Alarm>) -> Arc<Dispatcher> {
        let memory = |len| Arc::new(Memory::private(len).unwrap());
        let space = Arc::new(Space::new(memory(1 << 20), Zeroing::Inline));
        let (root, clock) = (Root { perm: 0o755, uid: 0, gid: 0 }, Arc::new(ManualClock::new(1)));
        let dispatcher = Dispatcher::new(space, memory(8 * record::LEN), root, clock).unwrap();
        Arc::new(dispatcher.with_alarm(Arc::clone(alarm)))
    }

    fn now(dispatcher: &Dispatcher, session: u64, request: Request<'_>) -> Reply {
        match dispatcher.handle(session, request) {
            Outcome::Now(reply) => reply,
            Outcome::Deferred(held) => panic!("{held:?}"),
        }
    }

    #[test]
    fn a_silent_session_ends_and_its_waiters_proceed() {
        let alarm = Arc::<Alarm>::default();
        let dispatchers = [(); 3].map(|()| dispatcher(&alarm));
        let (send, ended) = mpsc::channel();
        let timeout = Duration::from_millis(1);
        let end = move |export, session| send.send((export, session)).unwrap();
        let timeout = RecallTimeout::start(alarm, dispatchers.to_vec(), timeout, end).unwrap();
        // One after the other, so that the thread sleeps in between.
        for (round, dispatcher) in dispatchers.iter().cycle().take(30).enumerate() {
            let [silent, other] = [1, 2].map(|half| 2 * round as u64 + half);
            for session in [silent, other] {
                let region = RegionRef { addr: 0, len: 0, rkey: 0 };
                dispatcher.attachments().began(session, Regions { arena: region, table: region, sums: None });
                let attach = Request::Attach {
                    version: VERSION,
                    client: "",
                    export: "",
                    keeps: true,
                    alone: false,
                    mount: None,
                };
                assert!(matches!(now(dispatcher, session, attach), Reply::Attached(_)));
            }
            let look = Request::Lookup { parent: ROOT_INO, name: b"d" };
            assert_eq!(now(dispatcher, silent, look), Reply::Error(Errno::ENOENT));
            let make = Request::Mkdir { parent: ROOT_INO, name: b"d", perm: 0o700, umask: 0, uid: 0, gid: 0 };
            let Outcome::Deferred(held) = dispatcher.handle(other, make) else { panic!("does not wait") };
            let (send, reply) = mpsc::channel();
            dispatcher.redeem(held, Sender::new(move |reply| send.send(reply).unwrap()));
            assert_eq!(ended.recv(), Ok((round % dispatchers.len(), silent)));
            assert!(matches!(reply.recv(), Ok(Reply::Attr(_))));
            dispatcher.attachments().ended(silent);
            assert_eq!(now(dispatcher, other, Request::Rmdir { parent: ROOT_INO, name: b"d" }), Reply::Done);
            dispatcher.attachments().ended(other);
        }
        drop(timeout);
        assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
}
