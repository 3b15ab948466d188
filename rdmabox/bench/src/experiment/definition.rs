//! An experiment: its options, its matrix, and the columns of its report.

use rdmabox::{Address, ProviderKind};

use super::card::{LENGTHS, ON_PROVIDER, QUICK, on_card};
use crate::{
    Error, Result,
    load::{OpKind, model::Model},
    report::{About, Beside, OtherProvider, Report, metric::Metric},
    sweep::{
        matrix::{Dimension, Matrix},
        settings::Settings,
    },
};

/// Options by name.
pub(super) type Options = &'static [(&'static str, &'static str)];

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The parameters that it varies and its subject.
    pub what: &'static str,
    /// The result of the paper.
    pub paper: &'static str,
    /// Options of all runs, unless the command line overrides them.
    pub(super) base: Options,
    /// Options of a quick run, in addition to `base`.
    pub(super) quick: Options,
    pub(super) dimensions: fn() -> Vec<Dimension>,
    pub(super) columns: &'static [Metric],
    pub(super) panels: &'static [Metric],
    pub(super) findings: fn(&Report) -> Vec<String>,
}

/// The loads of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loads {
    /// Those of a software provider or a device.
    OfProvider,
    /// Those of a modelled card.
    OfCard,
    /// Those of a modelled card, over a provider of this machine and without the card.
    OfCardOver(ProviderKind),
}

impl Experiment {
    /// Returns the matrix of the experiment, with its options overridden by those of the command
    /// line.
    pub fn matrix(&self, given: &Settings, quick: bool, connect: &[Address], loads: Loads) -> Result<Matrix> {
        let card = (loads != Loads::OfProvider).then(|| on_card(self.name)).flatten();
        let mut dimensions = card.map_or(self.dimensions, |card| card.dimensions)();
        let (own_base, own_quick) = match card {
            Some(card) => (card.base, QUICK),
            None => (self.base, self.quick),
        };
        let over_provider = matches!(loads, Loads::OfCardOver(_));
        let lengths = LENGTHS.into_iter().filter(|name| quick || over_provider || given.has(name));
        let lengths: Vec<&str> = lengths.collect();
        for value in dimensions.iter_mut().flat_map(|dimension| &mut dimension.values) {
            value.settings = lengths.iter().fold(value.settings.clone(), |all, name| all.without(name));
        }
        let varied =
            dimensions.iter().flat_map(|dimension| &dimension.values).flat_map(|v| v.settings.names());
        if let Some(name) = varied.into_iter().find(|name| given.has(name)) {
            return Err(Error::usage(format!("{} varies {name} itself: leave --{name} out", self.name)));
        }
        // The experiments are about work requests, so every request is posted.
        let posted = std::iter::once(("direct", "off"));
        let mut base = Settings::from_pairs(posted.chain(own_base.iter().copied()));
        if base.has("ops") && given.has("duration") {
            return Err(Error::usage(format!("{} counts: give --ops instead of --duration", self.name)));
        }
        let quick = Settings::from_pairs(if quick { own_quick } else { &[] }.iter().copied());
        let mut over = Settings::default();
        if let Loads::OfCardOver(provider) = loads {
            // The program's work is a time of the card.
            base = base.without("think").with(&Settings::from_pairs(ON_PROVIDER.iter().copied()));
            over = Settings::from_pairs([("provider", provider.to_string().as_str())]);
        }
        Matrix::new(OpKind::Write, &base.with(&quick).with(given).with(&over), &dimensions, connect)
    }

    /// Returns the title of the report.
    pub fn title(&self, matrix: &Matrix, model: Option<&Model>) -> String {
        match model {
            Some(model) => format!("{} on the modelled card {}", self.name, model.parameters().name()),
            None => format!("{} on {}", self.name, matrix.carriers()),
        }
    }

    /// Adds the comment, and selects columns and panels.
    pub fn comment(&self, report: &mut Report) {
        let card = report.model.as_ref().and_then(|_| on_card(self.name));
        report.columns = card.map_or(self.columns, |card| card.columns).into();
        report.panels = card.map_or(self.panels, |card| card.panels).into();
        let (measured, rows) = match card {
            Some(card) => (Vec::new(), (card.rows)(report)),
            None => ((self.findings)(report), Vec::new()),
        };
        report.experiment = Some(About {
            name: self.name.into(),
            what: self.what.into(),
            paper: self.paper.split_whitespace().collect::<Vec<_>>().join(" "),
            measured,
            rows,
            beside: None,
        });
    }

    /// Adds the values of `other`, which has the loads of the card over a provider.
    pub fn add_beside(&self, report: &mut Report, other: &Report, provider: ProviderKind) {
        let (Some(about), Some(card)) = (&mut report.experiment, on_card(self.name)) else { return };
        about.beside = Some(OtherProvider { name: provider.to_string(), results: other.results.clone() });
        for (row, other) in about.rows.iter_mut().zip((card.rows)(other)) {
            row.beside = Some(Beside { value: other.model, shape: other.shape });
        }
    }
}
