//! Code that the suites, the demo and the benchmarks share.

pub mod absence;
pub mod cloud;
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
pub mod steps;
pub mod tpm;

use std::path::{Path, PathBuf};

/// Compiles the code on the page for authors of providers.
#[cfg(doctest)]
#[doc = include_str!("../../docs/new-provider.md")]
pub struct NewProviderPage;

/// The variable that names a directory of programs to run instead of the built ones: programs of another version, with
/// its manifests in the directory `packaging`.
const OTHERS: &str = "KUBELET_AUTHENTICATOR_PROGRAMS";

/// One of the project's programs, built in the profile of the running one.
///
/// # Panics
///
/// If it has not been built: `cargo build --workspace` does that.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let other = std::env::var_os(OTHERS).map(|others| PathBuf::from(others).join(name));
    if let Some(other) = other.filter(|other| other.is_file()) {
        return other;
    }
    let this = std::env::current_exe().expect("the running program has a path");
    let mut folder = this.parent().expect("it is in a folder");
    if folder.ends_with("deps") {
        folder = folder.parent().expect("cargo puts it below another");
    }
    let program = folder.join(name);
    assert!(
        program.is_file(),
        "{} is missing: cargo build --workspace --bins",
        program.display()
    );
    program
}

/// Whether the tests run programs other than the built ones.
pub fn runs_others() -> bool {
    std::env::var_os(OTHERS).is_some()
}

/// The project's manifests for the running controller: each version has its own definitions and permissions.
pub fn packaging() -> PathBuf {
    let other = std::env::var_os(OTHERS).map(|others| PathBuf::from(others).join("packaging"));
    other
        .filter(|other| other.is_dir())
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging"))
}
