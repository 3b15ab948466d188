//! Runs fio: random access with O_DIRECT, with latencies. Its JSON output is parsed by a pure
//! function.

use std::{path::Path, process::Command, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Error, Result,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
    sample::Latency,
    size,
};

/// Random access that bypasses the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Access {
    /// True for writes, false for reads.
    pub write: bool,
    /// Outstanding requests of each thread.
    pub depth: u32,
    /// Number of threads.
    #[serde(default = "one")]
    pub callers: u32,
}

/// Returns the default for old results, which have no number of threads.
fn one() -> u32 {
    1
}

/// An installed fio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fio {
    version: String,
}

/// The measurements of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Throughput in MiB/s.
    pub mib_per_s: f64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Latency from submission to completion.
    pub latency: Latency,
    /// Processor seconds of fio itself.
    pub cpu_s: f64,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// An existing file of at least `size` bytes.
    pub file: &'a Path,
    /// Size of the accessed part, in bytes.
    pub size: u64,
    /// Bytes of a request.
    pub block: u64,
    /// The access pattern.
    pub access: Access,
    /// Duration in milliseconds.
    pub ms: u32,
}

impl Fio {
    /// Finds fio in `PATH`.
    pub fn find() -> Option<Self> {
        let out = Command::new("fio").arg("--version").output().ok().filter(|out| out.status.success())?;
        Some(Self { version: String::from_utf8_lossy(&out.stdout).trim().to_owned() })
    }

    /// Returns name and version.
    pub fn describe(&self) -> &str {
        &self.version
    }

    /// Writes a file for later runs.
    pub fn prepare(&self, file: &Path, bytes: u64, limit: Duration, interrupt: &Interrupt) -> Result<()> {
        let command = base(file, bytes, size::MIB).args(["--rw=write", "--ioengine=psync", "--end_fsync=1"]);
        spawn(&command)?.wait_success(interrupt, limit, |_| ()).map(|_| ())
    }

    /// Runs fio. Returns its measurements and its output.
    pub fn measure(
        &self,
        run: &Run<'_>,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<(Measured, String)> {
        let said = spawn(&command(run))?.wait_success(interrupt, limit, |_| ())?;
        let measured =
            parse(&said, run.access).map_err(|what| Error::Parse { program: "fio".into(), what })?;
        Ok((measured, said))
    }
}

/// Starts a program outside of the measured mount. A working directory inside would keep the mount
/// busy.
fn spawn(command: &Invocation) -> Result<Guarded> {
    Guarded::spawn(command, &std::env::temp_dir())
}

fn base(file: &Path, bytes: u64, block: u64) -> Invocation {
    Invocation::new("fio")
        .args(["--name=compare", "--direct=1", "--thread", "--output-format=json", "--eta=never"])
        .arg(format!("--filename={}", file.display()))
        .args([format!("--size={bytes}"), format!("--bs={block}")])
}

/// Returns the invocation of fio for a run. A depth of one uses blocking system calls. A larger
/// depth uses the kernel's asynchronous I/O.
fn command(run: &Run<'_>) -> Invocation {
    let Access { write, depth, callers } = run.access;
    let threads: &[String] = &[format!("--numjobs={callers}"), "--group_reporting".into()];
    base(run.file, run.size, run.block)
        .args(if callers > 1 { threads } else { &[] })
        .arg(if write { "--rw=randwrite" } else { "--rw=randread" })
        .arg(if depth == 1 { "--ioengine=psync" } else { "--ioengine=libaio" })
        .args([format!("--iodepth={depth}"), format!("--runtime={}ms", run.ms)])
        .args(["--time_based", "--randrepeat=1"])
}

/// Returns the measurements of the job, or of all its threads together.
fn parse(text: &str, access: Access) -> std::result::Result<Measured, String> {
    // Warnings may precede the JSON.
    let json = text.find('{').map_or(text, |start| &text[start..]);
    let all: Value = serde_json::from_str(json).map_err(|err| err.to_string())?;
    let job = all["jobs"].get(0).ok_or("it has no job")?;
    if let Some(code @ 1..) = job["error"].as_i64() {
        return Err(format!("error {code}"));
    }
    let part = &job[if access.write { "write" } else { "read" }];
    let number = |value: &Value, name: &str| value.as_f64().ok_or_else(|| format!("there is no {name}"));
    let percentile = |name: &str| {
        number(&part["clat_ns"]["percentile"][name], &format!("percentile {name}")).map(|ns| ns / 1000.0)
    };
    let (runtime_ms, bytes) = (number(&part["runtime"], "runtime")?, part["io_bytes"].as_u64().unwrap_or(0));
    if bytes == 0 {
        return Err("nothing was moved".into());
    }
    let busy = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    Ok(Measured {
        mib_per_s: number(&part["bw_bytes"], "bw_bytes")? / size::MIB as f64,
        bytes,
        latency: Latency {
            p50: percentile("50.000000")?,
            p99: percentile("99.000000")?,
            p999: percentile("99.900000")?,
        },
        // fio reports the mean share of a thread.
        cpu_s: busy / 100.0 * runtime_ms / 1000.0 * f64::from(access.callers),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Access = Access { write: false, depth: 1, callers: 1 };
    const READ: &str = include_str!("../../tests/captured/fio-read.json");

    #[test]
    fn the_output_of_fio_is_read() {
        let measured = parse(READ, ONE).unwrap();
        assert_eq!(measured.bytes, 643_088_384);
        assert!((measured.mib_per_s - 2044.32).abs() < 0.01, "{measured:?}");
        assert_eq!(measured.latency, Latency { p50: 21.888, p99: 61.184, p999: 4079.616 });
        assert!((measured.cpu_s - 0.238).abs() < 0.001, "{measured:?}");
    }

    #[test]
    fn processor_time_is_that_of_all_callers() {
        let cpu_s = |callers| parse(READ, Access { callers, ..ONE }).unwrap().cpu_s;
        assert!((cpu_s(4) - 4.0 * cpu_s(1)).abs() < 1e-9);
    }

    #[test]
    fn warnings_before_the_output_are_skipped() {
        assert!(parse(&format!("fio: something to know\n{READ}"), ONE).is_ok());
    }

    #[test]
    fn a_run_that_moved_nothing_or_failed_is_no_measurement() {
        assert_eq!(parse(READ, Access { write: true, ..ONE }), Err("nothing was moved".into()));
        assert_eq!(parse(&READ.replacen("\"error\" : 0", "\"error\" : 22", 1), ONE), Err("error 22".into()));
        assert_eq!(parse("{}", ONE), Err("it has no job".into()));
        assert!(parse("fio: no such engine", ONE).is_err());
    }

    #[test]
    fn command_lines() {
        let line = |access| {
            command(&Run { file: Path::new("/m/f"), size: 1 << 20, block: 4096, access, ms: 50 }).line()
        };
        assert_eq!(
            line(ONE),
            "fio --name=compare --direct=1 --thread --output-format=json --eta=never --filename=/m/f --size=1048576 \
             --bs=4096 --rw=randread --ioengine=psync --iodepth=1 --runtime=50ms --time_based --randrepeat=1"
        );
        let deep = line(Access { write: true, depth: 16, callers: 1 });
        assert!(deep.contains("--rw=randwrite --ioengine=libaio --iodepth=16"), "{deep}");
        let many = line(Access { callers: 4, ..ONE });
        assert!(many.contains(" --numjobs=4 --group_reporting --rw=randread --ioengine=psync "), "{many}");
    }
}
