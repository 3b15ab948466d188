//! The choice of an RDMA device, whether or not this program can use one.
//!
//! [`open`] gives a device where the program was built with the feature `ibverbs` and the machine has one, and says what
//! is missing everywhere else. Programs are the same on all machines.

use std::sync::Arc;

use crate::verbs::Device;

/// Which device, port and address to use. What is `None` is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RdmaOptions {
    /// The kernel's name of the device, such as `mlx5_0` or `rxe0`. `None`: the first one with an active port.
    pub device: Option<String>,
    /// Its port, counted from 1. `None`: the first active one.
    pub port: Option<u8>,
    /// The entry of the port's GID table that connections use. `None`: the one of the address over which the peers have found
    /// each other, else the first of RoCE v2 over IPv4, over IPv6, or any other.
    pub gid_index: Option<u8>,
}

/// Why there is no RDMA device to use.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
    /// The program was built without it.
    #[error("RDMA is not available: this program was built without the feature `ibverbs`")]
    NotBuilt,
    /// The machine has nothing that can be used.
    #[error("RDMA is not available: {0}")]
    NotThere(String),
    /// What the options ask for does not exist, or does not work.
    #[error("{0}")]
    NotUsable(String),
}

/// Opens the device that the options describe.
///
/// # Errors
/// A text for people: what is missing and how it can be had, or what the machine has instead of what was asked for.
pub fn open(options: &RdmaOptions) -> Result<Arc<dyn Device>, RdmaError> {
    #[cfg(feature = "ibverbs")]
    return super::ibverbs::IbvDevice::open(options).map(|device| device as Arc<dyn Device>);
    #[cfg(not(feature = "ibverbs"))]
    {
        let _ = options;
        Err(RdmaError::NotBuilt)
    }
}
