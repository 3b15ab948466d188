//! The view of a pool: which stores it has, and in which state.
//!
//! # Concurrency
//! Plain values.

use std::collections::HashSet;

use rdmabox::Address;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Epochs that are read are below this number: those of the next centuries. Tickets have room for
/// twice as many, so an epoch can still be raised.
const EPOCH_END: u64 = 1 << 43;
/// Most stores that a view remembers as removed. The oldest are forgotten first.
const MAX_REMOVED: usize = 1000;

/// The view of a pool, as a registry keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PoolView {
    /// Number of the last change of the pool.
    pub(crate) view: u64,
    /// The highest epoch that the server has given to a store.
    pub(crate) epoch: u64,
    /// The stores by number.
    pub(crate) stores: Vec<Member>,
    /// Stores that were removed, and are not added again by their registration.
    pub(crate) removed: Vec<RemovedStore>,
}

/// A store of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its number in places.
    pub(crate) number: u16,
    /// Its address, as the server and its clients reach it.
    #[serde(serialize_with = "write_address", deserialize_with = "read_address")]
    pub(crate) address: Address,
    /// Whether data moves away.
    #[serde(default)]
    pub(crate) state: MemberState,
    /// The run of the store that the server uses, if the store was registered.
    #[serde(default)]
    pub(crate) run: Option<String>,
}

/// The state of a store in the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MemberState {
    /// The store is used.
    #[default]
    Up,
    /// Its data moves away.
    Draining,
}

/// A store that was removed from the pool and may still be registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemovedStore {
    /// Its address.
    #[serde(serialize_with = "write_address", deserialize_with = "read_address")]
    pub(crate) address: Address,
    /// The run that was removed. A later run at the same address is another store.
    pub(crate) run: String,
}

impl PoolView {
    /// Returns the view of a pool with these stores, numbered from 1 on.
    pub(crate) fn of(addresses: impl IntoIterator<Item = Address>) -> PoolView {
        let member = |(number, address)| Member { number, address, state: MemberState::Up, run: None };
        let stores = (1..=u16::MAX).zip(addresses).map(member).collect();
        PoolView { stores, ..PoolView::default() }
    }

    /// Gives the stores numbers from 1 on. A server that starts has no places yet.
    pub(crate) fn renumber(&mut self) {
        (1..=u16::MAX).zip(&mut self.stores).for_each(|(number, member)| member.number = number);
    }

    /// Returns the addresses of the stores, in order.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.stores.iter().map(|member| member.address.clone()).collect()
    }

    /// Checks a view that was read.
    ///
    /// # Errors
    /// Why no server has written it.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.epoch >= EPOCH_END || self.view >= 1 << 62 {
            return Err("the epoch or the number of the view is too high".into());
        }
        if self.stores.len() > usize::from(u16::MAX) {
            return Err("there are more than 65,535 stores".into());
        }
        let mut known = HashSet::new();
        match self.stores.iter().find(|member| !known.insert(member.address.to_string())) {
            Some(member) => Err(format!("{} is there twice", member.address)),
            None => Ok(()),
        }
    }

    /// Returns true if this run of a store was removed.
    pub(crate) fn has_removed(&self, address: &Address, run: &str) -> bool {
        self.removed.iter().any(|removed| removed.address == *address && removed.run == run)
    }

    /// Notes that a run of a store was removed.
    pub(crate) fn note_removed(&mut self, address: Address, run: String) {
        self.removed.retain(|removed| removed.address != address);
        self.removed.push(RemovedStore { address, run });
        let excess = self.removed.len().saturating_sub(MAX_REMOVED);
        self.removed.drain(..excess);
    }
}

/// Writes an address as text.
pub(super) fn write_address<S: Serializer>(address: &Address, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(address)
}

/// Reads the text of an address.
pub(super) fn read_address<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|error| D::Error::custom(format!("{text:?} is no address: {error}")))
}
