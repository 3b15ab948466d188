//! The targets. Each is made for a point, with its number of mounts and a server of the required
//! size.

use super::{
    cli::{Options, Provider},
    plan::{Point, Series},
};
use crate::{
    Result,
    cli::Switches,
    size::{self, GIB, MIB},
    target::{self, Rfs, Setup, Target, Tmpfs},
};

/// Makes targets for points.
pub trait Lineup {
    /// Returns the number of targets.
    fn len(&self) -> usize;

    /// Returns true if there are no targets.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the target with this index for a point.
    fn target(&self, index: usize, point: Point) -> Result<Box<dyn Target>>;
}

/// Targets of rfs over some providers, and its ceilings.
#[derive(Debug)]
pub struct Mounts {
    providers: Vec<Provider>,
    setup: Setup,
    /// Bytes of all files of a point.
    bytes: u64,
}

impl Mounts {
    /// Selects the targets of the options, without duplicates. Servers prefault all memory.
    pub fn new(options: &Options) -> Result<Self> {
        let mut providers: Vec<Provider> = Vec::new();
        for provider in &options.providers {
            if !providers.contains(provider) {
                providers.push(*provider);
            }
        }
        let switches = Switches { prefault: true, ..options.switches.clone() };
        let setup = Setup { switches, ..Setup::at(&options.places)? };
        Ok(Self { providers, setup, bytes: options.extent().bytes })
    }
}

impl Lineup for Mounts {
    fn len(&self) -> usize {
        self.providers.len()
    }

    fn target(&self, index: usize, point: Point) -> Result<Box<dyn Target>> {
        let shape = point.shape(self.bytes);
        let all = shape.bytes * shape.files * shape.mounts;
        let provider = match self.providers[index] {
            Provider::Shm => target::Provider::Shm,
            Provider::Tcp => target::Provider::Tcp,
            Provider::Rdma => target::Provider::Rdma,
            Provider::Null => target::Provider::Null,
            Provider::Tmpfs => return Ok(Box::new(Tmpfs::new(all, self.setup.tmpfs_dir.clone()))),
        };
        let (server_memory, inodes) = match point.series {
            Series::Count => (GIB / 2, Some(point.load + 1024)),
            // Each mount and each thread reserves space.
            _ => {
                (size::server_memory(all, 1) + (shape.mounts + shape.threads * shape.files) * 32 * MIB, None)
            }
        };
        let mounts = u32::try_from(shape.mounts).unwrap_or(u32::MAX);
        let setup = Setup { server_memory, inodes, mounts, ..self.setup.clone() };
        Ok(Box::new(Rfs::new(provider, setup)?))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::scaling::cli::Cli;

    #[test]
    fn targets_are_there_once_each_in_the_order_given() {
        let cli = Cli::try_parse_from(["x", "--providers=null,shm,null,tmpfs", "--bin-dir=/bin"]).unwrap();
        let lineup = Mounts::new(&cli.options).unwrap();
        let point = Point { series: Series::Mounts, load: 4 };
        let names: Vec<_> =
            (0..lineup.len()).map(|index| lineup.target(index, point).unwrap().name().to_owned()).collect();
        assert_eq!(names, ["null", "shm", "tmpfs"]);
        assert!(!lineup.is_empty());
    }
}
