//! The real manager of Cluster API Provider AWS.

use std::path::{Path, PathBuf};

use kubelet_authenticator_test_support::binaries;
use kubelet_authenticator_test_support::process::{Launch, Process, free_port};
use serde_json::Value;

use super::Management;
use super::managers::{Webhooks, install, read, start};
use crate::cloud::{Cloud, REGION};

/// The AWS services for which the manager uses the endpoint of moto server.
const SERVICES: [&str; 7] = [
    "ec2",
    "elasticloadbalancing",
    "s3",
    "secretsmanager",
    "ssm",
    "sts",
    "tagging",
];

const MANIFESTS: &str = "capa.json";

/// A running manager, which creates instances in the cloud of a test.
#[derive(Debug)]
pub struct Capa {
    process: Process,
    _webhooks: Webhooks,
}

impl Capa {
    /// The manager's log.
    pub fn log(&self) -> String {
        self.process.log().text()
    }
}

impl Management {
    /// Starts the manager with the credentials of the cloud's account. The first build takes 10 minutes.
    #[track_caller]
    pub fn start_capa(&self, cloud: &Cloud) -> Capa {
        let built = binaries::build(&script());
        let webhooks = Webhooks::new();
        let port = free_port();
        let account = install(self.kubectl(), &built.join(MANIFESTS), port, &webhooks);
        let url = cloud.moto().url();
        let endpoints = SERVICES.map(|service| format!("{service}={url}")).join(",");
        let launch = Launch::new("capa", built.join("manager"))
            .arg(format!("--service-endpoints={REGION}:{endpoints}"))
            .arg("--feature-gates=EKS=false")
            .env("AWS_REGION", REGION)
            .env("AWS_ENDPOINT_URL", url)
            .env("HOME", "/nonexistent");
        let environment = cloud.manager_environment().into_iter();
        let launch = environment.fold(launch, |launch, (name, value)| launch.env(name, value));
        let manager = start(self.control_plane(), launch, &account, port, &webhooks);
        Capa {
            process: manager.wait_until_ready(),
            _webhooks: webhooks,
        }
    }
}

/// The manager's objects in the management cluster, which exist even without the manager.
#[track_caller]
pub(super) fn manifests() -> Vec<Value> {
    let built = binaries::build_part(&script(), "manifests");
    read(&built.join(MANIFESTS))
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster-api/capa/build")
}
