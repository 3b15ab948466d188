//! A property test of started requests: overlapping writes take effect in the order of their start,
//! however they are waited for.

use futures::executor::block_on;
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use rdmabox::{BatchMode, RemoteAddr, Session, Transfer};

use crate::support::{Fixture, at, base, on_each_provider, pattern, split};

/// Steps of the property test.
#[derive(Clone, Debug)]
enum Step {
    Start { offset: usize, len: usize },
    Write { offset: usize, len: usize },
    Read { offset: usize, len: usize, front_door: u8 },
    WaitFor(usize),
}

const AREA: usize = 24_000;

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..AREA, prop_oneof![0..64usize, 1..9000usize]);
    prop_oneof![
        6 => range().prop_map(|(offset, len)| Step::Start { offset, len: len.min(AREA - offset) }),
        1 => range().prop_map(|(offset, len)| Step::Write { offset, len: len.min(AREA - offset) }),
        1 => (range(), 0..3u8).prop_map(|((offset, len), front_door)| {
            Step::Read { offset, len: len.min(AREA - offset), front_door }
        }),
        2 => any::<usize>().prop_map(Step::WaitFor),
    ]
}

fn wait_for(transfer: Transfer<Vec<u8>>, how: usize) -> Result<(), TestCaseError> {
    let outcome = match how % 2 {
        0 => transfer.wait(),
        _ => block_on(transfer),
    };
    prop_assert_eq!(split(outcome).0, Ok(()));
    Ok(())
}

fn run(session: &Session, f: &Fixture, base: RemoteAddr, steps: &[Step]) -> Result<(), TestCaseError> {
    session.write(base, &vec![0; AREA]).unwrap();
    let mut model = vec![0u8; AREA];
    let mut outstanding: Vec<Transfer<Vec<u8>>> = Vec::new();
    for (seed, step) in steps.iter().enumerate() {
        match *step {
            Step::Start { offset, len } => {
                let data = pattern(len, seed + 1);
                model[offset..offset + len].copy_from_slice(&data);
                outstanding.push(session.start_write(at(base, offset), data));
            }
            Step::Write { offset, len } => {
                let data = pattern(len, seed + 1);
                model[offset..offset + len].copy_from_slice(&data);
                prop_assert_eq!(session.write(at(base, offset), &data), Ok(()));
            }
            Step::WaitFor(which) if !outstanding.is_empty() => {
                let transfer = outstanding.remove(which % outstanding.len());
                wait_for(transfer, which)?;
            }
            Step::WaitFor(_) => {}
            Step::Read { offset, len, front_door } => {
                for transfer in outstanding.drain(..) {
                    wait_for(transfer, seed)?;
                }
                let buf = vec![0; len];
                let (result, found) = match front_door {
                    0 => split(session.start_read(at(base, offset), buf).wait()),
                    1 => split(block_on(session.start_read(at(base, offset), buf))),
                    _ => {
                        let mut buf = buf;
                        (session.read(at(base, offset), &mut buf), buf)
                    }
                };
                prop_assert_eq!(result, Ok(()));
                prop_assert!(found == model[offset..offset + len], "read of {}+{}", offset, len);
            }
        }
    }
    for transfer in outstanding.into_iter().rev() {
        wait_for(transfer, steps.len())?;
    }
    let mut found = vec![0; AREA];
    f.memory.read(0, &mut found);
    prop_assert!(found == model, "at the end");
    prop_assert_eq!(session.in_flight().0, 0);
    Ok(())
}

#[test]
fn overlapping_started_writes_take_effect_in_the_order_of_their_start() {
    on_each_provider(|mut f| {
        for &batch in BatchMode::ALL {
            for queue_pairs in [1, 4] {
                f.options.batch = batch;
                f.options.queue_pairs = queue_pairs;
                f.options.window_bytes = 16 * 1024;
                let session = f.connect();
                let base = base(&session);
                let config = Config {
                    cases: 24,
                    max_shrink_iters: 200,
                    failure_persistence: None,
                    ..Config::default()
                };
                let steps = prop::collection::vec(step(), 1..60);
                if let Err(e) = TestRunner::new(config).run(&steps, |steps| run(&session, &f, base, &steps)) {
                    panic!("{batch}, {queue_pairs} queue pairs: {e}");
                }
            }
        }
    });
}
