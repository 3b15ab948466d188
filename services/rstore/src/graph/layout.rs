//! The form of a graph in RStore, and its import.
//!
//! The namespace `NAME/vertices` has an array of vertices of 16 bytes: index of the first edge, and
//! number of edges. The namespace `NAME/edges` has an array of targets of 4 bytes.
//!
//! # Concurrency
//! Any thread. No locks.

use super::csr::Csr;
use crate::{
    client::{AllocFlags, Client, Mapping, Region},
    error::Error,
};

/// Length of a vertex in bytes.
pub(super) const VERTEX: u64 = 16;
/// Length of an edge in bytes.
pub(super) const EDGE: u64 = 4;

/// A graph in RStore.
#[derive(Clone, Debug)]
pub struct GraphStore {
    pub(super) name: String,
    pub(super) vertices: Region,
    pub(super) edges: Region,
    pub(super) count: u32,
}

/// Encodes and decodes little-endian words.
pub(super) fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

pub(super) fn targets(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

impl GraphStore {
    /// Writes a graph to new namespaces.
    ///
    /// # Errors
    /// As [`Error`] says. Namespaces of the graph may be left.
    pub fn import(client: &Client, name: &str, graph: &Csr) -> Result<GraphStore, Error> {
        let make = |kind: &str, bytes: u64| -> Result<Mapping, Error> {
            let namespace = client.create(&format!("{name}/{kind}"))?;
            namespace.alloc_reserved(bytes, AllocFlags::InPlace)?.map_all()
        };
        let count = graph.vertices();
        let mut vertices = make("vertices", u64::from(count) * VERTEX)?;
        for (vertex, place) in vertices.local_mut().as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (first, degree) = (graph.offsets[vertex], graph.neighbours(vertex as u32).len() as u64);
            place[..8].copy_from_slice(&first.to_le_bytes());
            place[8..].copy_from_slice(&degree.to_le_bytes());
        }
        vertices.write(0..vertices.len())?;
        // A graph without edges has a region of one unused edge.
        let mut edges = make("edges", (graph.edges() * EDGE).max(EDGE))?;
        for (place, target) in edges.local_mut().as_chunks_mut().0.iter_mut().zip(&graph.targets) {
            *place = target.to_le_bytes();
        }
        edges.write(0..edges.len())?;
        let (vertices, edges) = (vertices.region().clone(), edges.region().clone());
        Ok(GraphStore { name: name.to_owned(), vertices, edges, count })
    }

    /// Opens a graph that another client has imported.
    ///
    /// # Errors
    /// As [`Error`] says. A retry is safe.
    pub fn open(client: &Client, name: &str) -> Result<GraphStore, Error> {
        let open = |kind: &str| {
            let namespace = client.join(&format!("{name}/{kind}"))?;
            namespace.open(namespace.first_address(), 1)
        };
        let (vertices, edges) = (open("vertices")?, open("edges")?);
        let count = (vertices.len() / VERTEX) as u32;
        Ok(GraphStore { name: name.to_owned(), vertices, edges, count })
    }

    /// Deletes the graph.
    ///
    /// # Errors
    /// [`Refusal::NamespaceInUse`](crate::Refusal::NamespaceInUse) if others use it.
    pub fn delete(self, client: &Client) -> Result<(), Error> {
        let GraphStore { name, vertices, edges, .. } = self;
        drop((vertices, edges));
        client.join(&format!("{name}/vertices"))?.delete()?;
        client.join(&format!("{name}/edges"))?.delete()
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u32 {
        self.count
    }
}
