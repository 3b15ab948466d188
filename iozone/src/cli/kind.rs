//! The kinds of targets that options select.

use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

/// A kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// rfs over shared memory.
    Shm,
    /// rfs over TCP on loopback.
    Tcp,
    /// rfs over RDMA, on a device of this machine.
    Rdma,
    /// A FUSE file system that copies to and from its own memory: the ceiling for FUSE.
    Null,
    /// A directory in memory without FUSE: the ceiling of the machine. All its mounts are this
    /// directory.
    Tmpfs,
    /// GlusterFS with one brick on a tmpfs, on loopback.
    Glusterfs,
    /// MooseFS with one chunk server on a tmpfs, on loopback.
    Moosefs,
    /// sshfs with a directory on a tmpfs, on loopback.
    Sshfs,
    /// Without rfs: only the other targets.
    None,
}

/// Returns a parser that accepts some kinds only.
pub fn among<const N: usize>(kinds: [Kind; N]) -> impl TypedValueParser<Value = Kind> {
    let named = kinds.map(|kind| (kind.to_possible_value(), kind)).into_iter();
    let named: Vec<_> = named.filter_map(|(value, kind)| Some((value?, kind))).collect();
    let values: Vec<_> = named.iter().map(|(value, _)| value.clone()).collect();
    PossibleValuesParser::new(values).try_map(move |name| {
        let kind = named.iter().find(|(value, _)| value.get_name() == name).map(|(_, kind)| *kind);
        kind.ok_or("no such target")
    })
}
