//! A graph in local memory: the adjacency lists of all vertices, one after the other.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

/// A directed graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csr {
    /// Index of the first edge of each vertex, and the number of edges at the end.
    pub(super) offsets: Vec<u64>,
    /// Targets of the edges.
    pub(super) targets: Vec<u32>,
}

impl Csr {
    /// Makes a graph of `vertices` vertices. An edge with another vertex is left out.
    pub fn new(vertices: u32, edges: &[(u32, u32)]) -> Csr {
        let valid = || edges.iter().filter(|(from, to)| *from < vertices && *to < vertices);
        let mut offsets = vec![0; vertices as usize + 1];
        valid().for_each(|(from, _)| offsets[*from as usize + 1] += 1);
        for vertex in 0..vertices as usize {
            offsets[vertex + 1] += offsets[vertex];
        }
        let mut next = offsets.clone();
        let mut targets = vec![0; offsets[vertices as usize] as usize];
        for (from, to) in valid() {
            let at = &mut next[*from as usize];
            targets[*at as usize] = *to;
            *at += 1;
        }
        Csr { offsets, targets }
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u32 {
        self.offsets.len() as u32 - 1
    }

    /// Returns the number of edges.
    pub fn edges(&self) -> u64 {
        self.targets.len() as u64
    }

    /// Returns the targets of the edges of a vertex.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn neighbours(&self, vertex: u32) -> &[u32] {
        let at = vertex as usize;
        &self.targets[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }
}
