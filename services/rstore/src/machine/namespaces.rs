//! Namespaces: create, join and delete.
//!
//! A namespace outlives the client that created it, with its reservation and its regions.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::collections::{BTreeMap, BTreeSet};

use super::state::{Machine, Namespace};
use crate::{
    proto::{Answer, MAX_NAME, NamespaceId},
    refusal::Refusal,
};

impl Machine {
    pub(super) fn create(&mut self, name: String) -> Result<Answer, Refusal> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Refusal::InvalidName);
        }
        if self.names.contains_key(&name) {
            return Err(Refusal::NamespaceExists(name));
        }
        let id = NamespaceId(self.number());
        let (reserved, regions) = (BTreeSet::new(), BTreeMap::new());
        self.names.insert(name.clone(), id);
        // Address 0 is in no region, as in a process.
        let next_address = self.settings.chunk_bytes;
        self.namespaces.insert(id, Namespace { name, reserved, regions, next_address });
        Ok(Answer::Namespace(id))
    }

    pub(super) fn join(&self, name: &str) -> Result<Answer, Refusal> {
        if name.len() > MAX_NAME {
            return Err(Refusal::InvalidName);
        }
        let id = self.names.get(name).ok_or_else(|| Refusal::NoSuchNamespace(name.to_owned()))?;
        Ok(Answer::Namespace(*id))
    }

    /// Deletes a namespace, if no client refers to its regions. A client drops its own handles
    /// first, so none of its threads can write to a chunk that is free.
    pub(super) fn delete(&mut self, id: NamespaceId) -> Result<Answer, Refusal> {
        let namespace = self.namespace(id)?;
        let versions = namespace.regions.values().flat_map(|region| region.versions.values());
        let references: u64 = versions.flat_map(|version| version.references.values()).sum();
        let writers = namespace.regions.values().filter(|region| region.lease.is_some()).count() as u64;
        if references + writers > 0 {
            return Err(Refusal::NamespaceInUse { references: references + writers });
        }
        let namespace = self.namespaces.remove(&id).ok_or(Refusal::NamespaceDeleted)?;
        self.names.remove(&namespace.name);
        namespace.reserved.into_iter().for_each(|chunk| self.account.set_free(chunk));
        for region in namespace.regions.into_values() {
            for chunk in region.versions.values().flat_map(|version| &version.chunks) {
                self.account.set_free(*chunk);
            }
        }
        Ok(Answer::Done)
    }
}
