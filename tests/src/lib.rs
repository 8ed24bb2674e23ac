//! Code that the suites, the demo and the benchmarks share.

pub mod absence;
pub mod access;
pub mod boots;
pub mod cloud;
pub mod control_planes;
pub mod controller;
pub mod demo;
pub mod deploy;
pub mod docs;
pub mod fleet;
pub mod image;
pub mod machines;
pub mod management;
pub mod metrics_server;
pub mod node;
pub mod page;
pub mod panics;
pub mod pods;
pub mod scene;
pub mod scrape;
pub mod snapshot;
mod sources;
pub mod steps;
pub mod tpm;
pub mod versions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Compiles the code on the page for provider authors.
#[cfg(doctest)]
#[doc = include_str!("../../docs/new-provider.md")]
pub struct NewProviderPage;

/// The variable with the path of a directory whose programs run instead of the built programs. This directory contains
/// the programs of a different version, and the manifests of that version in the subdirectory `packaging`.
const OTHERS: &str = "KUBELET_AUTHENTICATOR_PROGRAMS";

/// The variable that is set if the programs are already built: `tests/suites` builds them before the suites, and the
/// source might change while the suites run.
const BUILT: &str = "KUBELET_AUTHENTICATOR_BUILT";

/// The outdated programs that this process uses, each with a source file that had changed before the program's first
/// use.
static STALE: Mutex<BTreeMap<PathBuf, Option<PathBuf>>> = Mutex::new(BTreeMap::new());

/// The path of one of the project's programs, built with the profile of the running program.
///
/// # Panics
///
/// Panics if the program has not been built, or if a test uses the program and its source changed after the build.
/// `tests/suites` builds the programs before it runs a suite.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let other = std::env::var_os(OTHERS).map(|others| PathBuf::from(others).join(name));
    if let Some(other) = other.filter(|other| other.is_file()) {
        return other;
    }
    let this = std::env::current_exe().expect("the running program has a path");
    let mut folder = this.parent().expect("the program is in a directory");
    // The demo and the benchmarks are programs too. The Makefile builds them together with the other programs.
    let is_test = folder.ends_with("deps");
    if is_test {
        folder = folder
            .parent()
            .expect("cargo places this directory below another one");
    }
    let program = folder.join(name);
    assert!(
        program.is_file(),
        "{} is missing: tests/suites builds the programs of a suite, and runs it",
        program.display()
    );
    if is_test && std::env::var_os(BUILT).is_none() {
        assert_current(&program);
    }
    program
}

#[track_caller]
fn assert_current(program: &Path) {
    let mut stale = STALE.lock().expect("no other thread panicked here");
    let changed = stale
        .entry(program.to_owned())
        .or_insert_with(|| sources::changed(program))
        .clone();
    // Release the lock before the panic, so that other tests also report this message.
    drop(stale);
    if let Some(source) = changed {
        panic!(
            "{} is older than {}: tests/suites builds the programs of a suite, and runs it",
            program.display(),
            source.display()
        );
    }
}

/// Whether the tests run programs from another directory instead of the built programs.
pub fn runs_others() -> bool {
    std::env::var_os(OTHERS).is_some()
}

/// The directory with the manifests for the controller under test. Each version of the controller has its own
/// definitions and permissions.
pub fn packaging() -> PathBuf {
    let other = std::env::var_os(OTHERS).map(|others| PathBuf::from(others).join("packaging"));
    other
        .filter(|other| other.is_dir())
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging"))
}
