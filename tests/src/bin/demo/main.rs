//! The main job as a story: a node joins, attackers do not.
//!
//! `demo [--control-plane embedded|real]`. Embedded is an API server in this process; real is etcd,
//! kube-apiserver, kube-controller-manager, kubelet and kubectl. The controller and the plugin are
//! the real programs in both. Exit code 1 says that something did not end as it should.

mod attacker;
mod attacks;
mod cluster;
mod controller;
mod plugin;
mod story;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .expect("nobody has chosen another");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let as_told = match arguments.as_slice() {
        [] | ["--control-plane", "embedded"] => story::embedded(),
        ["--control-plane", "real"] => story::real(),
        _ => {
            eprintln!("usage: demo [--control-plane embedded|real]");
            return ExitCode::from(2);
        }
    };
    if as_told {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
