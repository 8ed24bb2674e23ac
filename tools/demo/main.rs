//! The demo: a node joins, and attackers fail.
//!
//! `demo [--provider aws|tpm|insecure|aws-tenants] [--control-plane embedded|real|cluster-api]`
//!
//! - `embedded` is an API server in this process.
//! - `real` is etcd, kube-apiserver, kube-controller-manager, kubelet and kubectl.
//! - `cluster-api` adds Cluster API's managers, and machines with TPMs.
//! - The provider `aws-tenants` has five tenants, each with its own AWS account.
//!
//! The controller and the plugin are the real programs in all variants. Exit code 1 means that an outcome was
//! unexpected.

mod attacker;
mod attacks;
mod aws;
mod aws_tenants;
mod cluster;
mod cluster_api;
mod controller;
mod plugin;
mod story;
mod tpm;

use std::process::ExitCode;

use kubelet_attestation::page_url;

/// The section of the documentation with which a reader should continue after the demo.
const NEXT: &str = page_url!("start.md#on-your-own-cluster");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .expect("no other provider is installed");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let as_told = match chosen(&arguments) {
        Some(("aws", "embedded")) => aws::embedded(),
        Some(("aws", "real")) => aws::real(),
        Some(("tpm", "embedded")) => tpm::embedded(),
        Some(("tpm", "real")) => tpm::real(),
        Some(("insecure", "embedded")) => story::embedded(),
        Some(("insecure", "real")) => story::real(),
        Some(("tpm", "cluster-api")) => cluster_api::story(),
        Some(("aws-tenants", "cluster-api")) => aws_tenants::story(),
        _ => {
            eprintln!(
                "usage: demo [--provider aws|tpm|insecure] [--control-plane embedded|real]\n       \
                 demo --provider tpm|aws-tenants --control-plane cluster-api"
            );
            return ExitCode::from(2);
        }
    };
    if as_told {
        println!("\nThe demo ended as expected. Next: enable attestation on your own cluster:");
        println!("{NEXT}");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The provider and the control plane. `None` if the arguments include an unknown option.
fn chosen<'a>(arguments: &[&'a str]) -> Option<(&'a str, &'a str)> {
    let mut chosen = ("aws", "embedded");
    for pair in arguments.chunks(2) {
        match pair {
            ["--provider", provider] => chosen.0 = provider,
            ["--control-plane", control_plane] => chosen.1 = control_plane,
            _ => return None,
        }
    }
    Some(chosen)
}
