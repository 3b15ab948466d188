//! Translation of addresses from the client's first session to the current session. No I/O, no
//! locks, no clock.
//!
//! Each session may name the same memory with other addresses and keys. The client always uses
//! the addresses of its first session. Its keys are those of the first session plus the epoch's
//! number, so an address of an earlier epoch is recognized and refused.

use rdmabox::{Op, RemoteAddr};
use rfs_proto::{Attached, RegionRef};

/// A session's names of the memory regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Regions {
    arena: RegionRef,
    table: RegionRef,
    sums: Option<RegionRef>,
}

impl Regions {
    pub(super) fn of(attached: &Attached) -> Regions {
        Regions { arena: attached.arena, table: attached.table, sums: attached.sums }
    }

    /// Returns true if both have the same regions with the same lengths.
    pub(super) fn has_lengths_of(&self, others: &Regions) -> bool {
        let lengths = |all: &Regions| (all.arena.len, all.table.len, all.sums.map(|sums| sums.len));
        lengths(self) == lengths(others)
    }
}

/// A translation from the first session's addresses to the current session's.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressMap {
    first: Regions,
    now: Regions,
}

impl AddressMap {
    /// Creates the translation that the client uses in `epoch`.
    pub(super) fn new(first: Regions, epoch: u32, now: Regions) -> AddressMap {
        let of_epoch = |region: RegionRef| RegionRef { rkey: region.rkey.wrapping_add(epoch), ..region };
        let first =
            Regions { arena: of_epoch(first.arena), table: of_epoch(first.table), sums: first.sums.map(of_epoch) };
        AddressMap { first, now }
    }

    /// Returns true if the translation changes nothing.
    pub(super) fn is_identity(&self) -> bool {
        self.first == self.now
    }

    /// Translates an address. Returns `None` if it is of another epoch.
    pub(super) fn translate(&self, place: RemoteAddr) -> Option<RemoteAddr> {
        let within = |region: &RegionRef| {
            let offset = place.addr.checked_sub(region.addr)?;
            (place.rkey == region.rkey && offset < region.len).then_some(offset)
        };
        let pairs = [(&self.first.arena, &self.now.arena), (&self.first.table, &self.now.table)];
        let sums = self.first.sums.as_ref().zip(self.now.sums.as_ref());
        let mut found = pairs.into_iter().chain(sums).filter_map(|(first, now)| {
            Some(RemoteAddr { addr: now.addr.wrapping_add(within(first)?), rkey: now.rkey })
        });
        found.next()
    }
}

/// Returns the remote address of a step of a list.
pub(super) fn address_of<'o>(op: &'o mut Op<'_>) -> &'o mut RemoteAddr {
    match op {
        Op::Write { remote, .. }
        | Op::Read { remote, .. }
        | Op::CompareSwap { remote, .. }
        | Op::FetchAdd { remote, .. } => remote,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(arena: u64, table: u64, rkey: u32) -> Regions {
        let region = |addr, rkey| RegionRef { addr, len: 0x1000, rkey };
        let sums = Some(region(table + 0x1_0000, rkey + 2));
        Regions { arena: region(arena, rkey), table: region(table, rkey + 1), sums }
    }

    #[test]
    fn translated_addresses_keep_their_offsets() {
        let (first, now) = (regions(0x10_0000, 0x20_0000, 1), regions(0x7000, 0x10_0000, 8));
        let map = AddressMap::new(first, 0, now);
        let at = |addr, rkey| RemoteAddr { addr, rkey };
        let (third, none) = (AddressMap::new(first, 2, now), None);
        assert_eq!(third.translate(at(0x10_0000, 3)), map.translate(at(0x10_0000, 1)));
        assert_eq!((third.translate(at(0x10_0000, 1)), third.translate(at(0x20_0000, 2))), (none, none));
        assert_eq!(map.translate(at(0x10_0000, 1)), Some(at(0x7000, 8)));
        assert_eq!(map.translate(at(0x10_0fff, 1)), Some(at(0x7fff, 8)));
        assert_eq!(map.translate(at(0x20_0008, 2)), Some(at(0x10_0008, 9)));
        assert_eq!(map.translate(at(0x21_0008, 3)), Some(at(0x11_0008, 10)));
        for outside in [at(0x10_1000, 1), at(0x10_0000, 2), at(5, 1), at(u64::MAX, 2)] {
            assert_eq!(map.translate(outside), None);
        }
        assert!(!map.is_identity() && AddressMap::new(first, 0, first).is_identity());
        assert!(first.has_lengths_of(&now));
        assert!(!first.has_lengths_of(&Regions { sums: None, ..now }));
    }
}
