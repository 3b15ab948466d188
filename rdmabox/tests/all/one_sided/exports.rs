//! Exports that come and go while the host runs.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::{
    Access, AtomicScope, Domain, Grant, HostError, HostHandle, Key, KeyId, Keyring, Memory, ProviderKind,
    RemoteAddr, RemoteMr, RequestError, Secret, Service, Session, SessionOptions, verbs::VerbsError,
};

use crate::{
    one_sided::remote_mr::{Directory, exports},
    support::{
        Fixture, REFUSED, addresses, base, host,
        process::{Other, role},
        providers,
    },
};

const LEN: usize = 64 << 10;

/// Keys that are added while the host runs.
#[derive(Default)]
struct Keys(Mutex<HashMap<KeyId, Grant>>);

impl Keyring for Keys {
    fn grant(&self, id: &KeyId) -> Option<Grant> {
        self.0.lock().get(id).cloned()
    }
}

struct Bench {
    running: HostHandle,
    service: Arc<Directory>,
    keys: Arc<Keys>,
    options: SessionOptions,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// Returns a host that exports nothing, whose clients prove keys.
    fn new(provider: ProviderKind, direct: bool) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let (service, keys) = (Arc::<Directory>::default(), Arc::<Keys>::default());
        let serving: Arc<dyn Service> = Arc::<Directory>::clone(&service);
        let host = host().keys(Arc::<Keys>::clone(&keys));
        let running = host.listen(&addresses(provider, dir.path()), serving).unwrap();
        let mut options = Session::builder().provider(provider).direct(direct).into_options();
        if provider == ProviderKind::Rdma {
            (options.connect_timeout, options.operation_timeout) = (LONG, LONG);
        }
        Bench { running, service, keys, options, _dir: dir }
    }

    /// Adds a key whose sessions are in this domain, and connects with it.
    fn connect(&self, name: &str, domain: Domain) -> Arc<Session> {
        let key = Key { id: name.parse().unwrap(), secret: Secret::random().unwrap() };
        self.keys.0.lock().insert(key.id, Grant::new(key.secret.clone(), domain));
        let provider = self.options.provider.unwrap();
        let address = self.running.addresses().iter().find(|a| a.provider() == provider).unwrap();
        Session::builder().options(self.options.clone()).key(key).connect(address).unwrap()
    }

    /// Exports to a domain, and gives the memory as this client sees it.
    fn export(
        &self,
        session: &Session,
        domain: Domain,
        memory: &Arc<Memory>,
        part: std::ops::Range<u64>,
        access: Access,
    ) -> RemoteMr {
        let export = self.running.export_range(domain, memory, part.clone(), access).unwrap();
        assert_eq!((export.range(), export.domain(), export.access()), (part, domain, access));
        self.service.0.lock().push(export);
        *exports(session).last().unwrap()
    }

    fn withdraw(&self, index: usize) -> Result<Arc<Memory>, HostError> {
        let export = self.service.0.lock().remove(index);
        self.running.withdraw(export)
    }
}

const LONG: Duration = Duration::from_secs(60);

fn on_each(test: impl Fn(Bench)) {
    for provider in providers() {
        for direct in [true, false] {
            if direct && provider != ProviderKind::Shm {
                continue;
            }
            eprintln!("--- {provider}, direct {direct}");
            test(Bench::new(provider, direct));
        }
    }
}

/// Writes until a lane is up again after a refused request.
fn write(session: &Session, mr: &RemoteMr, data: &[u8]) -> Result<(), RequestError> {
    loop {
        match session.write(mr.base(), data) {
            Err(RequestError::Flushed) => {}
            outcome => return outcome,
        }
    }
}

/// Returns the number of mappings of a memory in this process: the host's, and those of clients.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// Returns the number of descriptors of a memory in this process.
fn descriptors(name: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    targets.filter(|target| target.to_string_lossy().contains(name)).count()
}

