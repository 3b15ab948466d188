//! The thread that executes the orders of the pool's owner.
//!
//! Orders allocate, register and free memory, which takes milliseconds and more. The threads of the
//! host serve calls of clients meanwhile.
//!
//! # Concurrency
//! One thread for each store, which ends when the sender of its orders is dropped. It takes the
//! locks of the service for moments.

use std::{
    io,
    sync::{
        Weak,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use rdmabox::PendingReply;

use super::service::Lending;
use crate::message::Order;

/// Orders with the replies that they get.
pub(super) type Orders = Sender<(Order, PendingReply)>;

/// The thread, before it starts.
#[derive(Debug)]
pub(super) struct Worker(Receiver<(Order, PendingReply)>);

impl Worker {
    pub(super) fn new() -> (Worker, Orders) {
        let (sender, receiver) = channel();
        (Worker(receiver), sender)
    }

    pub(super) fn start(self, lending: Weak<Lending>) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("pool-orders".into()).spawn(move || {
            for (order, reply) in self.0 {
                // A dropped reply tells the owner that the order was not executed.
                let Some(lending) = lending.upgrade() else { return };
                lending.execute(order, reply);
            }
        })
    }
}
