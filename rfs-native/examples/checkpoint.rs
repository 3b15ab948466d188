//! Computes in steps, and saves its state after each. A run that is killed goes on where the last
//! complete checkpoint was.
//!
//! A checkpoint is written to another file and renamed, so a reader sees the previous one or the
//! next one, and nothing in between. Each run makes ten steps.
//!
//!     cargo run --release -p rfs-native --example checkpoint -- ADDRESS

use std::error::Error;

use rfs_native::{Dir, Mount, MountOptions};

const STEPS: u64 = 10;
const WORDS: usize = 1 << 18;

/// The state of the computation.
struct State {
    step: u64,
    words: Vec<u64>,
}

impl State {
    fn advance(&mut self) {
        self.step += 1;
        let step = self.step;
        self.words.iter_mut().enumerate().for_each(|(at, word)| *word += step * at as u64);
    }

    fn save(&self, dir: &Dir) -> Result<(), rfs_native::Error> {
        let bytes: Vec<u8> =
            std::iter::once(&self.step).chain(&self.words).flat_map(|word| word.to_le_bytes()).collect();
        dir.write("next", bytes)?;
        dir.rename("next", "state")
    }

    fn load(dir: &Dir) -> Result<State, rfs_native::Error> {
        if !dir.exists("state")? {
            return Ok(State { step: 0, words: vec![0; WORDS] });
        }
        let bytes = dir.read("state")?;
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let step = words.next().unwrap_or(0);
        Ok(State { step, words: words.collect() })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: checkpoint ADDRESS")?;
    let mount = Mount::connect(&address, &MountOptions::default())?;
    mount.make_dirs("checkpoints")?;
    let dir = mount.open_dir("checkpoints")?;
    let mut state = State::load(&dir)?;
    let begin = state.step;
    for _ in 0..STEPS {
        state.advance();
        state.save(&dir)?;
    }
    let loaded = State::load(&dir)?;
    let expected = |at: u64| at * (1..=loaded.step).sum::<u64>();
    let is_right = loaded.words.iter().enumerate().all(|(at, word)| *word == expected(at as u64));
    if !is_right || loaded.step != begin + STEPS {
        return Err("the checkpoint is not the state that was saved".into());
    }
    println!("steps {} to {} are saved", begin + 1, loaded.step);
    Ok(())
}
