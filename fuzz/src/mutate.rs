//! Inputs from seeds: pure, and always the same for the same number.

use std::ops::Range;

use fastrand::Rng;

/// No input is longer, in bytes.
pub const MAX_LEN: usize = 8192;
/// Mutations of one input, at most.
const MOST: usize = 6;
/// Longest run of bytes that a mutation adds or takes away.
const RUN: usize = 64;

/// Numbers on either side of which something changes.
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

/// What inputs are made of.
#[derive(Clone, Debug)]
pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    run: u64,
}

impl Mutator {
    /// From these seeds; `run` tells the inputs of one run from those of another.
    pub fn new(mut seeds: Vec<Vec<u8>>, run: u64) -> Mutator {
        if seeds.is_empty() {
            seeds.push(Vec::new());
        }
        Mutator { seeds, run }
    }

    /// Input `number` of the run: the first ones are the seeds themselves, one in sixteen of the others has nothing to do with them.
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
            for _ in 0..random.usize(1..=MOST) {
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
                let len = random.usize(..RUN);
                let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                out.splice(at..at, bytes);
            }
            10 => {
                let again = out[run(out, at, random)].to_vec();
                out.splice(at..at, again);
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
        // Insertions double it at worst.
        out.truncate(MAX_LEN);
    }
}

/// Some bytes from `at` on, as far as there are any.
fn run(bytes: &[u8], at: usize, random: &mut Rng) -> Range<usize> {
    at..(at + random.usize(1..=RUN)).min(bytes.len())
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
    fn the_seeds_come_first_and_a_number_says_all() {
        let mutator = Mutator::new(seeds(), 7);
        assert_eq!(inputs(&mutator, 0..3), seeds());
        assert_eq!(inputs(&mutator, 3..1000), inputs(&Mutator::new(seeds(), 7), 3..1000));
        assert_ne!(inputs(&mutator, 3..100), inputs(&Mutator::new(seeds(), 8), 3..100));
    }

    #[test]
    fn inputs_differ_and_none_is_too_long() {
        let mutator = Mutator::new(seeds(), 1);
        let made = inputs(&mutator, 3..20_003);
        assert!(made.iter().all(|input| input.len() <= MAX_LEN));
        assert!(made.iter().collect::<HashSet<_>>().len() > 12_000, "the empty seed has few changes");
        // What makes a parser go on: most of a message is as it was.
        let like = made.iter().filter(|input| input.starts_with(b"hello") || input.starts_with(&[0xaa; 8]));
        assert!(like.count() > 6000);
    }

    #[test]
    fn without_seeds_there_are_inputs_all_the_same() {
        let made = inputs(&Mutator::new(Vec::new(), 1), 0..1000);
        assert!(made.iter().any(|input| input.len() > 100));
    }
}
