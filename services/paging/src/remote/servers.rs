//! The servers that lend memory, and which of them are lost.
//!
//! Invariant: a lost server is never used again. Its copies are void from then on, because the
//! outcome of the request that failed is unknown.
//!
//! # Concurrency
//! The fault thread owns the values. Only callbacks of write-outs run elsewhere, and they own
//! their buffers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rdmabox::{Address, Buffer, RemoteAddr, RequestError, Session, SessionOptions, verbs::VerbsError};

use super::lent_chunks::LentChunks;
use crate::{
    error::PagingError,
    lender::protocol::{self, LentChunk},
    logic::{
        PAGE,
        groups::{Member, Members},
        layout::{CHUNK, Layout},
    },
};

/// Attempts for one request, before its server is given up. The failure of a queue pair ends all
/// requests posted there, so one request may fail several times in a row.
pub(crate) const ATTEMPTS: u32 = 8;
/// How long a server that was full is not asked for a chunk again.
const FULL_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Server {
    address: Address,
    session: Arc<Session>,
    is_lost: bool,
    full_until: Option<Instant>,
    lent: LentChunks,
    /// Registered buffers of a page each, not in use.
    buffers: Vec<Buffer>,
}

/// The servers of a pager, by index.
#[derive(Debug)]
pub(crate) struct Servers {
    servers: Vec<Server>,
    layout: Layout,
}

/// The outcome of a request for chunks, which has `T` if it succeeds.
#[derive(Debug)]
pub(crate) enum Placement<T> {
    /// The servers lend the chunks.
    Placed(T),
    /// Too few servers have room.
    NoRoom,
    /// A server failed. Try again without it.
    Failed(usize, RequestError),
}

/// Connects to a server.
pub(super) fn connect(address: &Address, options: &SessionOptions) -> Result<Arc<Session>, PagingError> {
    Session::connect(address, options)
        .map_err(|source| PagingError::Connect { address: address.clone(), source })
}

impl Servers {
    /// Connects to all servers, and checks that they lend memory.
    pub(crate) fn connect(
        addresses: &[Address],
        options: &SessionOptions,
        layout: Layout,
    ) -> Result<Servers, PagingError> {
        let server = |address: &Address| {
            let session = connect(address, options)?;
            protocol::status(&session)
                .map_err(|source| PagingError::NotALender { address: address.clone(), source })?;
            let (address, buffers) = (address.clone(), Vec::new());
            Ok(Server {
                address,
                session,
                is_lost: false,
                full_until: None,
                lent: LentChunks::default(),
                buffers,
            })
        };
        Ok(Servers { servers: addresses.iter().map(server).collect::<Result<_, _>>()?, layout })
    }

