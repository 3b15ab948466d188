//! Traces of single requests: the events that a sink gets of them.

use std::sync::{Arc, Mutex, MutexGuard};

use rdmabox::{
    BatchMode, MemoryServer, ProviderKind, Session,
    trace::{self, LocalMemory, TraceEvent, TraceSink, Tracer, TransferKind},
};

const KIB: u64 = 1 << 10;

/// Events as text that a test can compare, without numbers of work requests and times.
#[derive(Clone, Debug, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap()
    }

    /// Returns the lines, and forgets them.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines())
    }
}

impl TraceSink for Heard {
    fn record(&self, event: &TraceEvent<'_>) {
        let line = match event {
            TraceEvent::Queued { request, kind, bytes, .. } => format!("queued {request} {kind} {bytes}"),
            TraceEvent::Planned { kind, bytes, requests, memory, .. } => {
                format!("planned {requests:?} {kind} {bytes} {memory}")
            }
            TraceEvent::Posted { work_requests, accepted, .. } => {
                assert!(work_requests.iter().all(|number| *number > 0));
                format!("posted {} {accepted}", work_requests.len())
            }
            TraceEvent::Completed { requests, status, .. } => format!("completed {requests:?} {status:?}"),
            TraceEvent::Delivered { .. } => "delivered".into(),
            TraceEvent::Executed { request, kind, bytes, .. } => format!("executed {request} {kind} {bytes}"),
            TraceEvent::Span { request, category, name, .. } => format!("span {request} {category} {name}"),
            other => panic!("{other:?}"),
        };
        self.lines().push(line);
    }
}

fn session(provider: ProviderKind) -> (rdmabox::HostHandle, Arc<Session>, Heard, Arc<Tracer>) {
    session_in(provider, BatchMode::Hybrid)
}

fn session_in(
    provider: ProviderKind,
    batch: BatchMode,
) -> (rdmabox::HostHandle, Arc<Session>, Heard, Arc<Tracer>) {
    let directory = tempfile::tempdir().unwrap();
    let address = match provider {
        ProviderKind::Shm => directory.path().join("socket").to_str().unwrap().parse().unwrap(),
        _ => "tcp:127.0.0.1:0".parse().unwrap(),
    };
    let host = MemoryServer::listen(&[address], 1 << 20).unwrap();
    let heard = Heard::default();
    let tracer = Tracer::new(heard.clone());
    let builder = Session::builder().provider(provider).batch(batch).trace(Arc::clone(&tracer));
    let session = builder.connect(&host.addresses()[0]).unwrap();
    (host, session, heard, tracer)
}

#[test]
fn a_merged_work_request_names_its_requests_and_its_memory() {
    let (_host, session, heard, tracer) = session(ProviderKind::Tcp);
    let memory = MemoryServer::locate(&session).unwrap();
    let write = |at: u64, bytes: &[u8]| memory.for_write(at, bytes.len()).map(|to| session.write(to, bytes));
    write(0, &[1; 512]).unwrap().unwrap();
    assert!(heard.lines().is_empty(), "a tracer that is off reports {heard:?}");
    tracer.set_on(true);
    {
        let _job = tracer.enter(7);
        let (first, second) = (memory.for_write(0, 512).unwrap(), memory.for_write(512, 512).unwrap());
        session.write_vectored(&[(first, &[1; 512]), (second, &[2; 512])]).unwrap();
    }
    let one =
        ["queued 7 write 512", "queued 7 write 512", "planned [7, 7] write 1024 copied", "posted 1 true"];
    assert_eq!(heard.take(), [&one[..], &["completed [7, 7] Success", "delivered"]].concat());
    for (bytes, memory) in [(64, "inline"), (KIB as usize, "copied"), (64 << 10, "registered")] {
        write(0, &vec![3; bytes]).unwrap().unwrap();
        assert_eq!(heard.take()[1], format!("planned [0] write {bytes} {memory}"));
    }
    let owned = session.buffer(KIB as usize).unwrap();
    let transfer = {
        let _job = tracer.enter(8);
        session.start_write(memory.for_write(0, KIB as usize).unwrap(), owned)
    };
    transfer.wait().unwrap();
    assert!(heard.take().contains(&format!("planned [8] write {KIB} lasting")));
    tracer.set_on(false);
    write(0, &[1; 512]).unwrap().unwrap();
    assert!(heard.lines().is_empty());
}

/// Catches a post that names only the first work request of its chain.
#[test]
fn a_chain_of_work_requests_is_one_post() {
    for (batch, chained) in [(BatchMode::Doorbell, true), (BatchMode::Single, false)] {
        let (_host, session, heard, tracer) = session_in(ProviderKind::Tcp, batch);
        let memory = MemoryServer::locate(&session).unwrap();
        tracer.set_on(true);
        let (first, second) = (memory.for_write(0, 512).unwrap(), memory.for_write(512, 512).unwrap());
        session.write_vectored(&[(first, &[1; 512]), (second, &[2; 512])]).unwrap();
        let posts: Vec<String> = heard.take().into_iter().filter(|line| line.starts_with("posted")).collect();
        let expected: &[&str] =
            if chained { &["posted 2 true"] } else { &["posted 1 true", "posted 1 true"] };
        assert_eq!(posts, expected, "{batch:?}");
    }
}

#[test]
fn mapped_memory_has_no_work_request() {
    let (_host, session, heard, tracer) = session(ProviderKind::Shm);
    let memory = MemoryServer::locate(&session).unwrap();
    tracer.set_on(true);
    let _job = tracer.enter(3);
    session.write(memory.for_write(0, 512).unwrap(), &[1; 512]).unwrap();
    session.read(memory.for_read(0, 64).unwrap(), &mut [0; 64]).unwrap();
    assert_eq!(heard.take(), ["executed 3 write 512", "executed 3 read 64"]);
    assert_eq!((TransferKind::Read.name(), LocalMemory::Copied.name()), ("read", "copied"));
}

#[test]
fn spans_belong_to_the_request_of_their_thread() {
    let (heard, own) = (Heard::default(), trace::span("phase", "none"));
    drop(own);
    let tracer = Tracer::new(heard.clone());
    tracer.set_on(true);
    let _job = tracer.enter(5);
    drop(trace::span("phase", "first"));
    let carried = trace::current().expect("a request");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(trace::span("phase", "no request here"));
            let _job = carried.enter();
            drop(trace::span("phase", "second"));
        });
    });
    assert_eq!(heard.take(), ["span 5 phase first", "span 5 phase second"]);
}
