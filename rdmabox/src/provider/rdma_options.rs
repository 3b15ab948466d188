//! Selection of an RDMA device, and the reasons why none is usable.
//!
//! # Concurrency
//! Plain values.

/// Selection of device, port and address. Fields that are `None` are chosen automatically; by
/// default all are. Its fields are set after [`Default::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// Kernel name of the device, such as `mlx5_0` or `rxe0`. `None` selects the first device with
    /// an active port.
    pub device: Option<String>,
    /// Port number, counted from 1. `None` selects the first active port.
    pub port: Option<u8>,
    /// Index in the port's GID table. `None` selects the GID of the address over which the peers
    /// connect. If there is none, it selects the first RoCE v2 GID over IPv4, then over IPv6, then
    /// any GID.
    pub gid_index: Option<u8>,
}

/// Reason why no RDMA device is usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// The program was built without RDMA support.
    #[error("RDMA is not available: this program was built without the feature `ibverbs`")]
    NotBuilt,
    /// The machine has no usable device or library.
    #[error("RDMA is not available: {0}")]
    NotThere(String),
    /// The selected device, port or GID does not exist or does not work.
    #[error("{0}")]
    NotUsable(String),
}