    /// Returns the sessions, of lost servers as well.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.servers.iter().map(|server| Arc::clone(&server.session)).collect()
    }

    pub(crate) fn address(&self, server: usize) -> &Address {
        &self.servers[server].address
    }

    pub(crate) fn session(&self, server: usize) -> &Arc<Session> {
        &self.servers[server].session
    }

    pub(crate) fn is_lost(&self, server: usize) -> bool {
        self.servers[server].is_lost
    }

    /// Returns the servers that are not lost and whose connection has ended.
    pub(crate) fn disconnected(&self) -> Vec<usize> {
        let has_ended = |index: &usize| {
            let server = &self.servers[*index];
            !server.is_lost && !server.session.is_connected()
        };
        (0..self.servers.len()).filter(has_ended).collect()
    }

    /// Returns the number of servers.
    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    /// Returns the number of servers that are not lost.
    pub(crate) fn live(&self) -> usize {
        self.servers.iter().filter(|server| !server.is_lost).count()
    }

    /// Returns the number of chunks at all servers.
    pub(crate) fn chunks(&self) -> usize {
        self.servers.iter().map(|server| server.lent.len()).sum()
    }

    /// Marks a server lost. Returns false if it was before.
    pub(crate) fn lose(&mut self, server: usize) -> bool {
        let server = &mut self.servers[server];
        let first = !server.is_lost;
        server.is_lost = true;
        server.lent.clear();
        server.buffers.clear();
        if first {
            server.session.close(Duration::ZERO);
        }
        first
    }

    /// Takes a buffer of one page, registered with the server's session.
    pub(crate) fn take_buffer(&mut self, server: usize) -> Result<Buffer, VerbsError> {
        let server = &mut self.servers[server];
        server.buffers.pop().map_or_else(|| server.session.allocate(PAGE), Ok)
    }

    /// Gives a buffer back.
    pub(crate) fn give_buffer(&mut self, server: usize, buffer: Buffer) {
        let server = &mut self.servers[server];
        if !server.is_lost {
            server.buffers.push(buffer);
        }
    }

    /// Returns the number of members that a group can have now: with fewer live servers than
    /// members, one at each server.
    pub(crate) fn wanted(&self) -> usize {
        self.layout.members().min(self.live())
    }

    /// Gets the chunks of a new group at different servers: those with the fewest chunks.
    ///
    /// With fewer live servers than members, parity pages have no chunks. With fewer live servers
    /// than pages of a stripe, servers lend several chunks.
    pub(crate) fn place_group(&mut self) -> Placement<Members<LentChunk>> {
        let (distinct, data) = (self.wanted(), self.layout.data());
        let mut candidates = self.candidates(&[]);
        let mut placed: Vec<Member<LentChunk>> = Vec::new();
        while placed.len() < distinct.max(data) {
            if candidates.len() < distinct.max(1) {
                self.free(placed);
                return Placement::NoRoom;
            }
            let index = candidates[placed.len() % candidates.len()];
            match self.allocate(index) {
                Placement::Placed(member) => placed.push(member),
                // The others stay in order, and the next one takes the place.
                Placement::NoRoom => candidates.retain(|candidate| *candidate != index),
                Placement::Failed(index, error) => {
                    self.free(placed);
                    return Placement::Failed(index, error);
                }
            }
        }
        // Parity pages change with every page of a stripe, so servers take turns to have them.
        let turn = self.chunks() / placed.len() % placed.len();
        placed.rotate_left(turn);
        let mut members: Members<LentChunk> = placed.into_iter().map(Some).collect();
        members.resize_with(self.layout.members(), || None);
        Placement::Placed(members)
    }

    /// Gets a chunk for a missing member of a group whose other members are at `holders`. Takes one
    /// of these servers only if `may_share` is set and no other server is left. A full server may
    /// have room later, and two members at one server would be lost together.
    pub(crate) fn place_member(
        &mut self,
        holders: &[usize],
        may_share: bool,
    ) -> Placement<Member<LentChunk>> {
        let mut candidates = self.candidates(holders);
        let is_other = |index: &usize| !self.servers[*index].is_lost && !holders.contains(index);
        if may_share && !(0..self.servers.len()).any(|index| is_other(&index)) {
            candidates = self.candidates(&[]);
        }
        for index in candidates {
            match self.allocate(index) {
                Placement::NoRoom => {}
                outcome => return outcome,
            }
        }
        Placement::NoRoom
    }

    /// Returns the servers that may have room and are not among `holders`, by their chunks.
    fn candidates(&self, holders: &[usize]) -> Vec<usize> {
        let now = Instant::now();
        let mut candidates: Vec<usize> = (0..self.servers.len())
            .filter(|index| !self.servers[*index].is_lost && !self.servers[*index].is_full(now))
            .filter(|index| !holders.contains(index))
            .collect();
        candidates.sort_by_key(|index| self.servers[*index].lent.len());
        candidates
    }

    fn allocate(&mut self, index: usize) -> Placement<Member<LentChunk>> {
        let server = &mut self.servers[index];
        match protocol::allocate(&server.session, CHUNK) {
            Ok(Some(memory)) => match server.lent.add(&memory) {
                Ok(()) => Placement::Placed(Member { server: index, memory }),
                Err(error) => Placement::Failed(index, error),
            },
            Ok(None) => {
                server.full_until = Some(Instant::now() + FULL_PAUSE);
                Placement::NoRoom
            }
            Err(error) => Placement::Failed(index, error),
        }
    }

    /// Gives chunks back to their servers. Does not wait.
    pub(crate) fn free(&mut self, members: Vec<Member<LentChunk>>) {
        for (index, server) in self.servers.iter_mut().enumerate() {
            let of_server = members.iter().filter(|member| member.server == index);
            let chunks: Vec<LentChunk> = of_server.map(|member| member.memory).collect();
            if chunks.is_empty() || server.is_lost {
                continue;
            }
            chunks.iter().for_each(|chunk| server.lent.remove(chunk));
            let numbers: Vec<u32> = chunks.iter().map(|chunk| chunk.number).collect();
            for part in numbers.chunks(4096) {
                // A server that cannot be reached is found lost by the next request.
                let _ = protocol::start_free(&server.session, part.to_vec());
            }
        }
    }
}

