//! The execution of single verbs.

use std::{sync::Arc, thread, time::Duration};

use rdmabox::{Op, RequestError, across};

use super::{Driver, Run};
use crate::{
    error::{NessieError, failed},
    logic::{
        entry::{self, Entry},
        error::DecodeError,
        placement::Slot,
        verb::{Answer, PerSlot, Stored, Verb},
        word::{EntryRef, Word},
    },
    node::{
        cluster::peer::{Link, Peer},
        stats::Counters,
    },
};

/// Pauses that only yield the processor, before pauses that sleep.
const YIELDS: u32 = 4;

impl Driver {
    /// Executes a verb.
    ///
    /// # Errors
    /// [`NessieError::Unreachable`]: the verb may have been executed, or may be later.
    pub(super) fn execute(&self, run: &mut Run, verb: Verb) -> Result<Answer, NessieError> {
        match verb {
            Verb::ReadSlots(slots) => self.read_slots(run, &slots),
            Verb::Swap { slot, expected, new } => {
                let (peer, mut attempts) = (self.peer(slot.node), 0);
                Counters::add(&self.counters.swaps);
                let old = self.request(run, peer, |link| {
                    attempts += 1;
                    link.session.compare_swap(link.slot(slot.number), expected.bits(), new.bits())
                })?;
                let Some(old) = old.map(Word::from_bits) else { return Ok(Answer::Lost) };
                if attempts > 1 && old != expected && old != new && expected != new {
                    // An earlier attempt may have stored the new word, which is replaced by now.
                    let reason = "a compare-and-swap has an unknown outcome".into();
                    return Err(NessieError::Unreachable { node: slot.node, reason });
                }
                if old != expected {
                    Counters::add(&self.counters.failed_swaps);
                }
                Ok(Answer::Swapped(old))
            }
            Verb::ReadEntry { slot, word, entry } => self.read_entry(run, slot, word, entry),
            Verb::Store(entry) => Ok(match self.table.put(&entry) {
                Ok(stored) => {
                    Counters::add(&self.counters.stores);
                    run.held.push(stored.entry.offset);
                    Answer::Stored(stored)
                }
                Err(_) => Answer::DataFull,
            }),
            Verb::Validate(stored) => {
                self.table.validate(stored.entry.offset);
                Ok(Answer::None)
            }
            Verb::Release(stored) => {
                self.release(stored);
                Ok(Answer::None)
            }
            Verb::Pause => {
                Counters::add(&self.counters.pauses);
                run.pauses += 1;
                match run.pauses.checked_sub(YIELDS) {
                    None => thread::yield_now(),
                    // From 20 us to 1 ms.
                    Some(more) => {
                        thread::sleep(Duration::from_micros(20 << more.min(6)).min(Duration::from_millis(1)))
                    }
                }
                Ok(Answer::None)
            }
        }
    }

    fn peer(&self, node: u16) -> &Peer {
        &self.peers[usize::from(node)]
    }

    /// Makes a request that can be repeated. `None` if the node is lost.
    fn request<T>(
        &self,
        run: &Run,
        peer: &Peer,
        mut send: impl FnMut(&Link) -> Result<T, RequestError>,
    ) -> Result<Option<T>, NessieError> {
        loop {
            if peer.is_lost() {
                return Ok(None);
            }
            let link = peer.link().ok_or_else(|| peer.unreachable())?;
            match send(&link) {
                Ok(value) => return Ok(Some(value)),
                // A repeated CAS of a word waits for the first one, and finds its new word if that
                // was executed.
                Err(e) if e.is_retryable() && run.begun.elapsed() < self.limit => {}
                Err(e) => return Err(failed(peer.node, &e)),
            }
        }
    }

