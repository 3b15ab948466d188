//! Remote memory with bounds and rights, as a service hands it to its clients.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rdmabox::{
    Access, CallError, Export, Grant, Key, Memory, Peer, ProviderKind, RemoteMr, RemoteMrError, Reply,
    RequestError, Secret, Service, Session,
};

use crate::support::{REFUSED, addresses, host, providers};

const LEN: usize = 8192;

/// Answers each call with all its exports.
#[derive(Default)]
pub(crate) struct Directory(pub(crate) Mutex<Vec<Export>>);

impl Service for Directory {
    fn call(&self, peer: &Peer, _: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        for export in &*self.0.lock() {
            reply.extend_from_slice(&peer.remote_mr(export).to_le_bytes());
        }
        Ok(())
    }
}

/// Returns all exports of a [`Directory`] as the client sees them.
pub(crate) fn exports(session: &Session) -> Vec<RemoteMr> {
    let mut reply = Vec::new();
    session.call(b"", &mut reply).unwrap();
    let encoded = reply.chunks_exact(RemoteMr::ENCODED_LEN);
    encoded.map(|bytes| RemoteMr::from_le_bytes(bytes.try_into().unwrap()).unwrap()).collect()
}

/// The rights that a client computes with are the rights that the host grants, on each provider.
#[test]
fn a_client_learns_bounds_and_rights_that_the_host_enforces() {
    for provider in providers() {
        let dir = tempfile::tempdir().unwrap();
        let host = host();
        let key = Key { id: "client".parse().unwrap(), secret: Secret::random().unwrap() };
        let (own, other) = (host.domain().unwrap(), host.domain().unwrap());
        let memory = Arc::new(Memory::shared("test", LEN).unwrap());
        let all = [
            (own, Access::REMOTE_ALL),
            (own, Access::REMOTE_READ),
            (own, Access::REMOTE_READ | Access::REMOTE_WRITE),
            (other, Access::REMOTE_ALL),
        ];
        let exported = all.map(|(domain, access)| host.export_in(domain, &memory, access).unwrap());
        let keys = HashMap::from([(key.id, Grant::new(key.secret.clone(), own))]);
        let service = Arc::new(Directory(Mutex::new(exported.into())));
        let serving: Arc<dyn Service> = Arc::<Directory>::clone(&service);
        let running = host.keys(Arc::new(keys)).listen(&addresses(provider, dir.path()), serving).unwrap();
        let address = running.addresses().iter().find(|address| address.provider() == provider).unwrap();
        let options = Session::builder().provider(provider).key(key).into_options();
        let session = Session::connect(address, &options).unwrap();

        let seen = exports(&session);
        let rights: Vec<Access> = seen.iter().map(RemoteMr::access).collect();
        let two = Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert_eq!(rights, [Access::REMOTE_ANY, Access::REMOTE_READ, two, Access::empty()], "{provider}");
        for mr in &seen {
            assert_eq!(mr.len(), LEN as u64);
            let refused = |local: bool, made: Result<(), RequestError>| {
                assert_eq!(made, if local { Ok(()) } else { Err(REFUSED) }, "{provider}: {mr:?}");
            };
            let unchecked = mr.base().at(64);
            refused(mr.for_read(64, 8).is_ok(), session.read(unchecked, &mut [0; 8]));
            refused(mr.for_write(64, 8).is_ok(), session.write(unchecked, &[1; 8]));
            refused(mr.for_atomic(64).is_ok(), session.fetch_add(unchecked, 1).map(drop));
        }

        // A refused request would break a lane; a local error makes none.
        let failures = session.stats().get("lane_failures");
        let part = seen[0].slice(4096..).unwrap();
        session.write(part.for_write(4088, 8).unwrap(), &[7; 8]).unwrap();
        assert_eq!(memory.load_u64(LEN - 8), u64::from_ne_bytes([7; 8]));
        let outside = RemoteMrError::OutOfBounds { offset: 4089, len: 8, limit: 4096 };
        assert_eq!(part.for_write(4089, 8), Err(outside));
        let error: RequestError = part.for_atomic(4).map(drop).unwrap_err().into();
        assert!(matches!(&error, RequestError::Invalid(text) if text.contains("not aligned")), "{error}");
        assert_eq!(session.stats().get("lane_failures"), failures);
        drop(session);
        drop(running);
        service.0.lock().clear();
    }
    // The test would be empty without them.
    assert!(providers().iter().any(|p| matches!(p, ProviderKind::Shm | ProviderKind::Tcp)));
}
