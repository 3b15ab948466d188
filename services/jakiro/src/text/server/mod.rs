//! The sockets of the text protocol.
//!
//! One thread accepts connections and hands each to a worker. A worker serves its connections with
//! one epoll instance: see [`worker`].
//!
//! # Concurrency
//! The workers share the store, counters, and the room for buffers.

mod acceptor;
mod batch;
mod connection;
mod connections;
mod mailbox;
mod room;
mod server_state;
mod worker;

#[cfg(test)]
mod tests;

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::Arc,
    thread::{self, JoinHandle},
};

use self::{acceptor::Acceptor, mailbox::Mailbox, server_state::ServerState, worker::Worker};
use crate::store::Store;

/// How a text server listens.
#[derive(Clone, Debug)]
pub struct TextOptions {
    allow_anyone: bool,
    workers: usize,
    max_connections: usize,
}

/// Why a text server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextServerError {
    /// The address is not on this machine.
    #[error(
        "{0} is no loopback address: the text protocol has no keys, so every program that reaches \
         the address could read and change all items; choose a loopback address, or give \
         --text-allow-anyone"
    )]
    NotLoopback(String),
    /// The socket could not be made.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// A thread could not start.
    #[error("cannot start a thread of the text protocol: {0}")]
    Thread(io::Error),
}

/// A server of the text protocol, until it is dropped.
#[derive(Debug)]
pub struct TextServer {
    address: SocketAddr,
    shared: Arc<ServerState>,
    listener: Arc<TcpListener>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions { allow_anyone: false, workers: 1, max_connections: 1024 }
    }
}

impl TextOptions {
    /// Allows addresses that other machines reach.
    #[must_use]
    pub fn allow_anyone(mut self, allow: bool) -> TextOptions {
        self.allow_anyone = allow;
        self
    }

    /// Sets the number of threads that serve connections [default: 1].
    #[must_use]
    pub fn workers(mut self, workers: usize) -> TextOptions {
        self.workers = workers.max(1);
        self
    }

    /// Sets the largest number of connections [default: 1024].
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> TextOptions {
        self.max_connections = connections.max(1);
        self
    }
}

impl TextServer {
    /// Listens at `HOST:PORT`, and serves a store to every program that connects.
    ///
    /// # Errors
    /// [`TextServerError`]; nothing is left behind.
    pub fn listen(
        address: &str,
        options: &TextOptions,
        store: Arc<Store>,
    ) -> Result<TextServer, TextServerError> {
        let failed = |source| TextServerError::Listen { address: address.to_owned(), source };
        let all: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        if !options.allow_anyone && !all.iter().all(|address| address.ip().is_loopback()) {
            return Err(TextServerError::NotLoopback(address.to_owned()));
        }
        let listener = Arc::new(TcpListener::bind(&*all).map_err(failed)?);
        let bound = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(ServerState::new(store, options.workers, options.max_connections));
        let mut server = TextServer {
            address: bound,
            shared: Arc::clone(&shared),
            listener: Arc::clone(&listener),
            mailboxes: Vec::new(),
            threads: Vec::new(),
        };
        for _ in 0..options.workers {
            let mailbox = Arc::new(Mailbox::new().map_err(TextServerError::Thread)?);
            server.mailboxes.push(Arc::clone(&mailbox));
            let worker = Worker::new(Arc::clone(&shared), mailbox);
            server.start("jakiro-text", worker.map_err(TextServerError::Thread)?, Worker::run)?;
        }
        let acceptor = Acceptor { listener, shared, mailboxes: server.mailboxes.clone() };
        server.start("jakiro-accept", acceptor, Acceptor::run)?;
        Ok(server)
    }

    /// Returns the address, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn start<T: Send + 'static>(
        &mut self,
        name: &str,
        value: T,
        run: impl FnOnce(T) + Send + 'static,
    ) -> Result<(), TextServerError> {
        let thread = thread::Builder::new().name(name.into()).spawn(move || run(value));
        self.threads.push(thread.map_err(TextServerError::Thread)?);
        Ok(())
    }
}

impl Drop for TextServer {
    /// Closes all connections. Answers that clients have not received yet are lost.
    fn drop(&mut self) {
        self.shared.stop();
        if let Err(error) = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both) {
            log::error!("cannot shut the socket of the text protocol down: {error}");
        }
        self.mailboxes.iter().for_each(|mailbox| mailbox.wake());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of the text protocol has panicked");
            }
        }
    }
}
