//! Addresses in the server's memory. No I/O, no locks, no clock.
//!
//! The client names memory by a [`Place`]. Only [`Regions`] turns a place into the address that a
//! session uses, because each session may name the same memory with other addresses and keys.

use rdmabox::RemoteAddr;
use rfs_proto::{Attached, DataPlace, RegionRef};

/// The number of times that the server has lost the state of this mount. A later epoch compares
/// greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub(crate) u32);

/// A region of the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The data of files.
    Arena,
    /// The table of attribute records.
    Table,
    /// The checksum words of the arena.
    Sums,
}

/// A place in the server's memory. The server may give the memory at a place of an earlier epoch
/// to another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The epoch in which the client learned of the place.
    pub epoch: Epoch,
    /// The region.
    pub region: Region,
    /// Offset in the region, in bytes. In the arena it is the number of a [`DataPlace`], which also
    /// names the store.
    pub offset: u64,
}

impl Place {
    /// Returns the store that has the memory: 0 for the server itself.
    pub fn store(self) -> u16 {
        match self.region {
            Region::Arena => DataPlace::from_number(self.offset).store(),
            Region::Table | Region::Sums => 0,
        }
    }
}

/// A region with its length. It makes the places in the region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionBounds {
    pub(crate) region: Region,
    /// Length in bytes.
    pub(crate) len: u64,
}

impl RegionBounds {
    /// Returns the place of `len` bytes at `offset`. Returns `None` if they are not all inside. The
    /// session to a store checks the bounds of its memory.
    pub(crate) fn place(&self, epoch: Epoch, offset: u64, len: u64) -> Option<Place> {
        let place = Place { epoch, region: self.region, offset };
        let inside = match place.store() {
            0 => offset.checked_add(len).is_some_and(|end| end <= self.len),
            _ => DataPlace::from_number(offset).end(len).is_some(),
        };
        inside.then_some(place)
    }
}

/// A session's names of the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Regions {
    arena: RegionRef,
    table: RegionRef,
    sums: Option<RegionRef>,
}

impl Regions {
    pub(crate) fn of(attached: &Attached) -> Regions {
        Regions { arena: attached.arena, table: attached.table, sums: attached.sums }
    }

    /// Returns true if both have the same regions with the same lengths.
    pub(crate) fn has_lengths_of(&self, others: &Regions) -> bool {
        let lengths = |all: &Regions| (all.arena.len, all.table.len, all.sums.map(|sums| sums.len));
        lengths(self) == lengths(others)
    }

    /// Returns false if a region exceeds the address space. All addresses are valid otherwise.
    pub(crate) fn are_addressable(&self) -> bool {
        let all = [Some(self.arena), Some(self.table), self.sums];
        all.into_iter().flatten().all(|region| region.addr.checked_add(region.len).is_some())
    }

    /// Returns the session's name of a region. A region that the session does not have is empty.
    pub(crate) fn get(&self, region: Region) -> RegionRef {
        const NO_REGION: RegionRef = RegionRef { addr: 0, len: 0, rkey: 0 };
        match region {
            Region::Arena => self.arena,
            Region::Table => self.table,
            Region::Sums => self.sums.unwrap_or(NO_REGION),
        }
    }

    /// Returns the session's address of a place. The caller has checked the epoch.
    pub(crate) fn address(&self, place: Place) -> RemoteAddr {
        let region = self.get(place.region);
        // A place is inside its region, and a region does not exceed the address space.
        RemoteAddr { addr: region.addr.wrapping_add(place.offset), rkey: region.rkey }
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
    fn each_session_has_its_own_address_of_a_place() {
        let place = |region, offset| Place { epoch: Epoch(3), region, offset };
        for (regions, arena, table, rkey) in [
            (regions(0x10_0000, 0x20_0000, 1), 0x10_0000, 0x20_0000, 1),
            (regions(0x7000, 0x10_0000, 8), 0x7000, 0x10_0000, 8),
        ] {
            let at = |addr, rkey| RemoteAddr { addr, rkey };
            assert_eq!(regions.address(place(Region::Arena, 0)), at(arena, rkey));
            assert_eq!(regions.address(place(Region::Arena, 0xfff)), at(arena + 0xfff, rkey));
            assert_eq!(regions.address(place(Region::Table, 8)), at(table + 8, rkey + 1));
            assert_eq!(regions.address(place(Region::Sums, 8)), at(table + 0x1_0008, rkey + 2));
        }
    }

    #[test]
    fn a_place_lies_inside_its_region() {
        let bounds = RegionBounds { region: Region::Table, len: 0x1000 };
        let place = |offset| Some(Place { epoch: Epoch(2), region: Region::Table, offset });
        assert_eq!(bounds.place(Epoch(2), 0, 0x1000), place(0));
        assert_eq!(bounds.place(Epoch(2), 0xff8, 8), place(0xff8));
        for (offset, len) in [(0, 0x1001), (0xff9, 8), (0x1000, 1), (u64::MAX, 2), (2, u64::MAX)] {
            assert_eq!(bounds.place(Epoch(2), offset, len), None, "{len} bytes at {offset}");
        }
    }

    #[test]
    fn a_place_in_a_store_does_not_reach_into_the_next_store() {
        let arena = RegionBounds { region: Region::Arena, len: 0x1000 };
        let number = |offset| DataPlace::new(2, offset).expect("a place").number();
        let place = arena.place(Epoch(1), number(0x7000), 0x1000).expect("a place");
        assert_eq!((place.store(), place.offset), (2, number(0x7000)));
        let last = DataPlace::STORE_LEN - 0x1000;
        assert!(arena.place(Epoch(1), number(last), 0x1000).is_some());
        assert!(arena.place(Epoch(1), number(last), 0x1001).is_none());
        assert!(arena.place(Epoch(1), 0x1000, 1).is_none(), "the server's own arena has a length");
        // Records are in the server's own memory only.
        let table = RegionBounds { region: Region::Table, len: u64::MAX };
        assert_eq!(table.place(Epoch(1), number(0), 8).map(Place::store), Some(0));
    }

    #[test]
    fn regions_are_compared_by_their_lengths() {
        let (first, now) = (regions(0x10_0000, 0x20_0000, 1), regions(0x7000, 0x10_0000, 8));
        assert!(first.has_lengths_of(&now));
        assert!(!first.has_lengths_of(&Regions { sums: None, ..now }));
        let longer = RegionRef { len: 0x1001, ..now.arena };
        assert!(!first.has_lengths_of(&Regions { arena: longer, ..now }));
    }

    #[test]
    fn a_region_past_the_end_of_the_address_space_is_found() {
        let good = regions(0x10_0000, 0x20_0000, 1);
        let late = |region: RegionRef| RegionRef { addr: u64::MAX - 0xffe, ..region };
        assert!(good.are_addressable());
        assert!(!Regions { arena: late(good.arena), ..good }.are_addressable());
        assert!(!Regions { table: late(good.table), ..good }.are_addressable());
        assert!(!Regions { sums: good.sums.map(late), ..good }.are_addressable());
    }
}