#[test]
fn sessions_use_exports_that_came_later_and_lose_those_that_went() {
    on_each(|bench| {
        let domain = bench.running.domain().unwrap();
        let session = bench.connect("client", domain);
        assert!(exports(&session).is_empty());
        let [first, second] =
            ["exports-first", "exports-second"].map(|name| Arc::new(Memory::shared(name, LEN).unwrap()));
        let all = bench.export(&session, domain, &first, 0..LEN as u64, Access::REMOTE_ALL);
        write(&session, &all, &[1; 8192]).unwrap();
        let part = bench.export(&session, domain, &second, 4096..8192, Access::REMOTE_READ);
        assert_eq!((part.len(), part.access()), (4096, Access::REMOTE_READ));
        second.write(4096, &[2; 4096]);
        let mut back = [0; 4096];
        session.read(part.for_read(0, 4096).unwrap(), &mut back).unwrap();
        assert_eq!(back, [2; 4096]);

        // Neither more bytes nor more rights than were given.
        let behind = part.base().at(4096);
        assert_eq!(session.read(behind, &mut [0; 8]), Err(REFUSED));
        assert_eq!(write(&session, &part, &[3; 8]), Err(REFUSED));

        let shm = session.provider() == ProviderKind::Shm;
        let mapped = mappings("exports-first");
        assert!(!shm || mapped > 1, "the client has mapped it");
        assert!(Arc::ptr_eq(&bench.withdraw(0).unwrap(), &first));
        assert_eq!(write(&session, &all, &[4; 8192]), Err(REFUSED));
        let mut found = [0; 8192];
        first.read(0, &mut found);
        assert_eq!(found, [1; 8192]);
        // A lane that was broken unmaps when it is replaced.
        while mappings("exports-first") != 1 {
            thread::sleep(Duration::from_millis(1));
        }

        // The other export and the session go on; the same memory can be exported again.
        while session.read(part.base(), &mut back) == Err(RequestError::Flushed) {}
        assert_eq!(back, [2; 4096]);
        let again = bench.export(&session, domain, &first, 0..4096, Access::REMOTE_ALL);
        write(&session, &again, &[5; 8]).unwrap();
        // Of two exports of one memory, one goes.
        let beside = bench.export(&session, domain, &first, 4096..8192, Access::REMOTE_ALL);
        bench.withdraw(1).unwrap();
        assert_eq!(write(&session, &again, &[6; 8]), Err(REFUSED));
        write(&session, &beside, &[7; 8]).unwrap();
        assert_eq!(first.load_u64(4096), 0x0707_0707_0707_0707);
        assert!(session.is_connected());

        let outside = bench.running.export_range(domain, &first, 4096.., Access::REMOTE_READ).unwrap();
        assert_eq!(outside.range(), 4096..LEN as u64);
        for range in [0..LEN as u64 + 1, LEN as u64 + 1..u64::MAX] {
            let error = bench.running.export_range(domain, &first, range, Access::REMOTE_READ).unwrap_err();
            assert!(matches!(error, HostError::Verbs(VerbsError::Range { .. })), "{error}");
        }
        drop(session);
        bench.service.0.lock().clear();
    });
}

/// More exports than there are regions, or than a client may map: each is dropped before the next.
/// Catches a client whose list of mappings is full, and a key that is given twice.
#[test]
fn exports_are_dropped_and_made_again_without_end() {
    on_each(|bench| {
        // An RDMA device chooses its keys. Each registration is a system call, which pins pages.
        let is_rdma = bench.options.provider == Some(ProviderKind::Rdma);
        let rounds = if is_rdma { 300 } else { 4200 };
        let domain = bench.running.domain().unwrap();
        let session = bench.connect("client", domain);
        let memory = |name| Arc::new(Memory::shared(name, LEN).unwrap());
        let kept = bench.export(&session, domain, &memory("exports-kept"), 0..LEN as u64, Access::REMOTE_ALL);
        let same = memory("exports-cycle");
        let (mut keys, mut old) = (HashSet::from([kept.base().rkey]), Vec::new());
        for round in 0..rounds {
            let memory = if round % 2 == 0 { Arc::clone(&same) } else { memory("exports-cycle") };
            let mr = bench.export(&session, domain, &memory, 0..LEN as u64, Access::REMOTE_ALL);
            assert!(keys.insert(mr.base().rkey) || is_rdma, "round {round}: a key is given again");
            if round % 100 == 0 {
                session.write(mr.base(), &[1; 8192]).unwrap();
                old.push(mr);
            }
            drop(bench.service.0.lock().pop());
        }
        assert_eq!(session.stats().lane_failures, 0);
        session.write(kept.base(), &[2; 8192]).unwrap();
        // Nothing but this test holds a mapping, or a descriptor.
        let began = Instant::now();
        while (mappings("exports-cycle"), descriptors("exports-cycle")) != (1, 1) {
            assert!(began.elapsed() < LONG, "{} mappings", mappings("exports-cycle"));
            thread::sleep(Duration::from_millis(1));
        }
        // No old address reaches memory that is exported now.
        let mr = bench.export(&session, domain, &same, 0..LEN as u64, Access::REMOTE_ALL);
        for old in old.iter().step_by(7) {
            assert_eq!(write(&session, old, &[3; 8192]), Err(REFUSED));
            let moved = RemoteAddr { rkey: old.base().rkey, ..mr.base() };
            let wrong = RemoteMr::new(moved, LEN as u64, Access::REMOTE_ALL).unwrap();
            assert_eq!(write(&session, &wrong, &[3; 8192]), Err(REFUSED));
        }
        assert_eq!(same.load_u64(0), 0x0101_0101_0101_0101);
        write(&session, &mr, &[4; 8]).unwrap();
        assert_eq!(same.load_u64(0), 0x0404_0404_0404_0404);
        drop(session);
        bench.service.0.lock().clear();
    });
}

