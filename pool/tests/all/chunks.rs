//! Chunks of stores, over shared memory and TCP, with real transfers.

use pool::{
    ChunkId, ClientId, Incarnation, LinkError, Order, OrderError, Outcome, Piece, Store, StoreAnswer,
    StoreId, StoreOptions, StoreRequest, Stores, wire::Message,
};
use rdmabox::{Address, ProviderKind, Session, SessionOptions};

const CHUNK: u64 = 64 << 10;
const ID: StoreId = StoreId(3);
const SECRET: Incarnation = Incarnation(0xfeed);

struct Owner {
    store: Store,
    session: std::sync::Arc<Session>,
    options: SessionOptions,
    _dir: tempfile::TempDir,
}

impl Owner {
    fn start(provider: ProviderKind) -> Owner {
        Owner::start_with(provider, 8 * CHUNK)
    }

    fn start_with(provider: ProviderKind, capacity: u64) -> Owner {
        let dir = tempfile::tempdir().expect("a folder");
        let address = match provider {
            ProviderKind::Shm => Address::Unix(dir.path().join("store.sock")),
            _ => "127.0.0.1:0".parse().expect("an address"),
        };
        let mut options = StoreOptions::new(capacity, SECRET);
        options.allow_without_keys = true;
        let store = Store::listen(&[address], &options).expect("a store");
        let mut options = SessionOptions::default();
        options.provider = Some(provider);
        let session = Session::connect(&store.addresses()[0], &options).expect("a session");
        let owner = Owner { store, session, options, _dir: dir };
        assert_eq!(owner.call(&StoreRequest::Lead(SECRET)), StoreAnswer::Welcome);
        assert_eq!(owner.order(Order::Join(ID)), Outcome::Done);
        owner
    }

    fn call(&self, request: &StoreRequest) -> StoreAnswer {
        let mut reply = Vec::new();
        self.session.call(&request.to_bytes(), &mut reply).expect("a reply");
        StoreAnswer::decode(&reply).expect("a reply of the pool")
    }

