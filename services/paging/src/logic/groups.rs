//! Which chunks of lenders hold the pages of a region.
//!
//! The first page of a group that is written out gets the group a chunk at each of its servers.
//! A member of the group is missing when its server is lost. A group with at least `data` members
//! has all of its pages. With fewer members the pages of missing ones are lost, and the parity
//! pages are void: the group gives them up.
//!
//! The parity pages of a stripe cover a page of the stripe, or take it for zero. Pages that need no
//! copy are not covered, so a new parity page does not depend on their old bytes.
//!
//! # Concurrency
//! Plain values.

use super::layout::Layout;

/// A chunk of a group: `M` says where in the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member<M> {
    /// Index of the server.
    pub(crate) server: usize,
    /// The chunk there.
    pub(crate) memory: M,
}

/// The members of a group: chunks of pages, then chunks of parity pages.
pub(crate) type Members<M> = Vec<Option<Member<M>>>;

#[derive(Debug)]
struct Group<M> {
    members: Members<M>,
    /// Pages that need their slot.
    used: usize,
    /// One bit for each page: the parity pages of the stripe cover it.
    covered: Vec<u64>,
}

/// The loss of a group with a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GroupLoss<M> {
    /// The first page of the group.
    pub(crate) first: usize,
    /// Positions whose pages have no copy any more.
    pub(crate) positions: Vec<usize>,
    /// The group has no member any more, and so no place.
    pub(crate) is_gone: bool,
    /// Chunks of void parity pages. Write-outs to them may be under way.
    pub(crate) void: Vec<Member<M>>,
}

/// Groups of one region. A group without an entry has no page at a server.
#[derive(Debug)]
pub(crate) struct GroupMap<M> {
    layout: Layout,
    groups: Vec<Option<Group<M>>>,
}

impl<M: Copy> GroupMap<M> {
    /// Makes the map of a region with `pages` pages.
    pub(crate) fn new(pages: usize, layout: Layout) -> GroupMap<M> {
        let groups = (0..pages.div_ceil(layout.group_pages())).map(|_| None).collect();
        GroupMap { layout, groups }
    }

    fn group(&self, page: usize) -> Option<&Group<M>> {
        self.groups[self.layout.group(page)].as_ref()
    }

    fn group_mut(&mut self, page: usize) -> Option<&mut Group<M>> {
        self.groups[self.layout.group(page)].as_mut()
    }

    /// Returns the members of a page's group; none if the group has no place.
    pub(crate) fn members(&self, page: usize) -> &[Option<Member<M>>] {
        self.group(page).map_or(&[], |group| &group.members)
    }

    /// Gives a group its place. The group of the page must have none.
    pub(crate) fn place(&mut self, page: usize, members: Members<M>) {
        debug_assert!(members.len() == self.layout.members() && self.group(page).is_none());
        let covered = vec![0; self.layout.group_pages() / 64];
        self.groups[self.layout.group(page)] = Some(Group { members, used: 0, covered });
    }

    /// Gives the group of a page a member that is missing.
    pub(crate) fn set_member(&mut self, page: usize, index: usize, member: Member<M>) {
        if let Some(group) = self.group_mut(page) {
            debug_assert!(group.members[index].is_none());
            group.members[index] = Some(member);
        }
    }

    /// Returns the first page of the first group at or after the one of `page` that has a place,
    /// but fewer than `wanted` members.
    pub(crate) fn next_bare(&self, page: usize, wanted: usize) -> Option<usize> {
        let from = self.layout.group(page);
        let is_bare = |group: &Option<Group<M>>| {
            group.as_ref().is_some_and(|group| group.members.iter().flatten().count() < wanted)
        };
        let found = self.groups.get(from..)?.iter().position(is_bare)?;
        Some((from + found) * self.layout.group_pages())
    }

    /// Returns true if the parity pages cover a page.
    pub(crate) fn is_covered(&self, page: usize) -> bool {
        let bit = page % self.layout.group_pages();
        self.group(page).is_some_and(|group| group.covered[bit / 64] & (1 << (bit % 64)) != 0)
    }

    /// Notes whether the parity pages cover a page.
    pub(crate) fn cover(&mut self, page: usize, covered: bool) {
        let bit = page % self.layout.group_pages();
        let Some(group) = self.group_mut(page) else { return };
        if covered {
            group.covered[bit / 64] |= 1 << (bit % 64);
        } else {
            group.covered[bit / 64] &= !(1 << (bit % 64));
        }
    }

    /// Notes that a page needs its slot.
    pub(crate) fn take_slot(&mut self, page: usize) {
        if let Some(group) = self.group_mut(page) {
            group.used += 1;
        }
    }

