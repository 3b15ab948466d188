//! The connections of a worker, and the events that it waits for.
//!
//! # Concurrency
//! Owned by one worker.

use std::{io, os::fd::OwnedFd, sync::Arc};

use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    io::Errno,
};
use slab::Slab;

use super::{connection::Connection, mailbox::Mailbox, server_state::ServerState};

/// The events of the mailbox. Connections have smaller numbers.
pub(super) const BELL: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Connections {
    epoll: OwnedFd,
    slab: Slab<Connection>,
    shared: Arc<ServerState>,
}

impl Connections {
    pub(super) fn new(mailbox: &Mailbox, shared: Arc<ServerState>) -> io::Result<Connections> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, mailbox, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Connections { epoll, slab: Slab::new(), shared })
    }

    /// Puts the events that there are in the place of `events`. Waits for the first if it `blocks`.
    pub(super) fn wait(&self, events: &mut Vec<Event>, blocks: bool) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(events), (!blocks).then_some(&now)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn get(&self, id: usize) -> Option<&Connection> {
        self.slab.get(id)
    }

    pub(super) fn get_mut(&mut self, id: usize) -> Option<&mut Connection> {
        self.slab.get_mut(id)
    }

    /// Adds a connection that the acceptor has admitted.
    pub(super) fn insert(&mut self, socket: OwnedFd) {
        let id = self.slab.insert(Connection::new(socket));
        let data = EventData::new_u64(id as u64);
        if let Err(error) = epoll::add(&self.epoll, &self.slab[id].socket, data, EventFlags::IN) {
            log::warn!("cannot wait for a connection of the text protocol: {error}");
            self.close(id);
        }
    }

    /// Closes a connection.
    pub(super) fn close(&mut self, id: usize) {
        if let Some(mut connection) = self.slab.try_remove(id) {
            connection.release(&self.shared.room);
            self.shared.leave();
        }
    }

    /// Waits for space for answers, or for input.
    pub(super) fn watch(&mut self, id: usize, waits_for_space: bool) {
        let Some(connection) = self.slab.get_mut(id) else { return };
        if connection.waits_for_space == waits_for_space {
            return;
        }
        connection.waits_for_space = waits_for_space;
        let flags = if waits_for_space { EventFlags::OUT } else { EventFlags::IN };
        let data = EventData::new_u64(id as u64);
        if let Err(error) = epoll::modify(&self.epoll, &connection.socket, data, flags) {
            log::warn!("cannot wait for a connection of the text protocol: {error}");
            self.close(id);
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        for mut connection in self.slab.drain() {
            connection.release(&self.shared.room);
            self.shared.leave();
        }
    }
}