impl Server {
    fn is_full(&self, now: Instant) -> bool {
        self.full_until.is_some_and(|until| now < until)
    }
}

/// Returns true if a request that failed may be repeated before its server is given up.
pub(crate) fn may_repeat(error: &RequestError) -> bool {
    // A server that does not answer in time would take as long again.
    error.is_retryable() && !matches!(error, RequestError::Timeout(_))
}

/// Returns the address of a page in a chunk.
pub(crate) fn page_address(chunk: &LentChunk, page_in_chunk: usize) -> RemoteAddr {
    chunk.memory.base().at((page_in_chunk * PAGE) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lender, LenderOptions, Redundancy};

    fn listen(memory: u64) -> Lender {
        let address = "127.0.0.1:0".parse().expect("an address");
        let options = LenderOptions::new(memory).allow_without_keys(true);
        Lender::listen(&[address], &options).expect("a lender")
    }

    fn connect_all(lenders: &[Lender], redundancy: Redundancy) -> Servers {
        let addresses: Vec<Address> = lenders.iter().map(|lender| lender.addresses()[0].clone()).collect();
        let mut options = SessionOptions::default();
        options.provider = Some(rdmabox::ProviderKind::Tcp);
        Servers::connect(&addresses, &options, Layout::new(redundancy)).expect("servers")
    }

    #[test]
    fn a_full_server_of_a_mirror_spares_the_other_one_calls() {
        let lenders = [listen(8 << 20), listen(1 << 20)];
        let mut servers = connect_all(&lenders, Redundancy::Mirror);
        assert!(matches!(servers.place_group(), Placement::Placed(_)));
        // The second server is found full.
        assert!(matches!(servers.place_group(), Placement::NoRoom));
        servers.servers[1].full_until = Some(Instant::now() + Duration::from_secs(60));
        // From now on a call of the first server fails.
        let [first, _second] = lenders;
        drop(first);
        assert!(matches!(servers.place_group(), Placement::NoRoom), "no call");
        assert!(matches!(servers.place_member(&[], false), Placement::Failed(0, _)));
    }

    #[test]
    fn a_full_server_does_not_put_two_members_of_a_group_at_another_one() {
        let lenders: Vec<Lender> = (0..3).map(|_| listen(8 << 20)).collect();
        let mut servers = connect_all(&lenders, Redundancy::Coded { data: 2, parity: 1 });
        servers.lose(0);
        servers.servers[2].full_until = Some(Instant::now() + Duration::from_secs(60));
        assert!(matches!(servers.place_member(&[1], true), Placement::NoRoom));
        servers.lose(2);
        assert!(matches!(servers.place_member(&[1], true), Placement::Placed(Member { server: 1, .. })));
    }

    #[test]
    fn a_group_has_distinct_servers_as_long_as_there_are_enough() {
        let lenders: Vec<Lender> = (0..4).map(|_| listen(8 << 20)).collect();
        let mut servers = connect_all(&lenders, Redundancy::Coded { data: 2, parity: 2 });
        let mut group = || -> Vec<Option<usize>> {
            let Placement::Placed(members) = servers.place_group() else { panic!("no room") };
            let placed = members.iter().map(|member| member.map(|member| member.server)).collect();
            servers.free(members.into_iter().flatten().collect());
            placed
        };
        let mut first = group();
        first.sort_unstable();
        assert_eq!(first, [Some(0), Some(1), Some(2), Some(3)]);
        servers.lose(3);
        let Placement::Placed(three) = servers.place_group() else { panic!("no room") };
        assert_eq!((three.iter().flatten().count(), three[3]), (3, None));
        servers.lose(2);
        servers.lose(1);
        let Placement::Placed(one) = servers.place_group() else { panic!("no room") };
        let of_first = |member: &Option<Member<LentChunk>>| member.is_some_and(|member| member.server == 0);
        assert!(of_first(&one[0]) && of_first(&one[1]) && one[2..] == [None, None], "{one:?}");
        assert!(matches!(servers.place_member(&[0], false), Placement::NoRoom));
        assert!(matches!(servers.place_member(&[0], true), Placement::Placed(Member { server: 0, .. })));
        servers.lose(0);
        assert!(matches!(servers.place_group(), Placement::NoRoom), "no server is left");
    }
}
