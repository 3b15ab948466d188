//! Derives inputs from seeds, reproducibly: a run and a number determine the input. No I/O, no
//! locks, no clock.

use std::ops::Range;

use fastrand::Rng;

/// Maximum length of an input, in bytes.
pub const MAX_LEN: usize = 8192;
/// Maximum number of mutations of one input.
const MAX_MUTATIONS: usize = 6;
/// Maximum number of bytes that one mutation inserts, removes or copies from the input.
const MAX_RUN: usize = 64;

/// Boundary values at which parsers often change behaviour.
const EDGES: [u64; 18] = [
    0,
    1,
    7,
    8,
    16,
    127,
    128,
    255,
    4095,
    4096,
    65_535,
    65_536,
    1 << 24,
    i32::MAX as u64,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Generates the inputs of a run.
#[derive(Clone, Debug)]
pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    run: u64,
}

impl Mutator {
    /// Returns a mutator for these seeds. `run` selects a sequence of inputs.
    pub fn new(mut seeds: Vec<Vec<u8>>, run: u64) -> Mutator {
        if seeds.is_empty() {
            seeds.push(Vec::new());
        }
        Mutator { seeds, run }
    }

    /// Writes input `number` of the run to `out`. The first inputs are the seeds. Of the others,
    /// one in sixteen is random bytes and the rest are mutated seeds.
    pub fn input(&self, number: u64, out: &mut Vec<u8>) {
        out.clear();
        let mut random = Rng::with_seed(self.run ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if let Some(seed) = usize::try_from(number).ok().and_then(|at| self.seeds.get(at)) {
            out.extend_from_slice(seed);
        } else if random.u8(..16) == 0 {
            let len = random.usize(..=300);
            out.extend((0..len).map(|_| random.u8(..)));
        } else {
            out.extend_from_slice(self.seed(&mut random));
            for _ in 0..random.usize(1..=MAX_MUTATIONS) {
                self.mutate(out, &mut random);
            }
        }
        out.truncate(MAX_LEN);
    }

    fn seed(&self, random: &mut Rng) -> &[u8] {
        &self.seeds[random.usize(..self.seeds.len())]
    }

    fn mutate(&self, out: &mut Vec<u8>, random: &mut Rng) {
        let at = random.usize(..=out.len());
        match random.u8(..14) {
            0..3 => change(out, at, |byte| byte ^ 1 << random.u8(..8)),
            3 => change(out, at, |_| random.u8(..)),
            4 => change(out, at, |_| EDGES[random.usize(..EDGES.len())] as u8),
            5 => change(out, at, |byte| byte.wrapping_add(random.u8(..9)).wrapping_sub(4)),
            6 => {
                let edge = EDGES[random.usize(..EDGES.len())].wrapping_add(random.u64(..3)).wrapping_sub(1);
                let bytes = edge.to_le_bytes();
                overwrite(out, at, &bytes[..1 << random.usize(1..4)]);
            }
            7 => out.truncate(at),
            8 => {
                drop(out.drain(run(out, at, random)));
            }
            9 => {
                let len = random.usize(..MAX_RUN);
                let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                out.splice(at..at, bytes);
            }
            10 => {
                let copy = out[run(out, at, random)].to_vec();
                out.splice(at..at, copy);
            }
            11 => {
                let other = self.seed(random);
                let from = random.usize(..=other.len());
                out.truncate(at);
                out.extend_from_slice(&other[from..]);
            }
            12 => {
                let other = self.seed(random);
                out.splice(at..at, other.iter().copied());
            }
            _ => {
                let moved = out[run(out, at, random)].to_vec();
                let to = random.usize(..=out.len());
                overwrite(out, to, &moved);
            }
        }
        // Inserting a seed may have made the input too long.
        out.truncate(MAX_LEN);
    }
}

/// Returns a random range of at most `MAX_RUN` bytes that begins at `at`.
fn run(bytes: &[u8], at: usize, random: &mut Rng) -> Range<usize> {
    at..(at + random.usize(1..=MAX_RUN)).min(bytes.len())
}

fn change(bytes: &mut [u8], at: usize, to: impl FnOnce(u8) -> u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = to(*byte);
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let room = &mut bytes[at..];
    let len = room.len().min(with.len());
    room[..len].copy_from_slice(&with[..len]);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn inputs(mutator: &Mutator, numbers: Range<u64>) -> Vec<Vec<u8>> {
        let input = |number| {
            let mut out = vec![1, 2, 3];
            mutator.input(number, &mut out);
            out
        };
        numbers.map(input).collect()
    }

    fn seeds() -> Vec<Vec<u8>> {
        vec![b"hello, world".to_vec(), vec![0xaa; 4000], Vec::new()]
    }

    #[test]
    fn the_seeds_come_first_and_the_number_determines_the_input() {
        let mutator = Mutator::new(seeds(), 7);
        assert_eq!(inputs(&mutator, 0..3), seeds());
        assert_eq!(inputs(&mutator, 3..1000), inputs(&Mutator::new(seeds(), 7), 3..1000));
        assert_ne!(inputs(&mutator, 3..100), inputs(&Mutator::new(seeds(), 8), 3..100));
    }

    #[test]
    fn inputs_differ_and_are_not_too_long() {
        let mutator = Mutator::new(seeds(), 1);
        let made = inputs(&mutator, 3..20_003);
        assert!(made.iter().all(|input| input.len() <= MAX_LEN));
        assert!(made.iter().collect::<HashSet<_>>().len() > 12_000, "the empty seed has few changes");
        // Inputs pass the first checks of a parser only if most of a message is unchanged.
        let like = made.iter().filter(|input| input.starts_with(b"hello") || input.starts_with(&[0xaa; 8]));
        assert!(like.count() > 6000);
    }

    #[test]
    fn there_are_inputs_without_seeds() {
        let made = inputs(&Mutator::new(Vec::new(), 1), 0..1000);
        assert!(made.iter().any(|input| input.len() > 100));
    }
}
