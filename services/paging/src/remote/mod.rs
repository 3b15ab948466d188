//! The servers of a pager: sessions, chunks and page buffers.
//!
//! # Concurrency
//! The fault thread owns [`Servers`]. Sessions are shared with [`RemotePager::stats`].
//!
//! [`RemotePager::stats`]: crate::RemotePager::stats

mod lent_chunks;
mod servers;

use rdmabox::{Address, SessionOptions};

pub(crate) use servers::{ATTEMPTS, Placement, Servers, may_repeat, page_address};

use crate::{
    error::PagingError,
    lender::{LenderStatus, protocol},
};

/// Asks a lender for its state.
///
/// # Errors
/// [`PagingError::Connect`] and [`PagingError::NotALender`].
pub fn lender_status(address: &Address, options: &SessionOptions) -> Result<LenderStatus, PagingError> {
    let session = servers::connect(address, options)?;
    protocol::status(&session).map_err(|source| PagingError::NotALender { address: address.clone(), source })
}
