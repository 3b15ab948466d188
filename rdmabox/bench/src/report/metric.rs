//! The metrics of a sample and their formatting. No I/O, no locks, no clock.

use measure::statistics;

use crate::{run::Sample, usage::Usage};

/// Returns a metric of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Their titles say it.
pub enum Metric {
    Ops,
    OpsPerSecond,
    MibPerSecond,
    Mean,
    P50,
    P99,
    P999,
    Max,
    ClientCpu,
    ServerCpu,
    CpuPerOp,
    SwitchesPerOp,
    Sleeps,
    SleepsPerOp,
    PollsPerOp,
    WorkRequests,
    Doorbells,
    Merged,
    WorkRequestsPerOp,
    DoorbellsPerOp,
    WindowWaits,
    Interrupts,
    InterruptsPerOp,
    CardMissesPerOp,
    CardCpuPerOp,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Metric; 25] = [
        Metric::Ops,
        Metric::OpsPerSecond,
        Metric::MibPerSecond,
        Metric::Mean,
        Metric::P50,
        Metric::P99,
        Metric::P999,
        Metric::Max,
        Metric::ClientCpu,
        Metric::ServerCpu,
        Metric::CpuPerOp,
        Metric::SwitchesPerOp,
        Metric::Sleeps,
        Metric::SleepsPerOp,
        Metric::PollsPerOp,
        Metric::WorkRequests,
        Metric::Doorbells,
        Metric::Merged,
        Metric::WorkRequestsPerOp,
        Metric::DoorbellsPerOp,
        Metric::WindowWaits,
        Metric::Interrupts,
        Metric::InterruptsPerOp,
        Metric::CardMissesPerOp,
        Metric::CardCpuPerOp,
    ];

    /// Returns the name in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::Ops => "ops",
            Self::OpsPerSecond => "ops_per_second",
            Self::MibPerSecond => "mib_per_second",
            Self::Mean => "mean_us",
            Self::P50 => "p50_us",
            Self::P99 => "p99_us",
            Self::P999 => "p999_us",
            Self::Max => "max_us",
            Self::ClientCpu => "client_cpu_percent",
            Self::ServerCpu => "server_cpu_percent",
            Self::CpuPerOp => "client_cpu_us_per_op",
            Self::SwitchesPerOp => "client_switches_per_op",
            Self::Sleeps => "sleeps",
            Self::SleepsPerOp => "sleeps_per_op",
            Self::PollsPerOp => "polls_per_op",
            Self::WorkRequests => "work_requests",
            Self::Doorbells => "doorbells",
            Self::Merged => "merged",
            Self::WorkRequestsPerOp => "work_requests_per_op",
            Self::DoorbellsPerOp => "doorbells_per_op",
            Self::WindowWaits => "window_waits",
            Self::Interrupts => "card_interrupts",
            Self::InterruptsPerOp => "card_interrupts_per_op",
            Self::CardMissesPerOp => "card_misses_per_op",
            Self::CardCpuPerOp => "card_cpu_us_per_op",
        }
    }

    /// Returns the metric of this machine in place of one that only a modelled card has.
    #[must_use]
    pub fn without_card(self) -> Metric {
        match self {
            Self::CardCpuPerOp => Self::CpuPerOp,
            Self::InterruptsPerOp => Self::SleepsPerOp,
            other => other,
        }
    }

    /// Returns the title of a column.
    pub fn title(self) -> &'static str {
        match self {
            Self::Ops => "requests",
            Self::OpsPerSecond => "IOPS",
            Self::MibPerSecond => "MiB/s",
            Self::Mean => "mean us",
            Self::P50 => "p50 us",
            Self::P99 => "p99 us",
            Self::P999 => "p99.9 us",
            Self::Max => "max us",
            Self::ClientCpu => "client CPU %",
            Self::ServerCpu => "server CPU %",
            Self::CpuPerOp => "CPU us/op",
            Self::SwitchesPerOp => "switches/op",
            Self::Sleeps => "sleeps",
            Self::SleepsPerOp => "sleeps/op",
            Self::PollsPerOp => "polls/op",
            Self::WorkRequests => "work requests",
            Self::Doorbells => "doorbells",
            Self::Merged => "merged",
            Self::WorkRequestsPerOp => "work requests/op",
            Self::DoorbellsPerOp => "doorbells/op",
            Self::WindowWaits => "window waits",
            Self::Interrupts => "interrupts",
            Self::InterruptsPerOp => "interrupts/op",
            Self::CardMissesPerOp => "misses/op",
            Self::CardCpuPerOp => "model CPU us/op",
        }
    }

    /// Returns the explanation below a chart.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Ops => "requests that completed",
            Self::OpsPerSecond => "requests per second",
            Self::MibPerSecond => "payload, MiB per second",
            Self::Mean => "mean latency, microseconds",
            Self::P50 => "median latency, microseconds",
            Self::P99 => "99th percentile of latency, microseconds",
            Self::P999 => "99.9th percentile of latency, microseconds",
            Self::Max => "largest latency, microseconds",
            Self::ClientCpu => "processor time of the client, percent of one core",
            Self::ServerCpu => "processor time of all servers, percent of one core",
            Self::CpuPerOp => "processor time of the client per request, microseconds",
            Self::SwitchesPerOp => "context switches of the client per request",
            Self::Sleeps => "sleeps on a completion queue",
            Self::SleepsPerOp => "sleeps on a completion queue (events armed) per request",
            Self::PollsPerOp => "polls of a completion queue per request",
            Self::WorkRequests => "work requests posted",
            Self::Doorbells => "doorbells",
            Self::Merged => "requests that travelled in another one's work request",
            Self::WorkRequestsPerOp => "work requests posted per request",
            Self::DoorbellsPerOp => "doorbells per request",
            Self::WindowWaits => "times that a request waited for the admission window",
            Self::Interrupts => "interrupts of the modelled card",
            Self::InterruptsPerOp => "interrupts of the modelled card per request",
            Self::CardMissesPerOp => "work requests that the modelled card fetched again, per request",
            Self::CardCpuPerOp => "modelled processor time of the client per request, microseconds",
        }
    }

    /// Returns the value for a sample, or `None` if the metric does not apply.
    pub fn of(self, sample: &Sample) -> Option<f64> {
        let per_second = |value: f64| statistics::ratio(value, sample.seconds);
        let per_op = |value: f64| statistics::ratio(value, sample.ops as f64);
        // Processor time is this machine's, also with a modelled card.
        let cpu = |usage: &Usage| statistics::ratio(usage.cpu().as_secs_f64() * 100.0, sample.host_seconds);
        let counter = |name: &str| sample.counters.get(name).map(|value| *value as f64);
        let one_sided =
            |name: &str| counter(name).filter(|_| counter("work_requests").is_some_and(|n| n > 0.0));
        match self {
            Self::Ops => Some(sample.ops as f64),
            Self::OpsPerSecond => per_second(sample.ops as f64),
            Self::MibPerSecond => per_second(sample.bytes as f64 / (1 << 20) as f64),
            Self::Mean => Some(sample.latency.mean_us),
            Self::P50 => Some(sample.latency.p50_us),
            Self::P99 => Some(sample.latency.p99_us),
            Self::P999 => Some(sample.latency.p999_us),
            Self::Max => Some(sample.latency.max_us),
            Self::ClientCpu => cpu(&sample.client),
            Self::ServerCpu => sample.server.as_ref().and_then(cpu),
            Self::CpuPerOp => per_op((sample.client.user_us + sample.client.system_us) as f64),
            Self::SwitchesPerOp => per_op(sample.client.switches() as f64),
            Self::Sleeps => counter("sleeps"),
            Self::SleepsPerOp => counter("sleeps").and_then(per_op),
            Self::PollsPerOp => counter("polls").and_then(per_op),
            Self::WorkRequests => one_sided("work_requests"),
            Self::Doorbells => one_sided("doorbells"),
            Self::Merged => one_sided("merged"),
            Self::WorkRequestsPerOp => one_sided("work_requests").and_then(per_op),
            Self::DoorbellsPerOp => one_sided("doorbells").and_then(per_op),
            Self::WindowWaits => one_sided("window_waits"),
            Self::Interrupts => counter("card_interrupts"),
            Self::InterruptsPerOp => counter("card_interrupts").and_then(per_op),
            Self::CardMissesPerOp => counter("card_work_request_misses").and_then(per_op),
            Self::CardCpuPerOp => counter("card_busy_ns").and_then(|ns| per_op(ns / 1000.0)),
        }
    }

    /// Returns the median over rounds.
    pub fn median(self, samples: &[Sample]) -> Option<f64> {
        let values: Option<Vec<f64>> = samples.iter().map(|sample| self.of(sample)).collect();
        statistics::median(&values?)
    }

    /// Returns the spread of the rounds relative to their median.
    pub fn spread(self, samples: &[Sample]) -> Option<f64> {
        let values: Option<Vec<f64>> = samples.iter().map(|sample| self.of(sample)).collect();
        statistics::spread(&values?)
    }
}

