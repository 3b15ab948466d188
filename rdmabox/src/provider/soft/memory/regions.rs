//! Regions of a protection domain, and the access checks on them.
//!
//! A key consists of an index and a tag. So the key of a removed region is not valid for its
//! successor until the tags of the slot are exhausted. Regions with remote rights and local
//! regions have separate indices, because only the former occupy the table that peers see. Tags
//! of remote regions have 19 bits, start at a random value and advance by a random step. A peer
//! can therefore not easily guess other keys. This prevents accidents; protection domains are the
//! security boundary.
//!
//! # Concurrency
//! Any thread may call any method. Lookups hold a table's lock shared, changes exclusively.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{
    failure::seeded::seeded,
    mapping::Memory,
    verbs::{Access, Sge},
};

/// Marks the keys of regions without remote rights.
const LOCAL_KEY: u32 = 1 << 31;
/// Maximum number of regions with remote rights.
pub(crate) const MAX_REMOTE_REGIONS: usize = 4096;
/// Maximum number of regions without remote rights.
pub(crate) const MAX_LOCAL_REGIONS: usize = 1 << 22;
/// Number of bits of a tag.
const REMOTE_TAG: u32 = 19;
const LOCAL_TAG: u32 = 9;

/// Returns the index of a key among the regions with remote rights; out of range for other keys.
pub(crate) fn remote_index(key: u32) -> usize {
    (key >> REMOTE_TAG) as usize
}

fn index(key: u32) -> usize {
    if key & LOCAL_KEY == 0 { remote_index(key) } else { ((key & !LOCAL_KEY) >> LOCAL_TAG) as usize }
}

/// A registered range.
#[derive(Debug)]
pub(crate) struct Region {
    pub addr: u64,
    pub length: u64,
    pub access: Access,
    pub key: u32,
    /// Keeps the bytes mapped. `None` for borrowed memory, whose owner guarantees it.
    pub memory: Option<Arc<Memory>>,
}

impl Region {
    /// Returns a pointer to `len` bytes at `addr` if they lie inside the region.
    pub(crate) fn resolve(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let offset = addr.checked_sub(self.addr)?;
        let length = self.length + u64::from(seeded!("range-unchecked"));
        (offset.checked_add(len)? <= length).then_some(addr as *mut u8)
    }

    pub(crate) fn remote_index(&self) -> Option<usize> {
        (self.key & LOCAL_KEY == 0).then(|| remote_index(self.key))
    }
}

/// A checked range of registered memory, with its region to keep it mapped.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub ptr: *mut u8,
    pub len: usize,
    /// Keeps the bytes mapped.
    region: Arc<Region>,
}

// SAFETY: a Piece is an address inside memory that `region` keeps mapped. The queue pair
// controls access to the bytes, independent of the thread.
unsafe impl Send for Piece {}
// SAFETY: as for `Send`.
unsafe impl Sync for Piece {}

impl Piece {
    pub(crate) fn new(region: &Arc<Region>, addr: u64, len: u64) -> Option<Piece> {
        let ptr = region.resolve(addr, len)?;
        Some(Piece { ptr, len: usize::try_from(len).ok()?, region: Arc::clone(region) })
    }

    /// Returns true for a range of this region.
    pub(crate) fn is_of(&self, region: &Arc<Region>) -> bool {
        Arc::ptr_eq(&self.region, region)
    }
}

#[derive(Debug)]
struct Slot {
    /// Tag of the current or last region of the slot.
    tag: u32,
    /// Difference between consecutive tags; odd, so that all tags are used before one repeats.
    step: u32,
    region: Option<Arc<Region>>,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

impl Slot {
    /// Creates a slot for keys that are sent to peers.
    fn random() -> Slot {
        // Without random numbers keys are guessable but otherwise valid.
        let (tag, step) = (getrandom::u32().unwrap_or(0), getrandom::u32().unwrap_or(0) | 1);
        Slot { tag, step, region: None }
    }

    /// Creates a slot for keys that are used locally only.
    fn counting() -> Slot {
        Slot { tag: 0, step: 1, region: None }
    }

