use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;

use super::*;
use crate::verbs::{MemoryRegion, QpInit, QueuePair};

const PAGE: usize = 4096;
const LOCAL: Access = Access::LOCAL_WRITE;

/// Protection domain that counts registrations.
#[derive(Debug, Default)]
struct Counting {
    made: AtomicUsize,
    alive: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Region {
    memory: Arc<Memory>,
    access: Access,
    alive: Arc<AtomicUsize>,
}

impl crate::verbs::Sealed for Region {}

impl MemoryRegion for Region {
    fn addr(&self) -> u64 {
        self.memory.addr()
    }
    fn length(&self) -> u64 {
        self.memory.len() as u64
    }
    fn lkey(&self) -> u32 {
        1
    }
    fn rkey(&self) -> u32 {
        1
    }
    fn access(&self) -> Access {
        self.access
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl crate::verbs::Sealed for Counting {}

impl ProtectionDomain for Counting {
    fn register(
        &self,
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<MrHandle, VerbsError> {
        assert_eq!((offset, length), (0, memory.len() as u64));
        self.made.fetch_add(1, Ordering::SeqCst);
        self.alive.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(Region { memory: Arc::clone(memory), access, alive: Arc::clone(&self.alive) }))
    }

    unsafe fn register_borrowed(&self, _: u64, _: u64, _: Access) -> Result<MrHandle, VerbsError> {
        unreachable!("the cache owns what it registers")
    }

    fn create_qp(&self, _: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        unreachable!("nothing is sent")
    }
}

fn cache(pages: u64, entries: usize) -> (Arc<Counting>, RegistrationCache) {
    let pd = Arc::new(Counting::default());
    let limits = RegistrationLimits { bytes: pages * PAGE as u64, entries };
    (Arc::clone(&pd), RegistrationCache::new(pd, limits))
}

fn memory(pages: usize) -> Arc<Memory> {
    Arc::new(Memory::private(pages * PAGE).unwrap())
}

fn hit(cache: &RegistrationCache, memory: &Arc<Memory>) -> bool {
    cache.register(memory, LOCAL).unwrap().1
}

#[test]
fn memory_that_is_used_again_is_registered_once() {
    let (pd, cache) = cache(16, 4);
    let memory = memory(2);
    let (first, was_hit) = cache.register(&memory, LOCAL).unwrap();
    assert!(!was_hit);
    assert_eq!((first.addr(), first.length(), first.access()), (memory.addr(), 2 * PAGE as u64, LOCAL));
    drop(first);
    assert!(hit(&cache, &memory));
    assert_eq!((cache.len(), cache.bytes()), (1, 2 * PAGE as u64));
    assert_eq!(pd.made.load(Ordering::SeqCst), 1);
    drop(cache);
    assert_eq!(pd.alive.load(Ordering::SeqCst), 0);
}

#[test]
fn ranges_are_found_inside_one_memory_only() {
    let (_, cache) = cache(64, 8);
    // The kernel usually maps these consecutively; they must not be treated as one memory.
    let memories = [memory(1), memory(2), memory(3)];
    memories.iter().for_each(|memory| assert!(!hit(&cache, memory)));
    for memory in &memories {
        let (addr, len) = (memory.addr(), memory.len() as u64);
        let at = |addr, len| cache.find(addr, len, Access::empty()).map(|handle| handle.addr());
        assert_eq!([at(addr, len), at(addr + 5, 7), at(addr + len - 1, 1)], [Some(addr); 3]);
        assert_eq!([at(addr, len + 1), at(addr + 1, len), at(addr + 1, u64::MAX)], [None; 3]);
    }
    assert!(cache.find(0, 1, Access::empty()).is_none());
    assert!(cache.find(u64::MAX, 1, Access::empty()).is_none());
}

#[test]
fn rights_are_exact_when_registered_and_sufficient_when_found() {
    let (pd, cache) = cache(16, 4);
    let memory = memory(1);
    let find = |needs| cache.find(memory.addr(), 1, needs).map(|handle| handle.access());
    cache.register(&memory, Access::empty()).unwrap();
    assert_eq!((find(Access::empty()), find(LOCAL)), (Some(Access::empty()), None));
    // Remote rights that were granted to one user must not reach another.
    cache.register(&memory, Access::REMOTE_ALL).unwrap();
    let (handle, was_hit) = cache.register(&memory, LOCAL).unwrap();
    assert_eq!((handle.access(), was_hit), (LOCAL, false));
    assert_eq!(find(Access::REMOTE_READ), Some(Access::REMOTE_ALL));
    assert_eq!((cache.len(), pd.made.load(Ordering::SeqCst)), (3, 3));
}

#[test]
fn the_least_recently_used_idle_entry_is_evicted() {
    let (pd, cache) = cache(64, 3);
    let memories: Vec<_> = (0..5).map(|_| memory(1)).collect();
    (0..3).for_each(|i| assert!(!hit(&cache, &memories[i])));
    // Entry 1 is the oldest and in use; entry 2 is the next oldest.
    let held = cache.find(memories[1].addr(), 1, LOCAL).unwrap();
    assert!(hit(&cache, &memories[2]) && hit(&cache, &memories[0]));
    assert!(!hit(&cache, &memories[3]));
    assert!(hit(&cache, &memories[0]) && hit(&cache, &memories[1]));
    assert!(!hit(&cache, &memories[2]), "evicted");
    drop(held);
    assert_eq!((cache.len(), pd.alive.load(Ordering::SeqCst)), (3, 3));
}

#[test]
fn memory_that_does_not_fit_is_registered_without_the_cache() {
    let (pd, cache) = cache(4, 2);
    let too_long = memory(5);
    let (handle, _) = cache.register(&too_long, LOCAL).unwrap();
    assert_eq!((cache.len(), handle.length()), (0, 5 * PAGE as u64));
    drop(handle);
    assert_eq!(pd.alive.load(Ordering::SeqCst), 0);
    // The cache evicts nothing without need: 3 pages do not fit beside 2 pages in use, even without
    // the third.
    let (busy, idle, more) = (memory(2), memory(1), memory(3));
    let held = cache.register(&busy, LOCAL).unwrap().0;
    assert!(!hit(&cache, &idle));
    assert!(!hit(&cache, &more));
    assert!(hit(&cache, &idle) && hit(&cache, &busy) && !hit(&cache, &more));
    drop(held);
    assert!(!hit(&cache, &more), "the other entries are evicted");
    assert_eq!((cache.len(), cache.bytes()), (1, 3 * PAGE as u64));
}

/// Catches a registration of a caller's memory that requests find after the call that vouches for
/// it.
#[test]
fn memory_on_loan_is_found_until_the_loan_ends() {
    let (pd, cache) = cache(1 << 20, 2);
    let (own, other) = (memory(2), memory(1));
    assert!(!hit(&cache, &other));
    let handle = pd.register(&own, 0, own.len() as u64, LOCAL).unwrap();
    let found = || cache.find(own.addr() + 100, PAGE as u64, LOCAL).is_some();
    assert!(!found());
    {
        let _first = cache.lend(&handle);
        {
            let _second = cache.lend(&handle);
            assert!(found());
        }
        assert!(found(), "the end of one loan leaves the other");
        // The loan takes a place, and is not evicted.
        let more: Vec<_> = (0..3).map(|_| memory(1)).collect();
        more.iter().for_each(|memory| assert!(!hit(&cache, memory)));
        assert!(found());
    }
    assert!(!found());
    assert_eq!(cache.find(own.addr(), 1, Access::empty()).map(|handle| handle.addr()), None);
}

#[test]
fn forgotten_memory_is_unmapped() {
    let (pd, cache) = cache(16, 4);
    let memory = memory(1);
    let held = cache.register(&memory, LOCAL).unwrap().0;
    cache.register(&memory, Access::REMOTE_ALL).unwrap();
    assert!(!cache.forget(&memory), "in use");
    assert_eq!((cache.len(), cache.bytes()), (1, PAGE as u64));
    drop(held);
    assert!(cache.forget(&memory));
    assert!(cache.forget(&memory), "nothing is left of it");
    assert_eq!((cache.bytes(), pd.alive.load(Ordering::SeqCst), Arc::strong_count(&memory)), (0, 0, 1));
}

#[test]
fn threads_share_the_cache() {
    let (pd, cache) = cache(6, 4);
    let memories: Vec<_> = (0..8).map(|i| memory(i % 3 + 1)).collect();
    std::thread::scope(|scope| {
        for seed in 0..4usize {
            let (cache, memories) = (&cache, &memories);
            scope.spawn(move || {
                for step in 0..2000usize {
                    let memory = &memories[(step * 7919 + seed * 104_729) % memories.len()];
                    let (handle, _) = cache.register(memory, LOCAL).unwrap();
                    assert_eq!(handle.addr(), memory.addr());
                    if let Some(found) = cache.find(memory.addr() + 1, 1, LOCAL) {
                        assert_eq!(found.addr(), memory.addr());
                    }
                    if step % 17 == 0 {
                        cache.forget(memory);
                    }
                    assert!(cache.len() <= 4 && cache.bytes() <= 6 * PAGE as u64);
                }
            });
        }
    });
    assert_eq!(pd.alive.load(Ordering::SeqCst), cache.len());
    assert!(memories.iter().all(|memory| cache.forget(memory)));
    assert_eq!((cache.bytes(), pd.alive.load(Ordering::SeqCst)), (0, 0));
}

#[derive(Clone, Debug)]
enum Action {
    /// Index of the memory, index of the rights, and whether the handle is kept.
    Register(usize, usize, bool),
    /// Index of the memory, index of the rights, first byte, length.
    Find(usize, usize, u64, u64),
    Release(usize),
    Forget(usize),
}

const MEMORIES: usize = 6;
const RIGHTS: [Access; 2] = [Access::LOCAL_WRITE, Access::REMOTE_READ];

fn action() -> impl Strategy<Value = Action> {
    let (memory, rights) = (|| 0..MEMORIES, || 0..RIGHTS.len());
    let near = || 0..5 * PAGE as u64;
    prop_oneof![
        5 => (memory(), rights(), any::<bool>()).prop_map(|(m, r, keep)| Action::Register(m, r, keep)),
        3 => (memory(), rights(), near(), near()).prop_map(|(m, r, at, len)| Action::Find(m, r, at, len)),
        3 => any::<usize>().prop_map(Action::Release),
        1 => memory().prop_map(Action::Forget),
    ]
}

/// Expected contents of the cache: indexes of memory and rights, the least recently used first.
#[derive(Default)]
struct Model {
    cached: Vec<(usize, usize)>,
    /// Handles that are held, and whether they belong to the cache.
    held: Vec<(usize, usize, bool, MrHandle)>,
}

impl Model {
    fn in_use(&self, entry: (usize, usize)) -> bool {
        self.held.iter().any(|&(memory, rights, cached, _)| cached && (memory, rights) == entry)
    }

    fn used(&mut self, entry: (usize, usize)) -> bool {
        let Some(at) = self.cached.iter().position(|&other| other == entry) else { return false };
        let entry = self.cached.remove(at);
        self.cached.push(entry);
        true
    }
}

proptest! {
    #[test]
    fn the_cache_behaves_like_a_list_in_order_of_use(
        pages in 1..12usize,
        entries in 0..6usize,
        actions in prop::collection::vec(action(), 0..120),
    ) {
        let (pd, cache) = cache(pages as u64, entries);
        let memories: Vec<_> = (0..MEMORIES).map(|i| memory(i % 4 + 1)).collect();
        let size = |entry: &(usize, usize)| entry.0 % 4 + 1;
        let mut model = Model::default();
        for action in actions {
            match action {
                Action::Register(memory, rights, keep) => {
                    let entry = (memory, rights);
                    let (handle, was_hit) = cache.register(&memories[memory], RIGHTS[rights]).unwrap();
                    prop_assert_eq!((handle.addr(), handle.access()), (memories[memory].addr(), RIGHTS[rights]));
                    prop_assert_eq!(was_hit, model.used(entry));
                    let fits = |list: &[(usize, usize)]| {
                        list.len() < entries && list.iter().map(size).sum::<usize>() + size(&entry) <= pages
                    };
                    let busy: Vec<_> = model.cached.iter().copied().filter(|&other| model.in_use(other)).collect();
                    if !was_hit && fits(&busy) {
                        while !fits(&model.cached) {
                            let oldest = model.cached.iter().position(|&other| !model.in_use(other)).unwrap();
                            model.cached.remove(oldest);
                        }
                        model.cached.push(entry);
                    }
                    if keep {
                        model.held.push((memory, rights, model.cached.contains(&entry), handle));
                    }
                }
                Action::Find(memory, rights, at, len) => {
                    let found = cache.find(memories[memory].addr() + at, len, RIGHTS[rights]);
                    if at + len <= memories[memory].len() as u64 && at < memories[memory].len() as u64 {
                        prop_assert_eq!(found.is_some(), model.used((memory, rights)));
                    } else if let Some(found) = found {
                        // The range lies in another memory behind this one.
                        let other = memories.iter().position(|other| other.addr() == found.addr()).unwrap();
                        prop_assert!(other != memory || len == 0);
                        prop_assert!(found.addr() + found.length() >= memories[memory].addr() + at + len);
                        prop_assert!(model.used((other, rights)));
                    }
                }
                Action::Release(which) => {
                    if !model.held.is_empty() {
                        let which = which % model.held.len();
                        model.held.swap_remove(which);
                    }
                }
                Action::Forget(memory) => {
                    let gone = cache.forget(&memories[memory]);
                    let stays: Vec<_> =
                        model.cached.iter().copied().filter(|&e| e.0 != memory || model.in_use(e)).collect();
                    model.cached = stays;
                    prop_assert_eq!(gone, model.cached.iter().all(|entry| entry.0 != memory));
                }
            }
            prop_assert_eq!(cache.len(), model.cached.len());
            prop_assert_eq!(cache.bytes() as usize, model.cached.iter().map(size).sum::<usize>() * PAGE);
            let apart = model.held.iter().filter(|held| !held.2).count();
            prop_assert_eq!(pd.alive.load(Ordering::SeqCst), model.cached.len() + apart);
        }
    }
}
