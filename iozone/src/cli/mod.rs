//! Command line options that the plans share. This module only parses; the plans check the values
//! against the machine.
//!
//! Each plan has a struct of its options, which includes [`Common`] and, if it mounts rfs as the
//! user asks, [`Switches`].

mod common;
mod kind;
mod switches;

use clap::ValueEnum;

pub use common::{Common, Output, Places};
pub use kind::{Kind, among};
pub use switches::Switches;

/// Returns the command line name of an option value.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Parses the options of a plan.
#[cfg(test)]
pub(crate) fn parse<O: clap::Args>(args: &[&str]) -> std::result::Result<O, clap::Error> {
    use clap::Parser;

    #[derive(Parser)]
    struct Plan<O: clap::Args> {
        #[command(flatten)]
        options: O,
    }
    Plan::<O>::try_parse_from([&["rfs-iozone"], args].concat()).map(|plan| plan.options)
}
