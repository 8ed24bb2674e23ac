//! Tests of the lifecycle of a node that is an AWS instance.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::prelude::*;
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_tests::cloud::{Cloud, Instance};
use kubelet_authenticator_tests::fleet::{assert_first_generation, kubelet_of_instance};
use kubelet_authenticator_tests::management::{Management, WorkloadCluster};
use serde_json::{Value, json};

use crate::bed::{Manager, allow_short_certificates, authorize, management};
use crate::witness::{mark, none_is_refused, requests, uid_of, wait_for_certificate, workload};

/// A lifetime for which the renewal is after 30 to 42 seconds.
const SECONDS: u32 = 60;

/// The tag with which Cluster API Provider AWS marks the cluster's instances.
pub const OWNED: (&str, &str) = (
    "sigs.k8s.io/cluster-api-provider-aws/cluster/prod-1",
    "owned",
);

/// A cluster of instances.
pub struct Bed {
    pub cloud: Cloud,
    pub management: Management,
    pub cluster: WorkloadCluster,
    _manager: Manager,
}

impl Bed {
    pub fn start() -> Self {
        let cloud = Cloud::start();
        let management = management();
        allow_short_certificates(&management);
        let cluster = management.cluster("prod-1");
        let cluster = cluster.workload(Arc::new(workload())).create();
        let manager = Manager::aws(&management, &cloud, &[]);
        let spec = json!({"certificate": {"expirationSeconds": SECONDS}});
        authorize(&management, &cluster, &["aws"], spec).wait_until_ready(management.kubectl());
        Self {
            cloud,
            management,
            cluster,
            _manager: manager,
        }
    }

    /// Starts a kubelet on a new instance for this Machine, and waits until it has joined.
    fn join(&self, machine: &str) -> (Instance, Kubelet) {
        let instance = self.cloud.launch(&[OWNED]);
        let kubelet = self.join_as(machine, &instance);
        (instance, kubelet)
    }

    /// Starts a kubelet on this instance for this Machine, and waits until it has joined.
    pub fn join_as(&self, machine: &str, instance: &Instance) -> Kubelet {
        let machine = self.cluster.machine(machine);
        let machine = machine.provider_id(&instance.provider_id());
        let machine = machine.node_name(instance.node_name()).create();
        let plane = self.cluster.control_plane();
        let token = machine.token().bearer();
        let kubelet = kubelet_of_instance(plane, &token, &self.cloud, instance).start();
        kubelet.wait_until_ready();
        kubelet
    }

    fn requests(&self, instance: &Instance) -> Vec<Value> {
        requests(self.cluster.control_plane(), instance.node_name())
    }
}

/// The time at which the proof in a request was signed.
fn signed_at(csr: &Value) -> String {
    let request = BASE64_STANDARD.decode(csr["spec"]["request"].as_str().unwrap());
    let blocks = pem::parse_many(request.unwrap()).unwrap();
    let evidence: Value = serde_json::from_slice(blocks[2].contents()).unwrap();
    evidence["sts"]["amzDate"].as_str().unwrap().to_owned()
}

#[test]
fn an_instance_joins_and_renews_with_fresh_evidence() {
    let bed = Bed::start();
    let (instance, kubelet) = bed.join("worker-1");
    let node = instance.node_name().to_owned();
    let plane = bed.cluster.control_plane();

    let renewed = wait_for_certificate(plane, &node, 2, |csr| {
        csr["spec"]["username"] == format!("system:node:{node}")
    });

    let requests = bed.requests(&instance);
    let signed: BTreeSet<_> = requests.iter().map(signed_at).collect();
    assert_eq!(
        signed.len(),
        requests.len(),
        "evidence was used twice: {signed:?}"
    );
    // The controller made one more call, to determine the account of its own credentials.
    assert_eq!(bed.cloud.sts().calls().len(), requests.len() + 1);
    kubelet.wait_for_lease_renewal();
    none_is_refused(plane);
    // The AWS identity was recorded at the join, and later renewals do not write it again.
    let record = [
        "get",
        "nodeidentities",
        &format!("prod-1.{node}"),
        "-n",
        "default",
    ];
    let record = bed.management.kubectl().json(record);
    assert_eq!(record["spec"]["attestor"], "aws");
    assert_eq!(record["spec"]["providerID"], instance.provider_id());
    assert_first_generation(&record);
    assert_eq!(uid_of(&renewed), mark(&record));
}
