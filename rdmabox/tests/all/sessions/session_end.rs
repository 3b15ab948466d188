//! Tests that a host accesses no memory of a session after its service has learnt that the
//! session ended, for every way to end it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rdmabox::{
    Access, CallError, CallsBy, Export, Host, HostHandle, Memory, Peer, ProviderKind, RemoteAddr, Reply,
    RequestError, Service, Session,
};

use crate::support::{addresses, host, providers};

/// A write of it takes longer than a session to end.
const LEN: usize = 128 << 20;
/// Bytes that the service reuses.
const TAIL: usize = 1 << 20;

/// Reuses its memory as soon as it may.
struct Reuse {
    memory: Arc<Memory>,
    export: Mutex<Option<Export>>,
    ended: AtomicU64,
}

impl Service for Reuse {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        if request == b"end" {
            return Err(CallError::EndSession("on request".into()));
        }
        let export = self.export.lock();
        let remote = peer.remote_addr(export.as_ref().unwrap());
        reply.extend_from_slice(&remote.to_le_bytes());
        Ok(())
    }

    fn disconnected(&self, _: &Peer) {
        // Where a write that is still under way comes last.
        self.memory.write(LEN - TAIL, &vec![1; TAIL]);
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets `end` end the session during a long write, then checks the bytes that the service reuses.
fn end_during_a_write(
    provider: ProviderKind,
    data: &[u8],
    end: impl FnOnce(&Session, &mut Option<HostHandle>),
) {
    let _ = env_logger::builder().is_test(true).try_init();
    let dir = tempfile::tempdir().unwrap();
    let host = host();
    let memory = Arc::new(Memory::shared("reused", LEN).unwrap());
    let export = Mutex::new(Some(host.export(&memory, Access::REMOTE_ALL).unwrap()));
    let service = Arc::new(Reuse { memory: Arc::clone(&memory), export, ended: AtomicU64::new(0) });
    let listen = addresses(provider, dir.path());
    let running = host.listen(&listen, Arc::<Reuse>::clone(&service) as Arc<dyn Service>).unwrap();
    let address = running.addresses().iter().find(|address| address.provider() == provider).unwrap().clone();
    let mut running = Some(running);
    let session = Session::builder().provider(provider).connect(&address).unwrap();
    let mut reply = Vec::new();
    session.call(b"where", &mut reply).unwrap();
    let base = RemoteAddr::from_le_bytes(reply[..].try_into().unwrap());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| session.write(base, data));
        while memory.load_u64(0) == 0 {
            std::thread::yield_now();
        }
        end(&session, &mut running);
        // It may have been through before the end came.
        let result = writer.join().unwrap();
        assert!(matches!(result, Ok(()) | Err(RequestError::Disconnected)), "{result:?}");
    });
    while service.ended.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut found = vec![0; TAIL];
    memory.read(LEN - TAIL, &mut found);
    let changed = found.iter().filter(|byte| **byte != 1).count();
    assert_eq!(changed, 0, "bytes were written after the end");
}

#[test]
fn nothing_is_written_after_the_end() {
    // One after the other: each takes much memory.
    let data = vec![0xEE; LEN];
    for provider in providers() {
        end_during_a_write(provider, &data, |session, _| session.close(Duration::ZERO));
        end_during_a_write(provider, &data, |_, running| drop(running.take()));
        end_during_a_write(provider, &data, |session, _| {
            assert_eq!(session.call(b"end", &mut Vec::new()), Err(RequestError::Disconnected));
        });
        end_during_a_write(provider, &data, |_, running| {
            let terminator = running.as_ref().unwrap().ender();
            assert!(!terminator.end(2, "no such session") && terminator.end(1, "the service wants it so"));
        });
    }
}

/// Calls of it take as long as they are told.
struct Slow {
    entered: Sender<u64>,
    go_on: Mutex<Receiver<()>>,
}

impl Service for Slow {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        if request == b"slow" {
            self.entered.send(peer.id()).unwrap();
            // Blocks until the test has finished.
            let _ = self.go_on.lock().recv();
        }
        reply.extend_from_slice(request);
        Ok(())
    }
}

#[test]
fn a_session_that_ends_during_a_call_holds_up_no_other() {
    for provider in providers() {
        let dir = tempfile::tempdir().unwrap();
        let ((entered, is_in), (go_on, told)) = (channel(), channel());
        let slow = Arc::new(Slow { entered, go_on: Mutex::new(told) });
        let running = Host::new().unwrap().listen(&addresses(provider, dir.path()), slow).unwrap();
        let address = running.addresses().iter().find(|address| address.provider() == provider).unwrap();
        let calls = CallsBy::Reply;
        let options = Session::builder().provider(provider).calls(calls).into_options();
        let [ending, other] = [0; 2].map(|_| Session::connect(address, &options).unwrap());
        ending.start_call(b"slow").unwrap();
        let id = is_in.recv().unwrap();
        let terminator = running.ender();
        while terminator.end(id, "in the middle of a call") {
            std::thread::yield_now();
        }
        // As many as there may be threads for calls, and more.
        (0..7).for_each(|_| ending.start_call(b"too late").unwrap());
        let mut reply = Vec::new();
        let answered = other.call(b"in time", &mut reply);
        drop(go_on);
        assert_eq!((answered, reply), (Ok(()), b"in time".to_vec()));
    }
}
