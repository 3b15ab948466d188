//! A modelled network card (feature `model`), for experiments and tests without hardware.
//!
//! Bytes move through another device, normally the software device. Completions wait until a model
//! of a card says that they are there. All model times are multiplied by a dilation factor, so
//! that many threads on few processors see the card and not the host. Posting, copying,
//! registering and polling take the calling thread their modelled time.
//!
//! `card` is the model: pure logic. `parameters` reads its constants. `clock` converts between
//! model time and the host's time. `modelled_card` is a card that sessions share, and `device`,
//! `qp` and `cq` wrap the objects of another device. The book's page "The modelled card" has
//! parts, equations and limits.

mod card;
mod clock;
mod cq;
mod device;
mod line;
mod modelled_card;
mod parameters;
mod qp;
mod send_queue;

pub use self::{
    card::CardCounters,
    clock::Timing,
    device::ModelDevice,
    modelled_card::ModelledCard,
    parameters::{Basis, CardParameters, Constant, ParameterError},
};