    fn order(&self, order: Order) -> Outcome {
        match self.call(&StoreRequest::Order(order)) {
            StoreAnswer::Outcome(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    fn client(&self, number: u64, epoch: u32) -> Stores {
        let stores = Stores::new(ClientId(number), self.options.clone());
        stores.set(ID, &self.store.addresses()[0], epoch);
        stores
    }
}

fn ids(numbers: &[u32]) -> Vec<ChunkId> {
    numbers.iter().map(|number| ChunkId { store: ID, number: *number }).collect()
}

fn on_all_providers(test: fn(&Owner)) {
    [ProviderKind::Shm, ProviderKind::Tcp].into_iter().for_each(|provider| test(&Owner::start(provider)));
}

#[test]
fn chunks_are_read_and_written_without_another_registration() {
    on_all_providers(|owner| {
        assert_eq!(owner.order(Order::Prepare { count: 3, bytes: CHUNK }), Outcome::Chunks(vec![0, 1, 2]));
        let client = owner.client(1, 0);
        let links = client.link(&ids(&[2, 0])).expect("links");
        let pieces = |offset, len| [0, 1].map(|i| Piece { link: &links[i], offset, len });
        let data: Vec<u8> = (0..20_000_u32).map(|i| i as u8).collect();
        pool::write(&pieces(CHUNK - 10_000, 10_000), &data).expect("a transfer");
        let mut back = vec![0; 20_000];
        pool::read(&pieces(CHUNK - 10_000, 10_000), &mut back).expect("a transfer");
        assert_eq!(back, data);
        assert_eq!(owner.order(Order::Mark { chunks: vec![2], value: 5 }), Outcome::Done);
        let mark = links[0].memory().for_load(CHUNK).expect("the mark");
        assert_eq!(links[0].session().load_u64(mark), Ok(5));
        assert_eq!(owner.store.report().registrations, 3);
        assert_eq!(owner.store.report().clients, 1);
    });
}

#[test]
fn orders_without_an_effect_have_typed_reasons() {
    on_all_providers(|owner| {
        let failed = |order| match owner.order(order) {
            Outcome::Failed(error) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(Order::Prepare { count: 9, bytes: CHUNK }), OrderError::Capacity(8 * CHUNK));
        for bytes in [0, 1, u64::MAX, u64::MAX - 4095, 1 << 62] {
            let error = failed(Order::Prepare { count: 1, bytes });
            assert!(matches!(error, OrderError::NoMemory(_) | OrderError::Capacity(_)), "{bytes}: {error}");
        }
        assert_eq!(failed(Order::Mark { chunks: vec![4], value: 1 }), OrderError::NoChunk(4));
        assert_eq!(owner.store.report().chunks, 0);
        owner.order(Order::Prepare { count: 8, bytes: CHUNK });
        assert_eq!(owner.order(Order::Discard(vec![0, 1, 99])), Outcome::Done);
        assert_eq!(owner.store.report().chunks, 6);
        let error = owner.client(1, 0).link(&ids(&[7, 1])).expect_err("a discarded chunk");
        assert!(matches!(error, LinkError::NoChunk(ChunkId { number: 1, .. })), "{error}");
    });
}

#[test]
fn only_the_owner_orders_and_only_known_clients_locate() {
    on_all_providers(|owner| {
        let stranger = Session::connect(&owner.store.addresses()[0], &owner.options).expect("a session");
        let refused = |request: StoreRequest| {
            let mut reply = Vec::new();
            match stranger.call(&request.to_bytes(), &mut reply) {
                Ok(()) => matches!(StoreAnswer::decode(&reply), Some(StoreAnswer::Refused(_))),
                Err(error) => matches!(error, rdmabox::RequestError::Rejected { .. }),
            }
        };
        assert!(refused(StoreRequest::Lead(Incarnation(1))));
        assert!(refused(StoreRequest::Order(Order::Prepare { count: 1, bytes: CHUNK })));
        assert!(refused(StoreRequest::Locate(vec![0])));
        assert_eq!(owner.store.report().chunks, 0);
        let other = Stores::new(ClientId(1), owner.options.clone());
        other.set(StoreId(4), &owner.store.addresses()[0], 0);
        let error = other.link(&[ChunkId { store: StoreId(4), number: 0 }]).expect_err("another store");
        assert!(matches!(error, LinkError::Refused { .. }), "{error}");
    });
}

#[test]
fn a_fence_ends_the_access_of_one_client_for_its_epoch() {
    on_all_providers(|owner| {
        owner.order(Order::Prepare { count: 1, bytes: CHUNK });
        let (fenced, other) = (owner.client(1, 0), owner.client(2, 0));
        let links = [&fenced, &other].map(|client| client.link(&ids(&[0])).expect("a link").remove(0));
        let write = |at: usize| pool::write(&[Piece { link: &links[at], offset: 0, len: 4 }], b"data");
        assert_eq!((write(0), write(1)), (Ok(()), Ok(())));
        assert_eq!(owner.order(Order::Fence { client: ClientId(1), epoch: 0 }), Outcome::Done);
        assert!(write(0).is_err(), "a fenced client writes");
        assert_eq!(write(1), Ok(()));
        let error = owner.client(1, 0).link(&ids(&[0])).expect_err("an ended epoch");
        assert!(matches!(error, LinkError::Refused { .. }), "{error}");
        assert_eq!(owner.client(1, 1).link(&ids(&[0])).expect("a new epoch").len(), 1);
        assert_eq!(owner.order(Order::Fence { client: ClientId(7), epoch: 0 }), Outcome::Done);
    });
}

#[test]
fn all_chunks_are_listed_in_pages() {
    // More than one reply can have.
    const COUNT: u32 = 4000;
    let owner = Owner::start_with(ProviderKind::Shm, u64::from(COUNT) * 4096);
    for _ in 0..5 {
        let outcome = owner.order(Order::Prepare { count: COUNT / 5, bytes: 4096 });
        assert!(matches!(outcome, Outcome::Chunks(_)), "{outcome:?}");
    }
    owner.order(Order::Discard(vec![0, 2048, 3999]));
    let (mut from, mut listed) = (0, Vec::new());
    loop {
        let Outcome::Chunks(page) = owner.order(Order::List { from }) else { panic!("no list") };
        let Some(last) = page.last() else { break };
        from = last + 1;
        listed.extend(page);
    }
    let expected: Vec<u32> = (0..COUNT).filter(|number| ![0, 2048, 3999].contains(number)).collect();
    assert!(listed == expected, "{} chunks are listed", listed.len());
}

#[test]
fn a_former_owner_gives_no_orders() {
    on_all_providers(|owner| {
        let next = Session::connect(&owner.store.addresses()[0], &owner.options).expect("a session");
        let mut reply = Vec::new();
        next.call(&StoreRequest::Lead(SECRET).to_bytes(), &mut reply).expect("a reply");
        assert_eq!(StoreAnswer::decode(&reply), Some(StoreAnswer::Welcome));
        let order = StoreRequest::Order(Order::Prepare { count: 1, bytes: CHUNK }).to_bytes();
        let refused = owner.session.call(&order, &mut reply);
        assert!(matches!(refused, Err(rdmabox::RequestError::Rejected { .. })), "{refused:?}");
        next.call(&order, &mut reply).expect("a reply");
        assert_eq!(owner.store.report().chunks, 1);
    });
}
