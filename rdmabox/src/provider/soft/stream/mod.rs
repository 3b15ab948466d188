//! Stream sockets: TCP with or without TLS, and Unix sockets that pass descriptors.

mod congestion;
mod connected_process;
mod recv_buffer;
mod retransmission;
mod socket;

pub use self::congestion::congestion_control;
pub(crate) use self::congestion::replace_bbr;
pub use self::connected_process::ConnectedProcess;
pub(crate) use self::recv_buffer::RecvBuffer;
pub(crate) use self::retransmission::try_often;
pub(crate) use self::socket::Socket;
