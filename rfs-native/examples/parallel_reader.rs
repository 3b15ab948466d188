//! Writes a file, and sums its bytes with several threads, each with its own part.
//!
//!     cargo run --release -p rfs-native --example parallel_reader -- ADDRESS [MEGABYTES]

use std::{error::Error, thread, time::Instant};

use rfs_native::{File, Mount, MountOptions};

const THREADS: u64 = 4;
const BLOCK: usize = 1 << 20;

/// Returns the sum of the bytes of a range.
fn sum(file: &File, mut offset: u64, end: u64) -> Result<u64, rfs_native::Error> {
    let (mut block, mut sum) = (vec![0; BLOCK], 0);
    while offset < end {
        let wanted = (end - offset).min(BLOCK as u64) as usize;
        let read = file.read_at(&mut block[..wanted], offset)?;
        if read == 0 {
            break;
        }
        sum += block[..read].iter().map(|byte| u64::from(*byte)).sum::<u64>();
        offset += read as u64;
    }
    Ok(sum)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: parallel_reader ADDRESS [MEGABYTES]")?;
    let megabytes: u64 = arguments.next().map_or(Ok(64), |number| number.parse())?;
    let mount = Mount::connect(&address, &MountOptions::default())?;
    let file = mount.create("numbers")?;
    let block: Vec<u8> = (0..BLOCK).map(|at| at as u8).collect();
    for at in 0..megabytes {
        file.write_all_at(&block, at * BLOCK as u64)?;
    }
    let begin = Instant::now();
    let part = (megabytes * BLOCK as u64).div_ceil(THREADS);
    let total = thread::scope(|scope| {
        let file = &file;
        let readers: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || sum(file, thread * part, (thread + 1) * part)))
            .collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader panicked")).sum::<Result<u64, _>>()
    })?;
    let expected = megabytes * block.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    if total != expected {
        return Err(format!("the sum is {total}, not {expected}").into());
    }
    println!("{THREADS} threads summed {megabytes} MiB in {:?}", begin.elapsed());
    mount.remove_file("numbers")?;
    Ok(())
}
