//! Runs the machines of operations against each other, and checks the histories.
//!
//! [`random`] interleaves single steps of memory at random, kills and stops clients, and delays
//! their steps. [`search`] visits every interleaving of a few operations. Both give their histories
//! to the linearizability checker of [`history`].

mod history;
mod operation;
mod random;
mod search;
mod world;
