//! A controller of many clusters, over API servers in memory, in simulated time: the time that calls take
//! counts, and the time that the processor takes does not, but where it is measured by itself.
//!
//! Arguments choose what is measured, by parts of names; SCALE_CLUSTERS and SCALE_MACHINES set how many there are,
//! and with SCALE_LOG the controller's log is printed.
//!
//! Prints, and writes `target/bench/scale.json`: a list of `{name, value, unit, limit}`. Exit code 1 says
//! that a limit is exceeded.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark ends where something fails, and prints"
)]

mod api_server;
mod management;
mod results;
mod workload;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use self::api_server::Network;
use self::results::{Results, resident};
use self::world::{World, simulate};

/// The number that is measured, unless this variable of the environment has another one.
fn number(variable: &str, default: usize) -> usize {
    let set = std::env::var(variable);
    set.map_or(default, |set| set.parse().unwrap())
}

/// One call in so many fails.
const FAILING: u64 = 100;

fn main() -> ExitCode {
    if std::env::var_os("SCALE_LOG").is_some() {
        tracing_subscriber::fmt().init();
    }
    let clusters = number("SCALE_CLUSTERS", 1000);
    let machines = number("SCALE_MACHINES", 100_000);
    let cas = management::cas(clusters);
    let mut results = Results::default();
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with('-'))
        .collect();
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|one| name.contains(one.as_str()));
    for (latency, limit) in [(5, 60.0), (30, 60.0), (100, 60.0)] {
        if !is_wanted(&format!("start {latency}")) {
            continue;
        }
        let network = Network {
            latency: Duration::from_millis(latency),
            failing: FAILING,
        };
        simulate(async {
            let before = resident();
            let world = World::new(clusters, machines, cas.clone(), network);
            let replica = world.start("a");
            let took = world.all_issued(Duration::from_mins(5)).await;
            let name = |what| format!("{latency} ms: {what}");
            results.add(name("every cluster served after"), took, "s", Some(limit));
            let gap = world.management.longest_lease_gap().as_secs_f64();
            results.add(
                name("longest time without a renewal of the Lease"),
                gap,
                "s",
                Some(10.0),
            );
            let terms = world.management.leaders().len();
            results.add(name("terms"), results::float(terms), "", Some(1.0));
            if latency == 5 {
                // Later ones get memory that was free.
                let memory = (resident().saturating_sub(before)) / 1024 / 1024;
                let name = "resident memory of controller and simulation, without sockets";
                results.add(name, results::float(memory), "MiB", None);
            }
            drop(replica);
        });
    }
    let network = Network {
        latency: Duration::from_millis(30),
        failing: FAILING,
    };
    if is_wanted("fail-over") {
        simulate(async {
            let world = World::new(clusters, machines, cas.clone(), network);
            let first = world.start("a");
            world.all_issued(Duration::from_mins(5)).await;
            let second = world.start("b");
            tokio::time::sleep(Duration::from_mins(5)).await;
            world.join_again();
            let died = tokio::time::Instant::now();
            first.die();
            let leading = world.other_leader(Duration::from_mins(5)).await;
            results.add(
                "the next replica leads after",
                (leading - died).as_secs_f64(),
                "s",
                Some(20.0),
            );
            let decided = world.first_issued(leading, Duration::from_mins(5)).await;
            results.add("first decision after it leads", decided, "s", Some(10.0));
            drop(second);
        });
    }
    if is_wanted("idle") {
        let network = Network {
            latency: Duration::from_millis(5),
            failing: 0,
        };
        simulate(async {
            let world = World::new(20, 2000, cas.clone(), network);
            let replica = world.start("a");
            world.all_issued(Duration::from_mins(5)).await;
            tokio::time::sleep(Duration::from_mins(10)).await;
            let (management, workload) = world.calls();
            tokio::time::sleep(Duration::from_hours(2)).await;
            let (management_then, workload_then) = world.calls();
            let a_minute = |calls: u64| results::float(calls) / 120.0;
            results.add(
                "calls of an idle cluster to its API server",
                a_minute(workload_then - workload) / 20.0,
                "/min",
                Some(1.0),
            );
            results.add(
                "calls of an idle cluster to the management cluster",
                a_minute(management_then - management) / 20.0,
                "/min",
                None,
            );
            if std::env::var_os("SCALE_LOG").is_some() {
                world.print_calls();
            }
            drop(replica);
        });
    }
    if is_wanted("event") {
        for few in [1, 100, clusters] {
            let network = Network {
                latency: Duration::from_millis(5),
                failing: 0,
            };
            simulate(async {
                let world = World::new(few, 1000, cas.clone(), network);
                let replica = world.start("a");
                world.all_issued(Duration::from_mins(5)).await;
                tokio::time::sleep(Duration::from_secs(30)).await;
                let took = world.events(1000).await;
                let name = format!("{few} clusters: processor time of a Machine's event");
                results.add(name, took, "us", (few == clusters).then_some(100.0));
                drop(replica);
            });
        }
    }
    results.finish()
}
