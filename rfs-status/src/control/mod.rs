//! Control sockets: a running program answers a question about itself.
//!
//! A [`ControlSocket`] is a Unix socket of mode 600. A client writes a line with the name of its
//! question, and reads a JSON document up to the end of the stream. Descriptors may come with it.
//! The program answers root and its own user only, unless [`SocketPermissions`] say otherwise. A
//! data path has no part in this: the socket has a thread of its own.
//!
//! [`ask()`] is the client's side. It tells a program that is gone from one that hangs.

mod answer;
mod ask;
mod socket;

pub use answer::Answer;
pub use ask::{ASK_LIMIT, AskError, ask, ask_for_files};
pub use socket::{Asker, ControlError, ControlSocket, SocketPermissions};

/// The question for the status of a program.
pub const STATUS: &str = "status";
