//! Benchmarks: the cost of the node plugin's cached path, the cost of one enrollment, and the effect of hostile clients
//! and clusters on other clusters. The cached path is compared with programs that do almost nothing.
//!
//! `bench` prints tables and writes `target/bench/<suite>.json`: a list of `{name, value, unit, limit}`. `bench
//! SUITE...` measures only these suites, `bench --limits-only` only values that do not depend on the machine's speed.
//! Exit code 1 means that a limit is exceeded.

mod cached_path;
mod cluster_api;
mod controller;
mod crowd;
mod decision;
mod enrolment;
mod flood;
mod heavy;
mod linker_script;
mod measure;
mod memory;
mod neighbours;
mod real_join;
mod report;
mod simulation;
mod swarm;
mod throughput;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use kubelet_authenticator_tests::{panics, program};

/// Benchmarks.
#[derive(Debug, Parser)]
struct Arguments {
    /// Measure only limits that do not depend on the machine's speed
    #[arg(long, conflicts_with = "suites")]
    limits_only: bool,
    /// Print the linker script for the plugins in this folder, which must have their symbols
    #[arg(long, value_name = "FOLDER", conflicts_with = "suites")]
    linker_script: Option<PathBuf>,
    /// Only do this work; the suite `decision` counts the instructions
    #[arg(long = decision::WORK, hide = true, conflicts_with = "suites")]
    work: Option<decision::Work>,
    /// The number of requests for `--work`
    #[arg(long = decision::COUNT, hide = true, default_value_t = 1)]
    count: u32,
    /// The suites to measure; all by default
    suites: Vec<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    CachedPath,
    Decision,
    Enrolment,
    RealJoin,
    Flood,
    Memory,
    Neighbours,
    Throughput,
}

fn main() -> ExitCode {
    let Arguments {
        limits_only,
        linker_script,
        work,
        count,
        mut suites,
    } = Arguments::parse();
    if let Some(programs) = linker_script {
        print!("{}", linker_script::of(&programs));
        return ExitCode::SUCCESS;
    }
    if let Some(work) = work {
        decision::work(work, count);
        return ExitCode::SUCCESS;
    }
    if limits_only {
        suites = vec![Name::Decision, Name::CachedPath];
    } else if suites.is_empty() {
        suites = Name::value_variants().to_vec();
    }
    let mut exceeded = 0;
    for name in suites {
        let controller = || program("node-attestation-controller");
        let suite = match name {
            Name::CachedPath => {
                // This check runs first. It is the shortest check that does not depend on the machine's speed.
                panics::check(&node_programs().join("plugin-that-panics"));
                println!("a panic behind the cached path prints the stored credential");
                cached_path::run(&node_programs(), limits_only)
            }
            Name::Decision => decision::run(),
            Name::Enrolment => enrolment::run(&node_programs(), &controller()),
            Name::RealJoin => real_join::run(&node_programs(), &controller()),
            Name::Flood => flood::run(&controller()),
            Name::Memory => memory::run(),
            Name::Neighbours => neighbours::run(),
            Name::Throughput => throughput::run(),
        };
        suite.write(&root().join("target/bench"));
        exceeded += suite.print_exceeded();
    }
    if exceeded == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package is in the workspace")
}

/// The directory to which `make musl` writes the static programs.
fn node_programs() -> PathBuf {
    root().join("target/x86_64-unknown-linux-musl/node")
}
