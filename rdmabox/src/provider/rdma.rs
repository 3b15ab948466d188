//! Opens an RDMA device, also in programs that were built without RDMA support.
//!
//! [`open`] returns a device if the program was built with the feature `ibverbs` and the machine
//! has a device. Otherwise it returns an error that names the missing part. So callers need no
//! conditional compilation.

use std::sync::Arc;

pub use super::rdma_options::{RdmaError, RdmaOptions};
use crate::verbs::Device;

/// Opens the device that the options select. A session or a host does so for an address of the
/// form `rdma:host:port`; programs that use queue pairs themselves call it.
///
/// ```
/// use rdmabox::{RdmaOptions, provider::rdma};
///
/// match rdma::open(&RdmaOptions::default()) {
///     Ok(device) => println!("{}", device.attr().name),
///     // The text names the missing part, and how to install it.
///     Err(e) => println!("{e}"),
/// }
/// ```
///
/// # Errors
/// A message for users that names the missing part and how to install it, or the existing devices
/// if the selected one does not exist.
pub fn open(options: &RdmaOptions) -> Result<Arc<dyn Device>, RdmaError> {
    #[cfg(feature = "ibverbs")]
    return super::ibverbs::IbvDevice::open(options).map(|device| device as Arc<dyn Device>);
    #[cfg(not(feature = "ibverbs"))]
    {
        let _ = options;
        Err(RdmaError::NotBuilt)
    }
}
