//! The client library: the API of the paper's Table I, with ownership in place of pointers.
//!
//! | paper | here |
//! |-|-|
//! | `connect` | [`Client::connect`] |
//! | `create_ns`, `join_ns`, `delete_ns` | [`Client::create`], [`Client::join`], [`Namespace::delete`] |
//! | `reserve`, `release` | [`Namespace::reserve`], [`Namespace::release`] |
//! | `alloc`, `free` | [`Namespace::alloc`], [`Region::free`] |
//! | `init` | [`Namespace::open`] |
//! | `map`, `unmap` | [`Region::map`], the drop of a [`Mapping`] |
//! | `read`, `write` | [`Mapping::read`], [`Mapping::write`] |
//!
//! # Concurrency
//! All types may be shared by threads, except for a [`Mapping`], which one thread uses at a time.

mod buffers;
mod connection;
mod handle;
mod mapping;
mod member;
mod namespace;
mod region;
mod update;
mod view;

pub use self::{
    connection::{ClientOptions, master_status},
    handle::Region,
    mapping::Mapping,
    member::Client,
    namespace::{AllocFlags, Namespace},
    update::Update,
};
