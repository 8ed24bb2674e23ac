//! The measured values.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use criterion::Criterion;
use node_attestation_runtime::shared::Lock;
use node_attestation_runtime::shared::testing::longest_held;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

/// The maximum processor time for which a lock that tenants share can be held.
const MAX_HELD: Duration = Duration::from_millis(1);

/// The locks that these measurements use.
const LOCKS: [Lock; 15] = [
    Lock::ConfigMapReaders,
    Lock::Ec2Answers,
    Lock::Ec2Calls,
    Lock::Ec2Clients,
    Lock::Ec2Queues,
    Lock::Identities,
    Lock::Observations,
    Lock::RoleSessions,
    Lock::Session,
    Lock::StsRates,
    Lock::StsRefusals,
    Lock::StsSignatures,
    Lock::StsTurns,
    Lock::TenantAccounts,
    Lock::TenantSessions,
];

/// Runs the measurements, and stores their medians.
pub(crate) struct Results {
    criterion: Criterion,
    values: Vec<Value>,
}

struct Value {
    name: String,
    median: Duration,
    limit: Option<Duration>,
}

impl Results {
    pub(crate) fn new() -> Self {
        let criterion = Criterion::default().without_plots().configure_from_args();
        Self {
            criterion,
            values: Vec::new(),
        }
    }

    /// Measures one run of `action`, and returns the median.
    pub(crate) fn measure(
        &mut self,
        name: &'static str,
        limit: Option<Duration>,
        mut action: impl FnMut(),
    ) -> Option<Duration> {
        self.measure_runs(name, limit, |runs| {
            let start = cpu_time();
            for _ in 0..runs {
                action();
            }
            cpu_time().saturating_sub(start)
        })
    }

    /// Measures a function that returns the duration of this number of runs, and returns the median.
    pub(crate) fn measure_runs(
        &mut self,
        name: &'static str,
        limit: Option<Duration>,
        mut runs: impl FnMut(u64) -> Duration,
    ) -> Option<Duration> {
        let mut samples = Vec::new();
        self.criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                let took = runs(count);
                samples.push(took.div_f64(f64::from(u32::try_from(count).unwrap())));
                took
            });
        });
        samples.sort_unstable();
        // There is no median if the command line excludes the measurement.
        let median = samples.get(samples.len() / 2).copied()?;
        self.values.push(Value {
            name: name.to_owned(),
            median,
            limit,
        });
        Some(median)
    }

    /// Adds for each lock the longest time for which it was held, instead of a median.
    ///
    /// # Panics
    ///
    /// Panics if a lock in [`LOCKS`] was not measured.
    pub(crate) fn add_locks(&mut self) {
        let locks = longest_held();
        for lock in LOCKS {
            assert!(
                locks.get(&lock).is_some_and(Option::is_some),
                "no measurement of {lock}"
            );
        }
        let held = locks
            .into_iter()
            .filter_map(|(lock, held)| Some((lock, held?)));
        self.values.extend(held.map(|(lock, held)| Value {
            name: format!("under the lock of {lock}"),
            median: held,
            limit: Some(MAX_HELD),
        }));
    }

    /// Prints and writes the results, and returns an exit code that shows whether all values are within their limits.
    pub(crate) fn finish(self, suite: &str) -> ExitCode {
        self.criterion.final_summary();
        self.write(suite);
        for Value { name, median, .. } in &self.values {
            let micros = median.as_secs_f64() * 1e6;
            println!("| {name:<40} | {micros:>7.1} | {:>9.0} |", 1e6 / micros);
        }
        let limited = self.values.iter().filter(|value| value.limit.is_some());
        let exceeded = limited
            .clone()
            .filter(|value| value.limit.is_some_and(|limit| value.median > limit));
        for Value { name, .. } in exceeded.clone() {
            println!("EXCEEDED {suite}: {name}");
        }
        let (limited, exceeded) = (limited.count(), exceeded.count());
        println!("{suite}: {} of {limited} limits hold", limited - exceeded);
        ExitCode::from(u8::from(exceeded > 0))
    }

    fn write(&self, suite: &str) {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let values: Vec<_> = self
            .values
            .iter()
            .map(|value| {
                json!({
                    "name": value.name,
                    "value": micros(value.median),
                    "unit": "us",
                    "limit": value.limit.map(micros),
                })
            })
            .collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench");
        fs::create_dir_all(&folder).unwrap();
        let text = serde_json::to_string_pretty(&values).unwrap();
        fs::write(folder.join(format!("{suite}.json")), text + "\n").unwrap();
    }
}

/// The CPU time that this thread has used, because other processes use the same cores.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap(),
        u32::try_from(time.tv_nsec).unwrap(),
    )
}
