//! Online exploration: one vertex at a time, as an algorithm asks for it.
//!
//! # Concurrency
//! One thread uses an explorer at a time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use super::layout::{EDGE, GraphStore, VERTEX, targets, word};
use crate::error::Error;

/// Reads vertices and edges of a graph.
#[derive(Debug)]
pub struct Explorer {
    graph: GraphStore,
    explored: u64,
}

/// A vertex with the targets of its edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vertex {
    /// Number of the vertex.
    pub number: u32,
    /// Targets of its edges.
    pub neighbours: Vec<u32>,
}

/// A shortest path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Sum of the weights of its edges.
    pub length: u64,
    /// Its vertices, from the first to the last.
    pub vertices: Vec<u32>,
}

impl Explorer {
    /// Makes an explorer of a graph.
    pub fn new(graph: GraphStore) -> Explorer {
        Explorer { graph, explored: 0 }
    }

    /// Returns the number of vertices and edges that were read.
    pub fn explored(&self) -> u64 {
        self.explored
    }

    /// Maps and reads a vertex, then its edges. Both are unmapped at the end.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if there is no such vertex, and [`Error::Transfer`].
    pub fn vertex(&mut self, number: u32) -> Result<Vertex, Error> {
        let at = u64::from(number) * VERTEX;
        let mut place = self.graph.vertices.map(at..at + VERTEX)?;
        let place = place.read(0..VERTEX)?;
        let (first, degree) = (word(place), word(&place[8..]));
        self.explored += 1 + degree;
        if degree == 0 {
            return Ok(Vertex { number, neighbours: Vec::new() });
        }
        let start = first.saturating_mul(EDGE);
        let end = first.saturating_add(degree).saturating_mul(EDGE);
        let mut edges = self.graph.edges.map(start..end)?;
        let len = edges.len();
        Ok(Vertex { number, neighbours: targets(edges.read(0..len)?).collect() })
    }

    /// Finds a shortest path by Dijkstra's algorithm. `None` if there is no path.
    ///
    /// # Errors
    /// As for [`vertex`](Self::vertex).
    pub fn shortest_path(
        &mut self,
        from: u32,
        to: u32,
        weight: impl Fn(u32, u32) -> u64,
    ) -> Result<Option<Path>, Error> {
        let mut found: HashMap<u32, (u64, u32)> = HashMap::from([(from, (0, from))]);
        let mut next = BinaryHeap::from([Reverse((0, from))]);
        while let Some(Reverse((length, number))) = next.pop() {
            if number == to {
                let mut vertices = vec![to];
                while let Some((_, before)) = vertices.last().and_then(|last| found.get(last)) {
                    if Some(before) == vertices.last() {
                        break;
                    }
                    vertices.push(*before);
                }
                vertices.reverse();
                return Ok(Some(Path { length, vertices }));
            }
            if found.get(&number).is_some_and(|(best, _)| *best < length) {
                continue;
            }
            for neighbour in self.vertex(number)?.neighbours {
                let longer = length.saturating_add(weight(number, neighbour));
                if found.get(&neighbour).is_none_or(|(best, _)| longer < *best) {
                    found.insert(neighbour, (longer, number));
                    next.push(Reverse((longer, neighbour)));
                }
            }
        }
        Ok(None)
    }
}