    fn read_slots(&self, run: &Run, slots: &PerSlot<Slot>) -> Result<Answer, NessieError> {
        for slot in slots {
            let is_own = slot.node == self.node;
            Counters::add(if is_own { &self.counters.own_words } else { &self.counters.remote_words });
        }
        if slots.len() > 1
            && self.is_worth_across(slots)
            && let Some(words) = self.read_across(slots)
        {
            return Ok(Answer::Words(words));
        }
        let mut words = PerSlot::new();
        for slot in slots {
            let peer = self.peer(slot.node);
            let word = self.request(run, peer, |link| link.session.load_u64(link.slot(slot.number)))?;
            words.push(word.map(Word::from_bits));
        }
        Ok(Answer::Words(words))
    }

    /// Returns true unless the memory of all slots is mapped. A READ of mapped memory takes less
    /// time than the bookkeeping of several hosts.
    fn is_worth_across(&self, slots: &PerSlot<Slot>) -> bool {
        let is_mapped = |slot: &Slot| {
            self.peer(slot.node)
                .link()
                .is_none_or(|link| link.session.provider() == rdmabox::ProviderKind::Shm)
        };
        !slots.iter().all(is_mapped)
    }

    /// Reads words of several nodes at once. `None` if a node does not answer.
    fn read_across(&self, slots: &PerSlot<Slot>) -> Option<PerSlot<Option<Word>>> {
        let links: Option<PerSlot<Arc<Link>>> =
            slots.iter().map(|slot| self.peer(slot.node).link()).collect();
        let links = links?;
        let mut bytes = PerSlot::from_elem([0u8; 8], slots.len());
        let mut steps: PerSlot<[Op<'_>; 1]> = bytes
            .iter_mut()
            .zip(slots.iter().zip(&links))
            .map(|(out, (slot, link))| [Op::Read { remote: link.slot(slot.number), out }])
            .collect();
        let mut lists: PerSlot<_> =
            links.iter().zip(&mut steps).map(|(link, steps)| (&*link.session, &mut steps[..])).collect();
        across(&mut lists).into_iter().collect::<Result<(), _>>().ok()?;
        drop(lists);
        drop(steps);
        Some(bytes.iter().map(|word| Some(Word::from_bits(u64::from_ne_bytes(*word)))).collect())
    }

    fn read_entry(&self, run: &Run, slot: Slot, word: Word, at: EntryRef) -> Result<Answer, NessieError> {
        let missing = DecodeError::Reference { table: at.table, offset: at.offset };
        // There are more table numbers than nodes.
        let Some(peer) = self.peers.get(usize::from(at.table)) else { return Err(missing.into()) };
        let is_own = at.table == self.node;
        if !is_own && let Some(copy) = self.cache.get(slot, word, run.begun.checked_sub(self.limit)) {
            Counters::add(&self.counters.cache_hits);
            return Ok(Answer::Entry(copy));
        }
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, self.stride).collect();
        let out = Arc::get_mut(&mut bytes).expect("not shared yet");
        if is_own {
            Counters::add(&self.counters.own_entries);
            if !self.table.read(at.offset, out) {
                return Err(missing.into());
            }
            return Ok(Answer::Entry(Entry::decode(bytes)?));
        }
        Counters::add(&self.counters.remote_entries);
        let read = self.request(run, peer, |link| match link.entry(at.offset) {
            Some(from) => link.session.read(from, out).map(|()| true),
            None => Ok(false),
        })?;
        match read {
            None => return Ok(Answer::Lost),
            Some(false) => return Err(missing.into()),
            Some(true) => {}
        }
        let entry = Entry::decode(bytes)?;
        self.cache.put(slot, word, &entry, run.begun);
        Ok(Answer::Entry(entry))
    }

    /// Tells the owner of an entry that no slot refers to it. A notice that does not arrive is made
    /// up for by a sweep of the owner.
    fn release(&self, stored: Stored) {
        let (old, new) = (entry::head(stored.life, false), entry::head(stored.life, true));
        let peer = self.peer(stored.entry.table);
        let Some(link) = peer.link() else { return };
        let Some(at) = link.entry(stored.entry.offset) else { return };
        if stored.entry.table == self.node {
            let _ = link.session.compare_swap(at, old, new);
            self.table.release(stored.entry.offset);
        } else {
            // The operation does not wait for it.
            drop(link.session.start_compare_swap(at, old, new));
        }
    }
}
