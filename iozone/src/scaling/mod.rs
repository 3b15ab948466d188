//! How rfs scales: the program `rfs-scaling` behind `iozone/run --scaling`.
//!
//! A series makes one thing larger: threads on one file, files, mounts of one server, the size of a file, the number of
//! files. At each of its points every target is started anew and does the same; a figure is the median of interleaved rounds.
//!
//! * [`cli`]: the options; [`plan`]: series, points, what they cost and what does not fit this machine;
//! * [`data`] and [`names`]: the load, in a child each; [`latency`]: what its requests took;
//! * [`measure`]: taking a point; [`run`]: rounds of them; [`lineup`]: the targets;
//! * [`report`]: all of it as data; [`check`]: where more load gives less; [`table`], [`charts`] and [`document`]: for readers.
//!
//! `plan`, `check`, `table`, `charts`, `document` and the medians of `report` are pure.

pub mod charts;
pub mod check;
pub mod cli;
pub mod data;
pub mod document;
pub mod latency;
pub mod lineup;
pub mod measure;
pub mod names;
pub mod plan;
pub mod report;
pub mod run;
pub mod table;
