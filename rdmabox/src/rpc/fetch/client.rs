//! The calling side of a call by fetching: write the request, look for the answer, and ring if that takes long.

use parking_lot::Mutex;

use super::{
    Patience, layout,
    layout::Kind,
    reach::{Look, OneSided, Reach},
    watch::written,
};
use crate::{
    rpc::CALL_SLOTS,
    session::RequestError,
    stats::Stats,
    sync::{spin_loop, yield_now},
    verbs::RemoteAddr,
};

/// Looks at mapped memory before the core is offered to others; together they are a round.
const LOOKS: u32 = 64;
/// Most rounds of looks at mapped memory, and most READs, before the host is rung.
const ROUNDS: u32 = 32;
const READS: u32 = 4;

#[derive(Debug, Default)]
struct Slot {
    /// Of the last call.
    number: u32,
    /// What is written and read where memory is not mapped.
    scratch: Vec<u8>,
}

/// A session's calls by fetching.
#[derive(Debug)]
pub(crate) struct FetchClient {
    reach: Reach,
    patience: Patience,
    /// Each is used by the caller that has the call slot.
    slots: [Mutex<Slot>; CALL_SLOTS],
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is answered, and the reply is there.
    Answered,
    /// The service has given it up.
    Unanswered,
    /// The host has to be rung for call `number`; its reply comes as a message then.
    Ring { number: u32 },
    /// There is no answer yet to call `number`, and the host will find it.
    Left { number: u32 },
    /// Another thread has ended it.
    Ended,
    /// The host has written what makes no sense.
    Nonsense,
}

impl FetchClient {
    /// `base` is where the host has said that the memory is. With `maps` the memory may be mapped. `fetch_size` is what the
    /// first READ of an answer brings, in bytes.
    pub(crate) fn new(
        one_sided: Box<dyn OneSided>,
        base: RemoteAddr,
        fetch_size: usize,
        maps: bool,
    ) -> FetchClient {
        FetchClient {
            reach: Reach::new(one_sided, base, fetch_size, maps),
            patience: Patience::new(if maps { ROUNDS } else { READS }),
            slots: Default::default(),
        }
    }

    /// Makes a call in `slot`, which is the caller's. It looks for the answer until it is there or its patience is at an
    /// end, or until `is_done`, which another thread may bring about.
    pub(crate) fn call(
        &self,
        slot: usize,
        request: &[u8],
        reply: &mut Vec<u8>,
        stats: &Stats,
        is_done: impl Fn() -> bool,
    ) -> Result<Stage, RequestError> {
        let mut entry = self.slots[slot].lock();
        let Slot { number, scratch } = &mut *entry;
        *number = layout::next(*number);
        self.reach.put(slot, *number, request, scratch)?;
        let in_place = self.reach.mapped().is_some();
        if in_place {
            written();
            self.reach.say_where();
        }
        let (limit, looks) = (self.patience.limit(), if in_place { LOOKS } else { 1 });
        for round in 0..limit {
            for look in 0..looks {
                match self.reach.look(slot, *number, reply, scratch, stats)? {
                    Look::Answer(kind) => {
                        if round > 0 {
                            self.patience.paid(round);
                        }
                        return Ok(stage(kind, *number));
                    }
                    Look::Nonsense => return Ok(Stage::Nonsense),
                    // A host that is awake with the first look does not go to sleep on the request.
                    Look::NotYet { asleep: true } if round == 0 && look == 0 => {
                        return Ok(Stage::Ring { number: *number });
                    }
                    Look::NotYet { .. } => {}
                }
                spin_loop();
            }
            if is_done() {
                return Ok(Stage::Ended);
            }
            if in_place {
                yield_now();
            }
        }
        self.patience.gave_up();
        Ok(Stage::Ring { number: *number })
    }

    /// True if memory is mapped: a call can be left in it, and looks cost nothing.
    pub(crate) fn is_mapped(&self) -> bool {
        self.reach.mapped().is_some()
    }

    /// Makes a call in `slot`, which is the caller's, and does not look for the answer. It has to be
    /// [`Ring`](Stage::Ring)-ed for where the host is asleep; otherwise it is [`Left`](Stage::Left).
    pub(crate) fn leave(&self, slot: usize, request: &[u8]) -> Result<Stage, RequestError> {
        let mut entry = self.slots[slot].lock();
        let Slot { number, scratch } = &mut *entry;
        *number = layout::next(*number);
        self.reach.put(slot, *number, request, scratch)?;
        written();
        self.reach.say_where();
        let asleep = self.reach.is_asleep(slot);
        Ok(if asleep { Stage::Ring { number: *number } } else { Stage::Left { number: *number } })
    }

    /// Looks once for the answer to the last call in `slot`: [`Left`](Stage::Left) if there is none.
    pub(crate) fn look(
        &self,
        slot: usize,
        reply: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<Stage, RequestError> {
        let mut entry = self.slots[slot].lock();
        let Slot { number, scratch } = &mut *entry;
        Ok(match self.reach.look(slot, *number, reply, scratch, stats)? {
            Look::Answer(kind) => stage(kind, *number),
            Look::NotYet { .. } => Stage::Left { number: *number },
            Look::Nonsense => Stage::Nonsense,
        })
    }

    /// Takes the answer to the last call in `slot`, of which the host has said that it is in memory.
    pub(crate) fn take(
        &self,
        slot: usize,
        reply: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<Stage, RequestError> {
        match self.look(slot, reply, stats)? {
            answered @ (Stage::Answered | Stage::Unanswered) => Ok(answered),
            _ => Ok(Stage::Nonsense),
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn begin_at(&self, slot: usize, number: u32) {
        self.slots[slot].lock().number = number;
    }

    /// Ends it: one-sided requests fail.
    pub(crate) fn fail(&self) {
        self.reach.fail();
    }
}

fn stage(kind: Kind, number: u32) -> Stage {
    match kind {
        Kind::Plain => Stage::Answered,
        Kind::Unanswered => Stage::Unanswered,
        Kind::PutOff => Stage::Ring { number },
    }
}
