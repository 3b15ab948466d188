//! The processes of the benchmark.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

#[test]
fn a_hog_ends_with_the_benchmark() {
    let mut hog = Command::new(env!("CARGO_BIN_EXE_nessie-bench"))
        .args(["hog", "0"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program");
    assert!(hog.try_wait().expect("a child").is_none());
    // As the end of the benchmark closes it, however it ends.
    drop(hog.stdin.take());
    let begun = Instant::now();
    while hog.try_wait().expect("a child").is_none() {
        if begun.elapsed() > Duration::from_secs(30) {
            hog.kill().expect("a child");
            panic!("the hog outlives the benchmark");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
