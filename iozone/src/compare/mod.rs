//! rfs beside everything else on one machine: the program `rfs-compare` behind `iozone/run --compare`.
//!
//! In every round all targets run at the same time, idle but for the one whose turn it is, so that what is compared is
//! measured seconds apart. A result is a ratio of medians over the rounds.
//!
//! * [`cli`]: the options; [`lineup`]: which targets that means; [`mod@column`]: what is measured of them;
//! * [`plan`]: the order of the turns and how long they take; [`measure`]: rounds of them; [`meter`]: taking one, with
//!   [`fio`] or an [`Engine`](crate::engine::Engine);
//! * [`ratios`]: medians and ratios of the rounds; [`requirements`]: how high they have to be;
//! * [`report`]: all of it as data; [`table`]: as text; [`charts`]: as pictures.
//!
//! `column`, `plan`, `ratios`, `requirements`, `table`, `charts` and the reading of what fio and `/proc` say are pure.

pub mod charts;
pub mod cli;
pub mod column;
pub mod fio;
pub mod lineup;
pub mod measure;
pub mod meter;
pub mod plan;
pub mod ratios;
pub mod report;
pub mod requirements;
pub mod table;
