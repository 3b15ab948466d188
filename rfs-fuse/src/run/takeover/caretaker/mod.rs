//! The caretaker: a process that holds a mount while programs that serve it come and go.
//!
//! With `--takeover` the program that the user has started is the caretaker. It starts the serving
//! program, and holds the parts that must survive it: the FUSE devices, and the kept state of the
//! client. It does nothing else, so that it does not crash. When the serving program is killed or
//! crashes, the caretaker starts the next one, which continues ([`process`]). [`mod@upgrade`]
//! replaces a running program the same way.
//!
//! [`message`] has the messages between both, and [`link`] the serving program's end.
//!
//! # Concurrency
//! The caretaker has one thread, and one for each check of a program. No locks.

mod end;
mod link;
mod message;
mod process;
mod program;
mod upgrade;
mod zombie;

pub(in crate::run) use self::{
    link::{Kept, Link},
    message::HeldMount,
    process::run,
    program::format_if_asked,
    upgrade::{command_line, main as upgrade},
};

/// Environment variable of a program that a caretaker has started: its standard input is the
/// connection with the caretaker.
const STARTED: &str = "RFS_CARETAKER";