/// Formats a ratio as a relative change in percent.
pub fn show_change(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

/// Formats a number with three or four significant digits.
pub fn show(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(0.0) => "0".into(),
        Some(value) if value < 0.001 => format!("{value:.1e}"),
        Some(value) if value < 1.0 => format!("{value:.3}"),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 1000.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::run::record::Latency;

    /// Returns a sample of `ops` requests in half a second.
    pub(crate) fn sample(ops: u64) -> Sample {
        Sample {
            ops,
            bytes: ops << 12,
            seconds: 0.5,
            host_seconds: 0.5,
            latency: Latency { mean_us: 2.0, p50_us: 1.0, p99_us: 3.0, p999_us: 4.0, max_us: 5.0 },
            client: Usage {
                user_us: 150_000,
                system_us: 100_000,
                voluntary_switches: 90,
                involuntary_switches: 10,
            },
            server: None,
            swapped: None,
            gaps: None,
            counters: [
                ("work_requests", 500),
                ("doorbells", 250),
                ("merged", 500),
                ("sleeps", 100),
                ("polls", 3000),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            chain_lengths: Default::default(),
            runtime_latency: Default::default(),
            in_flight_peak: 0,
        }
    }

    #[test]
    fn values() {
        let sample = sample(1000);
        for (metric, value) in [
            (Metric::OpsPerSecond, Some(2000.0)),
            (Metric::MibPerSecond, Some(7.8125)),
            (Metric::P999, Some(4.0)),
            (Metric::ClientCpu, Some(50.0)),
            (Metric::ServerCpu, None),
            (Metric::CpuPerOp, Some(250.0)),
            (Metric::SwitchesPerOp, Some(0.1)),
            (Metric::WorkRequestsPerOp, Some(0.5)),
            (Metric::DoorbellsPerOp, Some(0.25)),
            (Metric::SleepsPerOp, Some(0.1)),
            (Metric::PollsPerOp, Some(3.0)),
            (Metric::WindowWaits, None),
        ] {
            assert_eq!(metric.of(&sample), value, "{metric:?}");
        }
    }

    #[test]
    fn processor_time_is_the_machines_and_rates_are_the_models() {
        let mut sample = sample(1000);
        sample.host_seconds = 100.0 * sample.seconds;
        assert_eq!(Metric::ClientCpu.of(&sample), Some(0.5));
        assert_eq!(Metric::OpsPerSecond.of(&sample), Some(2000.0));
    }

    #[test]
    fn medians_over_rounds() {
        let rounds = [sample(1000), sample(5000), sample(2000)];
        assert_eq!(Metric::OpsPerSecond.median(&rounds), Some(4000.0));
        assert_eq!(Metric::OpsPerSecond.spread(&rounds), Some(2.0));
        assert_eq!(Metric::ServerCpu.median(&rounds), None);
    }

    #[test]
    fn calls_have_no_work_requests_of_their_own() {
        let mut sample = sample(10);
        sample.counters.insert("work_requests".into(), 0);
        assert_eq!((Metric::WorkRequests.of(&sample), Metric::DoorbellsPerOp.of(&sample)), (None, None));
    }

    #[test]
    fn names_are_unique() {
        let mut keys = Metric::ALL.map(Metric::key);
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn numbers_for_people() {
        for (value, text) in [
            (0.0, "0"),
            (0.00012, "1.2e-4"),
            (0.5, "0.500"),
            (7.126, "7.13"),
            (65.55, "65.5"),
            (123_456.7, "123457"),
        ] {
            assert_eq!(show(Some(value)), text);
        }
        assert_eq!(show(None), "-");
    }
}
