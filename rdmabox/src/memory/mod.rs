//! Memory that devices and peers may access, and the buffers that the runtime builds from it.
//!
//! A peer can write to shared memory at any time, so such memory is never borrowed as a Rust
//! reference. [`Memory`] copies bytes and runs atomics through raw pointers.

mod buffer;
mod calibrate;
mod first_writes;
mod loan;
mod lost;
mod mapping;
#[cfg(not(loom))]
mod membarrier;
mod own_buf;
mod pre_mr;
mod reader_lock;
mod registrations;
mod reserve;
mod restricted;
mod threshold;
mod vault;

pub use buffer::{Buffer, RecvBuf, SendBuf};
pub use calibrate::{Measured, calibrate, measure, threshold_of};
pub(crate) use loan::{Lent, Loan, LoanCount, scope};
pub use lost::{is_lost, survive};
#[cfg(feature = "ibverbs")]
pub(crate) use mapping::Pin;
pub(crate) use mapping::copy;
pub use mapping::{Memory, MemoryError};
pub(crate) use own_buf::OwnBuf;
pub use pre_mr::{PreMrBuf, PreMrPool};
#[cfg(not(loom))]
pub(crate) use reader_lock::{ReaderGuard, ReaderLock};
pub use registrations::{RegistrationCache, RegistrationLimits};
pub use threshold::{PreMrThreshold, ThresholdError};
pub(crate) use vault::Hidden;
