#![doc = include_str!("../README.md")]

mod account;
mod client;
mod ids;
mod message;
mod owner;
mod round_robin;
mod store;
pub mod stripe;
mod ticket;
pub mod wire;

pub use account::{Account, Shortage};
pub use client::{Link, LinkError, Piece, Stores, TransferError, queue_pairs, read, read_parts, write};
pub use ids::{ChunkId, ClientId, Incarnation, StoreId};
pub use message::{Introduction, Order, OrderError, Outcome, StoreAnswer, StoreReport, StoreRequest};
pub use owner::{OwnedStore, OwnerError};
pub use round_robin::turns;
pub use store::{Store, StoreError, StoreOptions};
pub use ticket::Ticket;
