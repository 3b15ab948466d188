//! Providers: implementations of the [verbs](crate::verbs) model. [`soft::SoftDevice`] is the
//! device of TCP and shared memory, and [`rdma::open`] opens an RDMA device. Sessions and hosts
//! choose one by the address.

#[cfg(feature = "faults")]
pub mod fault;
#[cfg(feature = "ibverbs")]
pub mod ibverbs;
#[cfg(feature = "model")]
pub mod model;
pub mod rdma;
mod rdma_options;
pub mod soft;
