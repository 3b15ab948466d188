//! Registered memory: buffers, the pool of preMRs, and the cache of registrations.
//!
//! The mappings below these objects are in `mapping`: [`Memory`] is one of them.

mod buffer;
mod calibrate;
mod caller_mr;
mod loan;
mod own_buf;
mod owned_op;
mod pre_mr;
mod registrations;
mod send_buf;
mod slice;
mod threshold;

pub use buffer::Buffer;
pub(crate) use calibrate::calibrate;
pub use caller_mr::CallerMr;
pub(crate) use loan::{Lent, Loan, LoanCount, Scope, scope};
pub(crate) use own_buf::OwnBuf;
pub use owned_op::OwnedOp;
pub(crate) use pre_mr::{PreMrBuf, PreMrPool};
pub(crate) use registrations::{RegistrationCache, RegistrationLimits};
pub use send_buf::{RecvBuf, SendBuf};
pub use slice::Slice;
pub use threshold::{PreMrThreshold, ThresholdError};

pub use crate::mapping::{Memory, MemoryBound, MemoryError, available_memory, is_lost, survive};
