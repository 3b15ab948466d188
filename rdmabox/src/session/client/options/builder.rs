//! A builder of sessions, with a method for each option.
//!
//! # Concurrency
//! Plain values.

use std::{sync::Arc, time::Duration};

use super::{CallsBy, SessionOptions};
use crate::{
    admission::{AdmissionPolicy, WindowScope},
    auth::Key,
    batch::BatchMode,
    memory::PreMrThreshold,
    polling::PollingMode,
    provider::rdma::RdmaOptions,
    rpc::StartedReply,
    runtime::trace::Tracer,
    session::{
        address::{Address, ProviderKind},
        client::session::Session,
        error::ConnectError,
    },
    tls::TlsClient,
};

/// Builds a [`Session`] ([`Session::builder`]). Each method sets the option of its name.
///
/// ```
/// use std::time::Duration;
/// use rdmabox::{MemoryServer, Session};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 4096)?;
/// let session = Session::builder()
///     .queue_pairs(2)
///     .operation_timeout(Duration::from_secs(3))
///     .connect(&host.addresses()[0])?;
/// assert_eq!(session.options().queue_pairs, 2);
///
/// let invalid = Session::builder().queue_pairs(0).connect(&host.addresses()[0]);
/// assert_eq!(invalid.unwrap_err().to_string(), "queue_pairs = 0: choose 1 to 16");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a session begins with connect"]
pub struct SessionBuilder {
    options: SessionOptions,
}

/// Defines a method for each option. An option that is off by default takes a value or an
/// `Option`. A policy of admission takes a value only, so that `Arc<T>` converts to a trait object.
macro_rules! setters {
    ($($(#[$attribute:meta])* $option:ident: $value:ty $(=> $wrap:expr)?,)*) => {
        $(
            $(#[$attribute])*
            #[doc = concat!("Sets [`", stringify!($option), "`](SessionOptions::", stringify!($option), ").")]
            pub fn $option(mut self, $option: $value) -> SessionBuilder {
                self.options.$option = setters!(@value $option $($wrap)?);
                self
            }
        )*
    };
    (@value $option:ident $wrap:expr) => { $wrap($option) };
    (@value $option:ident) => { $option };
}

impl SessionBuilder {
    setters! {
        provider: impl Into<Option<ProviderKind>> => Into::into,
        rdma: RdmaOptions,
        key: impl Into<Option<Key>> => Into::into,
        tls: impl Into<Option<TlsClient>> => Into::into,
        queue_pairs: usize,
        window_bytes: u64,
        window_scope: WindowScope,
        max_merge_bytes: u64,
        admission: Arc<dyn AdmissionPolicy> => Some,
        batch: BatchMode,
        pre_mr_threshold: PreMrThreshold,
        polling: PollingMode,
        max_retry: impl Into<Option<u32>> => Into::into,
        engine_look: Duration,
        signal_interval: u32,
        max_inline: u32,
        direct: bool,
        started_reply: impl Into<Option<StartedReply>> => Into::into,
        calls: CallsBy,
        fetch_size: usize,
        adapt_fetch_size: bool,
        operation_timeout: Duration,
        connect_timeout: Duration,
        trace: impl Into<Option<Arc<Tracer>>> => Into::into,
        #[cfg(feature = "faults")]
        faults: impl Into<Option<Arc<crate::provider::fault::Plan>>> => Into::into,
        #[cfg(feature = "model")]
        card: impl Into<Option<Arc<crate::provider::model::ModelledCard>>> => Into::into,
        #[cfg(feature = "model")]
        standing_pollers: bool,
    }

    /// Replaces all options.
    pub fn options(self, options: SessionOptions) -> SessionBuilder {
        SessionBuilder { options }
    }

    /// Returns the options, for several sessions or to keep them.
    #[must_use]
    pub fn into_options(self) -> SessionOptions {
        self.options
    }

    /// Connects to a host, as [`Session::connect`] does.
    ///
    /// # Errors
    /// After an error nothing is left behind, and a retry is safe.
    /// [`ConnectError::InvalidOption`] names an option with an invalid value.
    pub fn connect(&self, address: &Address) -> Result<Arc<Session>, ConnectError> {
        Session::connect(address, &self.options)
    }
}
