//! Tests that a client that misses its lease loses its session, and accesses no memory when it
//! resumes.

use std::{
    os::unix::process::ExitStatusExt,
    sync::{Arc, atomic::Ordering, mpsc},
    time::Duration,
};

use rdmabox::{Fencing, Memory, ProviderKind, RequestError, Session};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::{WaitId, WaitIdOptions, waitid},
};

use crate::support::{
    Fixture, LEN, at, base,
    process::{Other, role},
    providers,
};

/// Long enough that a running client renews in time on a busy machine.
const LEASE: Duration = Duration::from_secs(6);
const BLOCK: usize = 256 * 1024;
const BLOCKS: usize = LEN / BLOCK;

/// The byte that the client writes, and the byte written when another client owns the memory.
const ITS: u8 = 0xaa;
const OURS: u8 = 0x55;

/// Exit code of a client that noticed the end of its session.
const NOTICED: i32 = 42;

#[test]
#[ignore = "runs as the client process of the other tests"]
fn client() {
    let Some(role) = role() else { return };
    let (provider, address) = role.split_once(' ').unwrap();
    let session = Session::builder()
        .provider(provider.parse::<ProviderKind>().unwrap())
        .connect_timeout(Duration::from_secs(60))
        .operation_timeout(Duration::from_secs(60))
        .connect(&address.parse().unwrap())
        .unwrap();
    let base = base(&session);
    let data = vec![ITS; BLOCK];
    println!("\nready to write");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (session, data) = (&session, &data);
            scope.spawn(move || {
                for block in (thread..BLOCKS).step_by(2).cycle() {
                    match session.write(at(base, block * BLOCK), data) {
                        // The device may find out before the session does.
                        Ok(()) | Err(RequestError::Flushed | RequestError::Completion(_)) => {}
                        Err(RequestError::Disconnected) => return,
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    std::process::exit(NOTICED);
}

/// Starts a host with leases and a client that writes. Returns both, and a channel that reports
/// the end of the session.
fn writing(provider: ProviderKind, kill: bool) -> (Fixture, Other, mpsc::Receiver<()>) {
    let memory = Arc::new(Memory::shared("test", LEN).unwrap());
    let f = Fixture::fencing(provider, memory, Fencing::new(LEASE, kill));
    let (send, ended) = mpsc::channel();
    *f.service.at_the_end.lock() = Some(Box::new(move || send.send(()).unwrap()));
    let client = Other::start("sessions::fencing::client", &format!("{provider} {}", f.address));
    // It writes.
    while f.memory.load_u64(LEN - 8) == 0 {
        std::thread::yield_now();
    }
    (f, client, ended)
}

fn reuse(memory: &Memory) {
    memory.write(0, &vec![OURS; LEN]);
}

fn assert_untouched(memory: &Memory) {
    let mut now = vec![0; LEN];
    memory.read(0, &mut now);
    assert_eq!(now.iter().position(|byte| *byte != OURS), None, "written after the end of the session");
}

#[test]
fn memory_of_a_stopped_client_is_safe_when_it_resumes() {
    // The leases of all end at the same time.
    std::thread::scope(|scope| {
        for provider in providers().into_iter().flat_map(|provider| [provider; 3]) {
            scope.spawn(move || {
                let (f, mut client, ended) = writing(provider, true);
                client.stop();
                ended.recv().unwrap();
                reuse(&f.memory);
                client.go_on();
                let status = client.wait();
                match provider {
                    // Nothing else takes its mapping away.
                    ProviderKind::Shm => assert_eq!(status.signal(), Some(9)),
                    _ => assert_eq!(status.code(), Some(NOTICED)),
                }
                assert_untouched(&f.memory);
            });
        }
    });
}

/// Where clients are not killed, the service hears nothing before the process has ended.
#[test]
fn a_client_that_may_live_keeps_what_it_has_mapped() {
    if !providers().contains(&ProviderKind::Shm) {
        return eprintln!("not run: RDMABOX_TEST_PROVIDERS does not name shm");
    }
    let (f, client, _) = writing(ProviderKind::Shm, false);
    let (pid, (send, ended)) = (client.pid(), mpsc::channel());
    *f.service.at_the_end.lock() = Some(Box::new(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(pid), options).unwrap();
        send.send(status.and_then(|status| status.terminating_signal())).unwrap();
    }));
    client.stop();
    // Longer than the host needs to notice. A shorter sleep would only find fewer mistakes.
    std::thread::sleep(LEASE + Duration::from_secs(4));
    assert!(ended.try_recv().is_err());
    client.kill();
    assert_eq!(ended.recv().unwrap(), Some(9));
}

/// Checks the lock by which the next host of the same memory detects clients of the previous
/// host.
#[test]
fn the_lock_of_a_client_with_mappings_outlives_the_host() {
    if !providers().contains(&ProviderKind::Shm) {
        return eprintln!("not run: RDMABOX_TEST_PROVIDERS does not name shm");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let is_held = || {
        let asking = std::fs::File::open(file.path()).unwrap();
        flock(&asking, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    };
    let tethered = || {
        let tether = std::fs::File::open(file.path()).unwrap();
        flock(&tether, FlockOperation::NonBlockingLockExclusive).unwrap();
        let memory = Arc::new(Memory::shared("test", LEN).unwrap());
        let make = move |process: Option<rdmabox::ConnectedProcess>| {
            if let Some(process) = process {
                assert!(process.pid > 0);
            }
            tether.try_clone().map(Into::into)
        };
        Fixture::of_host(ProviderKind::Shm, memory, |host| host.tether(make))
    };
    // One that has nothing to do lets go when the host has gone, though its session is still there.
    let mut f = tethered();
    let session = f.connect();
    session.write(base(&session), &[1; 8]).unwrap();
    assert!(is_held());
    f.end();
    assert!(until(|| !is_held()));
    drop((f, session));

    // One that is stopped in the middle of a write does when it goes on.
    let mut f = tethered();
    let mut client = Other::start("sessions::fencing::client", &format!("shm {}", f.address));
    assert!(until(|| f.memory.load_u64(LEN - 8) != 0));
    client.stop();
    f.end();
    let [ended, clinging] = [&f.service.ended, &f.service.clinging].map(|count| count.load(Ordering::SeqCst));
    assert_eq!((ended, clinging), (1, 1));
    assert!(is_held());
    client.go_on();
    assert_eq!(client.wait().code(), Some(NOTICED));
    assert!(!is_held());
}

/// Waits until the condition holds, for a minute at least. Returns false if it does not hold by
/// then.
fn until(is_so: impl Fn() -> bool) -> bool {
    (0..60_000).any(|_| {
        let so = is_so();
        if !so {
            std::thread::sleep(Duration::from_millis(1));
        }
        so
    })
}

/// A client that has nothing to do is heard of all the same.
#[test]
fn an_idle_client_keeps_its_session() {
    std::thread::scope(|scope| {
        for provider in providers() {
            scope.spawn(move || {
                let memory = Arc::new(Memory::shared("test", LEN).unwrap());
                let f = Fixture::fencing(provider, memory, Fencing::new(LEASE, true));
                let session = f.connect();
                std::thread::sleep(LEASE * 2);
                session.write(base(&session), &[1; 8]).unwrap();
                assert!(session.is_connected());
            });
        }
    });
}
