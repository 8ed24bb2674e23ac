//! Benchmarks a controller with many clusters and in-memory API servers, in simulated time. Results include the latency
//! of calls. Results include processor time only where the benchmark measures processor time.
//!
//! Arguments select the measurements: each argument selects the measurements whose names contain it. `SCALE_CLUSTERS`
//! and `SCALE_MACHINES` set the numbers of clusters and machines. `SCALE_LOG` prints the controller's log and the calls
//! for an idle cluster.
//!
//! Prints the results, and writes `target/bench/scale.json`: a list of `{name, value, unit, limit}`. Exit code 1 means
//! that a value exceeds its limit.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_types,
    reason = "a benchmark ends where something fails, and prints"
)]

mod api_server;
mod management;
mod results;
mod workload;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::api_server::Network;
use self::management::Cas;
use self::results::{Results, float, resident};
use self::world::{World, simulate};

/// One in this number of calls fails.
const FAILING: u64 = 100;

/// The deadline for each awaited result.
const PATIENCE: Duration = Duration::from_mins(5);

/// The number of clusters in the measurement of idle clusters.
const IDLE_CLUSTERS: usize = 20;

/// The number in this environment variable, or the default if it is not set.
fn number(variable: &str, default: usize) -> usize {
    let set = std::env::var(variable);
    set.map_or(default, |set| set.parse().unwrap())
}

fn main() -> ExitCode {
    if std::env::var_os("SCALE_LOG").is_some() {
        tracing_subscriber::fmt().init();
    }
    let clusters = number("SCALE_CLUSTERS", 1000);
    let bench = Bench {
        clusters,
        machines: number("SCALE_MACHINES", 100_000),
        cas: management::cas(clusters.max(IDLE_CLUSTERS)),
    };
    let arguments = std::env::args().skip(1);
    let wanted: Vec<String> = arguments.filter(|one| !one.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|one| name.contains(one));
    let mut results = Results::default();
    for latency in [5, 30, 100] {
        if is_wanted(&format!("start {latency}")) {
            bench.start(latency, &mut results);
        }
    }
    if is_wanted("fail-over") {
        bench.fail_over(&mut results);
    }
    if is_wanted("idle") {
        bench.idle(&mut results);
    }
    if is_wanted("event") {
        for few in [1, 100, clusters] {
            bench.events(few, &mut results);
        }
    }
    results.finish()
}

struct Bench {
    clusters: usize,
    machines: usize,
    cas: Arc<Cas>,
}

fn network(latency: u64, failing: u64) -> Network {
    Network {
        latency: Duration::from_millis(latency),
        failing,
    }
}

impl Bench {
    fn world(&self, network: Network) -> Arc<World> {
        World::new(self.clusters, self.machines, self.cas.clone(), network)
    }

    /// Measures the time from the controller's start to the first certificate in every cluster.
    fn start(&self, latency: u64, results: &mut Results) {
        simulate(async {
            let before = resident();
            let world = self.world(network(latency, FAILING));
            let _replica = world.start("a");
            let took = world.all_issued(PATIENCE).await;
            let name = |what| format!("{latency} ms: {what}");
            results.add(name("every cluster served after"), took, "s", Some(60.0));
            let gap = world.management.longest_lease_gap().as_secs_f64();
            let without = name("longest time without a renewal of the Lease");
            results.add(without, gap, "s", Some(10.0));
            let terms = world.management.leaders().len();
            if std::env::var_os("SCALE_LOG").is_some() {
                world.print_calls();
            }
            results.add(name("terms"), float(terms), "", Some(1.0));
            if latency == 5 {
                // Later simulations reuse freed memory, so the growth that they measure would be too small.
                let memory = resident().saturating_sub(before) / 1024 / 1024;
                let name = "resident memory of controller and simulation, without sockets";
                results.add(name, float(memory), "MiB", None);
            }
        });
    }

    /// Measures the time from the crash of a replica to the first certificate that another replica issues.
    fn fail_over(&self, results: &mut Results) {
        simulate(async {
            let world = self.world(network(30, FAILING));
            let first = world.start("a");
            world.all_issued(PATIENCE).await;
            let _second = world.start("b");
            sleep(PATIENCE).await;
            world.join_again();
            let died = Instant::now();
            drop(first);
            let leading = world.other_leader(PATIENCE).await;
            let took = (leading - died).as_secs_f64();
            results.add("the next replica leads after", took, "s", Some(20.0));
            let took = world.first_issued(leading, PATIENCE).await;
            results.add("first decision after it leads", took, "s", Some(10.0));
        });
    }

    /// Measures the number of calls for an idle cluster.
    fn idle(&self, results: &mut Results) {
        simulate(async {
            let (clusters, machines) = (IDLE_CLUSTERS, 100 * IDLE_CLUSTERS);
            let world = World::new(clusters, machines, self.cas.clone(), network(5, 0));
            let _replica = world.start("a");
            world.all_issued(PATIENCE).await;
            sleep(Duration::from_mins(10)).await;
            let before = world.calls();
            sleep(Duration::from_hours(2)).await;
            let after = world.calls();
            let a_minute = |calls: u64| float(calls) / 120.0 / float(clusters);
            let [workload, secrets, others] =
                std::array::from_fn(|which| a_minute(after[which] - before[which]));
            let name = "calls of an idle cluster, its Secrets' watches with them";
            results.add(name, workload + secrets, "/min", Some(1.0));
            let name = "of these to its own API server";
            results.add(name, workload, "/min", None);
            let name = "calls to the management cluster for all clusters";
            results.add(name, others * float(clusters), "/min", None);
            if std::env::var_os("SCALE_LOG").is_some() {
                world.print_calls();
            }
        });
    }

    /// Measures the processor time per event, which must not grow with the number of clusters.
    fn events(&self, clusters: usize, results: &mut Results) {
        simulate(async {
            let world = World::new(clusters, 1000, self.cas.clone(), network(5, 0));
            let _replica = world.start("a");
            world.all_issued(PATIENCE).await;
            sleep(Duration::from_secs(30)).await;
            let took = world.events(1000).await;
            let name = format!("{clusters} clusters: processor time per Machine event");
            results.add(name, took, "us", Some(100.0));
        });
    }
}
