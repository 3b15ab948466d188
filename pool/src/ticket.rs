//! Tickets: the keys with which the owner of a pool admits clients to its stores.
//!
//! Owner and stores know the key of the pool. A ticket is a key whose name has the client and the
//! epoch of the owner. Its secret is derived from the key of the pool and the name. So a store
//! knows the ticket of each client without a message. A client with a ticket learns neither the key
//! of the pool nor the ticket of another client.
//!
//! # Concurrency
//! Plain values.

use hmac::{Hmac, KeyInit, Mac};
use rdmabox::{Domain, Grant, Key, KeyId, Keyring, Secret};
use sha2::Sha256;

use crate::ids::ClientId;

/// Begins the text that a secret is derived from. The name of the ticket follows.
const LABEL: &[u8] = b"rfs pool ticket 1\0";

/// The right of a client to use the stores of a pool in one epoch of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The client.
    pub client: ClientId,
    /// The epoch of the owner, below 2^44.
    pub epoch: u64,
    /// True if the client may write.
    pub may_write: bool,
}

impl Ticket {
    /// Returns the name of the ticket, which is not secret.
    ///
    /// # Panics
    /// If the epoch is 2^44 or more.
    pub fn name(self) -> KeyId {
        let Ticket { client, epoch, may_write } = self;
        assert!(epoch < 1 << 44, "epoch {epoch} is too large for the name of a ticket");
        let rights = if may_write { "w" } else { "r" };
        let name = format!("{rights}-{:x}-{epoch:x}", client.0);
        // Up to 30 letters, digits and dashes.
        name.parse().expect("the name of a ticket is the name of a key")
    }

    /// Returns the key of the ticket in the pool of this key.
    ///
    /// # Panics
    /// As for [`name`](Self::name).
    pub fn key(self, pool: &Key) -> Key {
        let id = self.name();
        let mut mac = Hmac::<Sha256>::new_from_slice(pool.secret.to_hex().as_bytes())
            .expect("a key of HMAC may have any length");
        mac.update(LABEL);
        mac.update(id.to_string().as_bytes());
        let secret: [u8; 32] = mac.finalize().into_bytes().into();
        Key { id, secret: Secret::new(&secret).expect("32 bytes are a secret") }
    }

    /// Returns the ticket of this name; `None` if it is the name of another key.
    pub fn of(name: &KeyId) -> Option<Ticket> {
        let text = name.to_string();
        let (rights, numbers) = text.split_once('-')?;
        let may_write = match rights {
            "w" => true,
            "r" => false,
            _ => return None,
        };
        let (client, epoch) = numbers.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let ticket = Ticket { client: ClientId(number(client)?), epoch: number(epoch)?, may_write };
        // Each ticket has one name.
        (ticket.epoch < 1 << 44 && ticket.name() == *name).then_some(ticket)
    }
}

/// The keys that a store of a pool accepts: the key of the pool, and all tickets.
pub(crate) struct PoolKeys {
    pub(crate) pool: Key,
    /// Domain of the owner, and of clients that may write.
    pub(crate) domain: Domain,
    /// Domain of other clients.
    pub(crate) read_only: Domain,
}

impl Keyring for PoolKeys {
    fn grant(&self, id: &KeyId) -> Option<Grant> {
        if *id == self.pool.id {
            return Some(Grant::new(self.pool.secret.clone(), self.domain));
        }
        let ticket = Ticket::of(id)?;
        let domain = if ticket.may_write { self.domain } else { self.read_only };
        Some(Grant::new(ticket.key(&self.pool).secret, domain))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(secret: u8) -> Key {
        Key { id: "pool".parse().expect("a name"), secret: Secret::new(&[secret; 16]).expect("a secret") }
    }

    proptest! {
        #[test]
        fn a_name_is_of_one_ticket(
            client in any::<u64>(), epoch in 0..1_u64 << 44, may_write in any::<bool>(),
        ) {
            let ticket = Ticket { client: ClientId(client), epoch, may_write };
            prop_assert_eq!(Ticket::of(&ticket.name()), Some(ticket));
        }
    }

    #[test]
    fn other_names_are_no_tickets() {
        let names = ["pool", "w-1", "w-01-2", "w-1-2-3", "r--1", "r-1-100000000000", "W-1-2", "x-1-2"];
        for name in names {
            assert_eq!(Ticket::of(&name.parse().expect("a name")), None, "{name}");
        }
    }

    #[test]
    fn secrets_depend_on_pool_client_and_epoch() {
        let ticket = |client, epoch| Ticket { client: ClientId(client), epoch, may_write: true };
        let secret = |ticket: Ticket, of| ticket.key(&pool(of)).secret;
        let first = secret(ticket(1, 1), 1);
        assert_eq!(first, secret(ticket(1, 1), 1));
        let read_only = Ticket { may_write: false, ..ticket(1, 1) };
        for other in
            [secret(ticket(2, 1), 1), secret(ticket(1, 2), 1), secret(ticket(1, 1), 2), secret(read_only, 1)]
        {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn a_store_grants_the_pool_and_its_tickets() {
        let domain = Domain::default();
        let keys = PoolKeys { pool: pool(1), domain, read_only: domain };
        let ticket = Ticket { client: ClientId(7), epoch: 3, may_write: false };
        let secret = |id: &KeyId| keys.grant(id).map(|grant| grant.secret);
        assert_eq!(secret(&keys.pool.id), Some(keys.pool.secret.clone()));
        assert_eq!(secret(&ticket.name()), Some(ticket.key(&keys.pool).secret));
        assert_eq!(secret(&"other".parse().expect("a name")), None);
    }
}
