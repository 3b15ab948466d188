//! Providers: implementations of the [verbs](crate::verbs) model.

#[cfg(feature = "faults")]
pub mod fault;
#[cfg(feature = "ibverbs")]
pub mod ibverbs;
pub mod rdma;
mod rdma_options;
pub mod soft;