    /// Notes that a page needs its slot no more. Returns the group's members if no page needs the
    /// group; its place is then free.
    pub(crate) fn leave_slot(&mut self, page: usize) -> Vec<Member<M>> {
        let place = &mut self.groups[self.layout.group(page)];
        let Some(group) = place else { return Vec::new() };
        group.used -= 1;
        if group.used > 0 {
            return Vec::new();
        }
        place.take().map(|group| group.members.into_iter().flatten().collect()).unwrap_or_default()
    }

    /// Removes a server. Returns the losses of all groups that lose pages.
    pub(crate) fn remove_server(&mut self, server: usize) -> Vec<GroupLoss<M>> {
        let (data, pages) = (self.layout.data(), self.layout.group_pages());
        let mut losses = Vec::new();
        for (index, place) in self.groups.iter_mut().enumerate() {
            let Some(group) = place else { continue };
            let is_there = |member: &Option<Member<M>>| member.is_some_and(|member| member.server == server);
            if !group.members.iter().any(is_there) {
                continue;
            }
            for member in &mut group.members {
                member.take_if(|member| member.server == server);
            }
            if group.members.iter().flatten().count() >= data {
                continue;
            }
            let positions: Vec<usize> =
                (0..data).filter(|position| group.members[*position].is_none()).collect();
            let void: Vec<Member<M>> = group.members[data..].iter_mut().filter_map(Option::take).collect();
            let is_gone = group.members.iter().all(Option::is_none);
            for bit in (0..pages).filter(|page| positions.contains(&(page % data))) {
                group.covered[bit / 64] &= !(1 << (bit % 64));
            }
            if is_gone {
                *place = None;
            }
            losses.push(GroupLoss { first: index * pages, positions, is_gone, void });
        }
        losses
    }

    /// Removes all groups, and returns their members.
    pub(crate) fn clear(&mut self) -> Vec<Member<M>> {
        let groups = self.groups.iter_mut().filter_map(Option::take);
        groups.flat_map(|group| group.members.into_iter().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::redundancy::Redundancy;

    fn member(server: usize, memory: u32) -> Member<u32> {
        Member { server, memory }
    }

    fn map(redundancy: Redundancy) -> GroupMap<u32> {
        GroupMap::new(1000, Layout::new(redundancy))
    }

    #[test]
    fn a_group_is_free_when_its_last_slot_is() {
        let mut map = map(Redundancy::Mirror);
        assert!(map.members(300).is_empty());
        map.place(300, vec![Some(member(0, 7)), Some(member(1, 8))]);
        assert_eq!(map.members(256).len(), 2);
        assert!(map.members(255).is_empty());
        map.take_slot(300);
        map.take_slot(301);
        assert!(map.leave_slot(300).is_empty());
        assert_eq!(map.leave_slot(301).as_slice(), [member(0, 7), member(1, 8)]);
        assert!(map.members(300).is_empty());
    }

    #[test]
    fn only_the_last_copy_bares_a_group() {
        let mut map = map(Redundancy::Mirror);
        map.place(0, vec![Some(member(0, 1)), Some(member(1, 1))]);
        map.place(999, vec![Some(member(1, 2)), None]);
        let gone = |first| GroupLoss { first, positions: vec![0], is_gone: true, void: vec![] };
        assert_eq!(map.remove_server(1), [gone(768)]);
        assert_eq!(map.members(0), [Some(member(0, 1)), None]);
        assert_eq!((map.next_bare(0, 2), map.next_bare(256, 2), map.next_bare(0, 1)), (Some(0), None, None));
        assert_eq!(map.next_bare(5000, 2), None);
        map.set_member(0, 1, member(2, 5));
        assert_eq!(map.next_bare(0, 2), None);
        assert_eq!(map.remove_server(2), []);
        assert_eq!(map.remove_server(1), []);
        assert_eq!(map.remove_server(0), [gone(0)]);
        assert!(map.clear().is_empty());
    }

    #[test]
    fn a_coded_group_loses_pages_only_with_more_servers_than_parity_pages() {
        let mut map = map(Redundancy::Coded { data: 2, parity: 1 });
        map.place(0, vec![Some(member(0, 1)), Some(member(1, 2)), Some(member(2, 3))]);
        for page in [0, 1, 511] {
            map.cover(page, true);
        }
        map.cover(0, false);
        assert_eq!(map.remove_server(0), []);
        assert!(!map.is_covered(0) && map.is_covered(1) && map.is_covered(511));
        // Without server 1 nothing tells its pages from those of server 0.
        let loss = GroupLoss { first: 0, positions: vec![0, 1], is_gone: true, void: vec![member(2, 3)] };
        assert_eq!(map.remove_server(1), [loss]);
        assert!(!map.is_covered(511));

        map.place(600, vec![Some(member(3, 1)), Some(member(4, 2)), None]);
        map.cover(601, true);
        let loss = GroupLoss { first: 512, positions: vec![0], is_gone: false, void: vec![] };
        assert_eq!(map.remove_server(3), [loss]);
        assert_eq!(map.members(512), [None, Some(member(4, 2)), None]);
        assert!(map.is_covered(601));
    }
}
