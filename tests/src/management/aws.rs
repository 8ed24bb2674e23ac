//! The objects of Cluster API Provider AWS. The definitions of these objects follow Cluster API's contract v1beta1,
//! although their version is named v1beta2.

mod instances;

use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::moto::Network;
use serde_json::{Map, Value, json};

pub use self::instances::{Instances, Maker, owned};
use super::contract::{AWS_CLUSTER, AWS_MACHINE, AWS_MACHINE_TEMPLATE, INFRASTRUCTURE};
use super::{Management, capa, crds};
use crate::cloud::{ACCOUNT, Cloud, REGION};

/// The security groups that the provider requires for an AWSCluster that it manages itself.
const SECURITY_GROUPS: [&str; 5] = ["apiserver-lb", "bastion", "controlplane", "lb", "node"];

/// The control planes of EKS and ROSA, which also refer to an identity.
const MANAGED_CONTROL_PLANES: [&str; 2] = [
    "awsmanagedcontrolplanes.controlplane.cluster.x-k8s.io",
    "rosacontrolplanes.controlplane.cluster.x-k8s.io",
];

/// The plural names of the identities.
const IDENTITIES: [&str; 3] = [
    "awsclustercontrolleridentities",
    "awsclusterroleidentities",
    "awsclusterstaticidentities",
];

/// The annotation on an AWSCluster that makes the provider ignore the AWSCluster, while it manages the AWSMachines.
const MANAGED_BY: &str = "cluster.x-k8s.io/managed-by";

impl Management {
    /// Installs the CustomResourceDefinitions of Cluster API Provider AWS for clusters, machines, machine templates,
    /// managed control planes and identities, so that the test can act as this provider. Also creates the identity that
    /// the provider creates for every namespace.
    #[track_caller]
    pub fn define_aws(&self) {
        let wanted = [AWS_CLUSTER, AWS_MACHINE, AWS_MACHINE_TEMPLATE];
        let mut wanted = wanted.map(|kind| json!(kind.resource())).to_vec();
        wanted.extend(MANAGED_CONTROL_PLANES.map(|kind| json!(kind)));
        wanted.extend(IDENTITIES.map(|kind| json!(format!("{kind}.{INFRASTRUCTURE}"))));
        let mut definitions = capa::manifests();
        definitions.retain(|object| wanted.contains(&object["metadata"]["name"]));
        assert_eq!(definitions.len(), wanted.len());
        for definition in &mut definitions {
            // No conversion webhook is necessary, because the only served version is the stored version.
            definition["spec"]["conversion"] = json!({ "strategy": "None" });
            self.kubectl().apply_server_side(definition);
        }
        crds::wait_until_established(self.kubectl(), &definitions);
        self.kubectl().apply_object(&json!({
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "AWSClusterControllerIdentity",
            "metadata": { "name": "default" }, "spec": { "allowedNamespaces": {} },
        }));
    }
}

/// Creates the only network for AWSClusters. Machines in this process can have addresses in this network.
#[track_caller]
pub fn network(cloud: &Cloud) -> Network {
    let ec2 = cloud.moto().ec2(ACCOUNT, REGION);
    ec2.create_network(&Machine::network(), &SECURITY_GROUPS)
}

/// Creates networks for the AWSClusters of these accounts, instead of [`network`]. Machines in this process can have
/// addresses in these networks.
///
/// # Panics
///
/// Panics if there are more accounts than networks.
#[track_caller]
pub fn networks(cloud: &Cloud, accounts: &[&str]) -> Vec<Network> {
    let ranges = Machine::networks();
    assert!(accounts.len() <= ranges.len());
    let of = |(account, range): (&&str, &String)| {
        let ec2 = cloud.moto().ec2(account, REGION);
        ec2.create_network(range, &SECURITY_GROUPS)
    };
    accounts.iter().zip(&ranges).map(of).collect()
}

pub(super) fn cluster_annotations() -> Map<String, Value> {
    Map::from_iter([(MANAGED_BY.to_owned(), json!("external"))])
}

pub(super) fn cluster_spec(network: &Network, endpoint: &Value) -> Value {
    json!({
        "region": REGION,
        "controlPlaneEndpoint": endpoint,
        "network": {
            "vpc": { "id": network.vpc },
            "subnets": [{ "id": network.subnet, "availabilityZone": network.zone }],
        },
    })
}

/// The status of an AWSCluster with an existing network.
pub(super) fn cluster_status(network: &Network) -> Value {
    let groups = network.security_groups.iter();
    let groups = groups.map(|(name, id)| (name.clone(), json!({ "id": id, "name": name })));
    json!({
        "ready": true,
        "networkStatus": { "securityGroups": Map::from_iter(groups) },
    })
}

pub(super) fn machine_template(network: &Network) -> Value {
    json!({ "template": { "spec": {
        "instanceType": "t3.large",
        "ami": { "id": "ami-12345678" },
        "subnet": { "id": network.subnet },
        "sshKeyName": "",
        // As with most providers, only the instance contains the user data.
        "cloudInit": { "insecureSkipSecretsManager": true },
    } } })
}
