//! Benchmarks of the node plugin: what its cached path costs beside programs that do next to
//! nothing, and what one enrolment costs.
//!
//! `bench` prints tables and writes `target/bench/<suite>.json`: a list of `{name, value, unit,
//! limit}`. `bench --limits-only` measures what does not depend on the machine's speed. Exit code 1
//! says that a limit is exceeded. Before all that, a program in the released profile panics.

mod cached_path;
mod controller;
mod enrolment;
mod measure;
mod real_join;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kubelet_authenticator_tests::panics;

fn main() -> ExitCode {
    let limits_only = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--limits-only" => true,
        _ => {
            eprintln!("usage: bench [--limits-only]");
            return ExitCode::from(2);
        }
    };
    // Of all that does not depend on the machine's speed, this takes the shortest time.
    panics::check(&node_programs().join("plugin-that-panics"));
    println!("a panic behind the cached path prints the stored credential");
    let mut suites = vec![cached_path::run(&node_programs(), limits_only)];
    if !limits_only {
        let controller = root().join("target/release/node-attestation-controller");
        suites.push(enrolment::run(&node_programs(), &controller));
        suites.push(real_join::run(&node_programs(), &controller));
    }
    let mut exceeded = 0;
    for suite in &suites {
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

/// Where `make musl` leaves the static programs.
fn node_programs() -> PathBuf {
    root().join("target/x86_64-unknown-linux-musl/node")
}