#[test]
fn each_client_has_the_rights_of_its_own_domain() {
    on_each(|bench| {
        let memory = Arc::new(Memory::shared("test", LEN).unwrap());
        let domains = [0, 1].map(|_| bench.running.domain().unwrap());
        let [writer, reader] = [("writer", domains[0]), ("reader", domains[1])]
            .map(|(name, domain)| bench.connect(name, domain));
        let written = bench.export(&writer, domains[0], &memory, 0..8192, Access::REMOTE_ALL);
        let read = bench.export(&reader, domains[1], &memory, 0..4096, Access::REMOTE_READ);
        assert_eq!(exports(&reader)[0].access(), Access::empty());
        write(&writer, &written, &[1; 8]).unwrap();
        assert_eq!(reader.load_u64(read.base()), Ok(0x0101_0101_0101_0101));
        assert_eq!(write(&reader, &read, &[2; 8]), Err(REFUSED));
        // The key of another domain's region.
        assert_eq!(write(&reader, &written, &[2; 8]), Err(REFUSED));
        if writer.atomic_scope() != AtomicScope::None {
            writer.fetch_add(written.base(), 1).unwrap();
        }
        bench.withdraw(0).unwrap();
        while reader.read(read.base(), &mut [0; 8]) == Err(RequestError::Flushed) {}
        reader.read(read.base(), &mut [0; 8]).unwrap();
        drop((writer, reader));
        bench.service.0.lock().clear();
    });
}

/// As soon as `withdraw` has returned, the memory has another owner.
#[test]
fn no_write_under_way_touches_withdrawn_memory() {
    const LEN: usize = 4 << 20;
    on_each(|bench| {
        let domain = bench.running.domain().unwrap();
        let session = bench.connect("client", domain);
        for round in 0..10 {
            let memory = Arc::new(Memory::shared("test", LEN).unwrap());
            let mr = bench.export(&session, domain, &memory, 0..LEN as u64, Access::REMOTE_ALL);
            thread::scope(|scope| {
                let writers: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| {
                            let data = vec![1; LEN];
                            loop {
                                match session.write(mr.base(), &data) {
                                    Ok(()) | Err(RequestError::Flushed) => {}
                                    // The lane that was ended with a request under way.
                                    Err(RequestError::Completion(status))
                                        if Err(REFUSED) != Err::<(), _>(RequestError::Completion(status)) => {
                                    }
                                    Err(refused) => return assert_eq!(refused, REFUSED),
                                }
                            }
                        })
                    })
                    .collect();
                while memory.load_u64(LEN - 8) == 0 {
                    thread::yield_now();
                }
                thread::sleep(Duration::from_micros(137 * round));
                let memory = bench.withdraw(0).unwrap();
                memory.write(0, &vec![2; LEN]);
                writers.into_iter().for_each(|writer| writer.join().unwrap());
                let mut found = vec![0; LEN];
                memory.read(0, &mut found);
                assert!(found.iter().all(|byte| *byte == 2), "round {round}");
            });
        }
        assert!(session.is_connected());
    });
}

#[test]
#[ignore = "runs as the client process of the other tests"]
fn client() {
    let Some(address) = role() else { return };
    let session = Session::connect(&address.parse().unwrap(), &SessionOptions::default()).unwrap();
    let base = base(&session);
    session.write(base, &[1; 8]).unwrap();
    println!("\nready to write");
    loop {
        let _ = session.write(base, &[1; 8]);
    }
}

/// A stopped client may be about to write. Its session ends, and with it the wait.
#[test]
fn a_local_client_that_does_not_respond_is_reported_and_ended() {
    let mut f = Fixture::new(ProviderKind::Shm);
    let running = f.running.take().unwrap();
    let other = Other::start("one_sided::exports::client", &f.address.to_string());
    other.stop();
    let export = f.service.export.lock().take().unwrap();
    let error = running.withdraw(export).unwrap_err();
    assert!(matches!(&error, HostError::StillMapped { sessions } if sessions.len() == 1), "{error}");
    assert_eq!(f.service.ended.load(Ordering::SeqCst), 0, "it may still write");
    let again = running.export(&f.memory, Access::REMOTE_ALL).unwrap();
    other.kill();
    while f.service.ended.load(Ordering::SeqCst) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    running.withdraw(again).unwrap();
}
