//! Growth: the same files and requests over more and more stores. No I/O, no locks, no clock.

use crate::{
    model::{Model, ModelError, Shape},
    nodes::{Most, PerSession, most},
    run::run,
};

/// A pool with a number of stores and clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Number of stores.
    pub stores: u16,
    /// Number of clients.
    pub clients: usize,
    /// Bytes of data per second of all clients together.
    pub rate: f64,
    /// The rate divided by that of all links, or of all clients if that is less.
    pub share: f64,
    /// Most bytes that a store sent, divided by the mean.
    pub sent_imbalance: f64,
    /// Most bytes that a store has, divided by the mean.
    pub used_imbalance: f64,
    /// The client with the most sessions.
    pub client: Most,
    /// The store with the most sessions.
    pub store: Most,
}

/// Simulates a model with a number of stores and clients.
///
/// # Errors
/// There is nothing to simulate.
pub fn at(model: &Model, stores: u16, clients: usize, each: PerSession) -> Result<Growth, ModelError> {
    let model = Model { shape: Shape { stores, clients, ..model.shape }, ..*model };
    let outcome = run(&model)?;
    let machines = clients.div_ceil(model.rates.clients_per_machine);
    let most_rate = (model.rates.link * f64::from(stores)).min(model.rates.client * machines as f64);
    let (client, store) = most(&outcome.reached, stores, each);
    Ok(Growth {
        stores,
        clients,
        rate: outcome.rate,
        share: outcome.rate / most_rate,
        sent_imbalance: outcome.sent_imbalance().unwrap_or(1.0),
        used_imbalance: outcome.used_imbalance().unwrap_or(1.0),
        client,
        store,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::SECOND,
        model::{Rates, Requests},
        placement::Placement,
    };

    /// Catches clients that are counted for a store that they do not reach, and a share of links
    /// that clients cannot fill.
    #[test]
    fn a_point_has_its_rate_and_its_sessions() {
        let rates = Rates { link: 100e6, burst: 0, client: 50e6, clients_per_machine: 1, overhead: 1000 };
        let requests = Requests { bytes: 1 << 20, depth: 2, is_random: false, together: false };
        let shape =
            Shape { stores: 1, clients: 1, file: 2 << 20, placement: Placement::Stripe, unit: 1 << 20 };
        let model = Model { rates, requests, shape, warm_up: SECOND / 10, end: SECOND, seed: 1 };
        let each = PerSession { queue_pairs: 4, store_threads: 1 };
        let growth = at(&model, 4, 3, each).unwrap();
        assert!((growth.rate / 150e6 - 1.0).abs() < 0.05 && growth.share > 0.95, "{growth:?}");
        // A file of two pieces is in two of the stores.
        assert_eq!((growth.client.sessions, growth.client.queue_pairs, growth.store.threads), (2, 8, 3));
        assert!((growth.used_imbalance - 2.0).abs() < 1e-9, "{growth:?}");
    }
}
