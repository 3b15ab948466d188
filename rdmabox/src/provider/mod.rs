//! Providers: implementations of the [verbs](crate::verbs) model.

#[cfg(feature = "ibverbs")]
pub mod ibverbs;
pub mod rdma;
pub mod soft;