    /// Returns the next tag of `bits` bits. A tag is never 0, so that key 0 is invalid.
    fn next_tag(&mut self, bits: u32) -> u32 {
        loop {
            self.tag = self.tag.wrapping_add(self.step) & ((1 << bits) - 1);
            if self.tag != 0 {
                return self.tag;
            }
        }
    }
}

impl Slots {
    fn get(&self, key: u32) -> Option<&Arc<Region>> {
        let named = |region: &&Arc<Region>| region.key == key || seeded!("key-unchecked");
        self.slots.get(index(key))?.region.as_ref().filter(named)
    }
}

/// The regions of a protection domain.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    remote: RwLock<Slots>,
    local: RwLock<Slots>,
}

impl Regions {
    fn of(&self, key: u32) -> &RwLock<Slots> {
        if key & LOCAL_KEY == 0 { &self.remote } else { &self.local }
    }

    /// Returns the maximum number of regions with such rights.
    pub(crate) fn limit(access: Access) -> usize {
        if access.intersects(Access::REMOTE_ANY) { MAX_REMOTE_REGIONS } else { MAX_LOCAL_REGIONS }
    }

    /// Adds a region. Returns `None` if the table is full.
    pub(crate) fn insert(
        &self,
        addr: u64,
        length: u64,
        access: Access,
        memory: Option<Arc<Memory>>,
    ) -> Option<Arc<Region>> {
        let remote = access.intersects(Access::REMOTE_ANY);
        let (table, mark, bits) =
            if remote { (&self.remote, 0, REMOTE_TAG) } else { (&self.local, LOCAL_KEY, LOCAL_TAG) };
        let mut slots = table.write();
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.slots.len() < Self::limit(access) => {
                slots.slots.push(if remote { Slot::random() } else { Slot::counting() });
                slots.slots.len() - 1
            }
            None => return None,
        };
        let slot = &mut slots.slots[index];
        let key = mark | (index as u32) << bits | slot.next_tag(bits);
        let region = Arc::new(Region { addr, length, access, key, memory });
        slot.region = Some(Arc::clone(&region));
        Some(region)
    }

    /// Removes a region. Requests that hold a [`Piece`] of it finish.
    pub(crate) fn remove(&self, key: u32) {
        let mut slots = self.of(key).write();
        let index = index(key);
        if let Some(slot) = slots.slots.get_mut(index)
            && slot.region.as_ref().is_some_and(|region| region.key == key)
        {
            slot.region = None;
            slots.free.push(index);
        }
    }

    /// Checks a peer's access and returns the range.
    pub(crate) fn remote(&self, key: u32, addr: u64, len: u64, needs: Access) -> Option<Piece> {
        let slots = self.remote.read();
        let region = slots.get(key)?;
        let allowed = region.access.contains(needs) || seeded!("rights-unchecked");
        allowed.then(|| Piece::new(region, addr, len))?
    }

    /// Checks a local scatter/gather element and returns the range.
    pub(crate) fn local(&self, sge: &Sge, needs: Access) -> Option<Piece> {
        let slots = self.of(sge.lkey).read();
        let region = slots.get(sge.lkey)?;
        region.access.contains(needs).then(|| Piece::new(region, sge.addr, u64::from(sge.length)))?
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_key_of_a_removed_region_stays_invalid_when_its_slot_is_reused() {
        let regions = Regions::default();
        let first = regions.insert(0x1000, 16, Access::REMOTE_READ, None).unwrap().key;
        regions.remove(first);
        let second = regions.insert(0x1000, 16, Access::REMOTE_READ, None).unwrap().key;
        assert_ne!(first, second);
        assert!(regions.remote(first, 0x1000, 16, Access::REMOTE_READ).is_none());
        assert!(regions.remote(second, 0x1000, 16, Access::REMOTE_READ).is_some());
        assert!(regions.remote(0, 0x1000, 16, Access::empty()).is_none());
    }

    #[test]
    fn keys_of_a_slot_repeat_only_after_all_tags_and_start_at_random() {
        let (remote, local) = (Access::REMOTE_READ, Access::LOCAL_WRITE);
        for (access, bits) in [(remote, REMOTE_TAG), (local, LOCAL_TAG)] {
            let regions = Regions::default();
            let next = || {
                let key = regions.insert(0x1000, 16, access, None).unwrap().key;
                regions.remove(key);
                key
            };
            let mut seen: Vec<u32> = (1..1 << bits).map(|_| next()).collect();
            let first = seen[0];
            seen.sort_unstable();
            seen.dedup();
            assert_eq!((seen.len(), seen[0] & !LOCAL_KEY), ((1 << bits) - 1, 1));
            assert_eq!(next(), first);
        }
        let firsts = (0..4).map(|_| Regions::default().insert(0x1000, 16, remote, None).unwrap().key);
        let firsts: Vec<u32> = firsts.collect();
        assert!(firsts.iter().any(|key| *key != firsts[0]), "{firsts:?}");
        // The largest index of each kind does not reach the mark.
        assert_eq!((MAX_REMOTE_REGIONS as u32 - 1) << REMOTE_TAG & LOCAL_KEY, 0);
        assert_eq!((MAX_LOCAL_REGIONS as u32 - 1) << LOCAL_TAG & LOCAL_KEY, 0);
    }

    /// Key, range and access of a peer's request.
    #[derive(Clone, Copy, Debug)]
    struct Guess {
        key: u32,
        addr: u64,
        len: u64,
        needs: Access,
    }

    /// Regions for guesses with knowledge of all current and former keys and addresses.
    struct Guessed {
        regions: Regions,
        /// Adjacent regions with all rights.
        open: Vec<Arc<Region>>,
        /// Regions with the right that each lacks.
        closed: Vec<(Arc<Region>, Access)>,
        /// Former keys, each with the region that now has its slot.
        stale: Vec<(u32, Arc<Region>)>,
    }

    impl Guessed {
        const LEN: u64 = 1 << 20;

        fn new() -> Guessed {
            let regions = Regions::default();
            let mut next = 0x7f00_0000_0000;
            let mut insert = |access| {
                let region = regions.insert(next, Guessed::LEN, access, None).unwrap();
                next += Guessed::LEN;
                region
            };
            let (mut open, mut stale) = (Vec::new(), Vec::new());
            for _ in 0..16 {
                // A free slot is reused first, so all these keys belong to one slot.
                let former: Vec<u32> = (0..16)
                    .map(|_| {
                        let key = insert(Access::REMOTE_ALL).key;
                        regions.remove(key);
                        key
                    })
                    .collect();
                let region = insert(Access::REMOTE_ALL);
                stale.extend(former.into_iter().map(|key| (key, Arc::clone(&region))));
                open.push(region);
            }
            let rights = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
            let closed = rights.map(|right| (insert(Access::REMOTE_ALL.difference(right)), right));
            Guessed { regions, open, closed: closed.into(), stale }
        }

        /// Returns a valid access: 1 to 4096 bytes inside the region, with its key.
        fn right(region: &Region, random: [u32; 4]) -> Guess {
            let len = 1 + u64::from(random[0] % 4096);
            let addr = region.addr + u64::from(random[1]) % (region.length - len + 1);
            Guess { key: region.key, addr, len, needs: Access::REMOTE_READ }
        }

        /// Returns a guess of kind `number` and the name of the kind.
        fn guess(&self, number: usize, random: [u32; 4]) -> (&'static str, Guess) {
            let any = random[2] as usize;
            let region = &self.open[any % self.open.len()];
            let right = Guessed::right(region, random);
            match number {
                0 => ("right", right),
                1 => {
                    let (key, needs) = (random[3] & !LOCAL_KEY, Access::empty());
                    ("any key", Guess { key, addr: 0x7f00_0000_0000 + u64::from(random[1]), needs, ..right })
                }
                2 => {
                    let wrong = 1 + random[3] % ((1 << REMOTE_TAG) - 1);
                    ("wrong tag", Guess { key: right.key ^ wrong, ..right })
                }
                3 => ("before", Guess { addr: region.addr - 1 - u64::from(random[1] % 4096), ..right }),
                4 => {
                    let end = region.addr + region.length;
                    ("behind", Guess { addr: end + u64::from(random[1] % 4096), ..right })
                }
                5 => {
                    // Exceeds the end by one byte up to the whole length.
                    let over = 1 + u64::from(random[1]) % right.len;
                    ("over the end", Guess { addr: region.addr + region.length - right.len + over, ..right })
                }
                6 => {
                    // A wrapping range ends inside the region.
                    let offset = right.addr - region.addr;
                    let len = u64::MAX - u64::from(random[3]) % (offset + 1);
                    ("too long", Guess { addr: right.addr + 1, len, ..right })
                }
                7 => {
                    let (key, successor) = &self.stale[any % self.stale.len()];
                    ("stale", Guess { key: *key, ..Guessed::right(successor, random) })
                }
                _ => {
                    let (region, needs) = &self.closed[any % self.closed.len()];
                    ("without the right", Guess { needs: *needs, ..Guessed::right(region, random) })
                }
            }
        }
    }

    /// All kinds but "right" differ from a valid access in one respect, so a missing check accepts
    /// many of them. "any key" guesses know only the address of the regions, to within 4 GiB.
    #[test]
    fn a_million_guessed_accesses_are_all_refused() {
        const KINDS: usize = 9;
        let guessed = Guessed::new();
        let mut bytes = vec![0; (16 * KINDS) << 17];
        getrandom::fill(&mut bytes).unwrap();
        let (mut made, mut served) = (BTreeMap::new(), BTreeMap::new());
        for (number, random) in bytes.as_chunks::<16>().0.iter().enumerate() {
            let word = |at: usize| u32::from_le_bytes([at, at + 1, at + 2, at + 3].map(|at| random[at]));
            let (kind, guess) = guessed.guess(number % KINDS, [0, 4, 8, 12].map(word));
            let Guess { key, addr, len, needs } = guess;
            *made.entry(kind).or_insert(0) += 1;
            if guessed.regions.remote(key, addr, len, needs).is_some() {
                *served.entry(kind).or_insert(0) += 1;
            }
        }
        let kinds = [
            "any key",
            "before",
            "behind",
            "over the end",
            "right",
            "stale",
            "too long",
            "without the right",
            "wrong tag",
        ];
        assert_eq!(made, kinds.map(|kind| (kind, 1 << 17)).into());
        assert_eq!(served, [("right", 1 << 17)].into());
        assert_eq!(made.values().sum::<u32>() - served["right"], 1 << 20);
    }

    #[test]
    fn ranges_and_rights_are_checked_without_overflow() {
        let regions = Regions::default();
        let key = regions.insert(0x1000, 16, Access::REMOTE_READ, None).unwrap().key;
        let ok = |addr, len, needs| regions.remote(key, addr, len, needs).is_some();
        assert!(ok(0x1000, 16, Access::REMOTE_READ));
        assert!(ok(0x1010, 0, Access::REMOTE_READ));
        assert!(!ok(0x1000, 17, Access::REMOTE_READ));
        assert!(!ok(0x0fff, 1, Access::REMOTE_READ));
        assert!(!ok(0x1001, u64::MAX, Access::REMOTE_READ));
        assert!(!ok(u64::MAX, 2, Access::REMOTE_READ));
        assert!(!ok(0x1000, 1, Access::REMOTE_WRITE));
    }

    #[test]
    fn a_local_key_is_not_a_remote_key() {
        let regions = Regions::default();
        let key = regions.insert(0x1000, 16, Access::LOCAL_WRITE, None).unwrap().key;
        assert!(regions.remote(key, 0x1000, 1, Access::empty()).is_none());
        let sge = Sge { addr: 0x1000, length: 16, lkey: key };
        assert!(regions.local(&sge, Access::LOCAL_WRITE).is_some());
    }
}
