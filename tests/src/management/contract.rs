use kubelet_authenticator_test_support::moto::Network;
use serde_json::{Map, Value, json};

use super::aws;

/// Cluster API's contracts with its providers: the versions and the formats of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contract {
    /// Cluster API 1.10 and earlier: only v1beta1.
    V1Beta1,
    /// Cluster API 1.11 and later: v1beta2 is stored, and v1beta1 is also served.
    V1Beta2,
}

/// The infrastructure provider of a Cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InfraCluster {
    /// A provider whose InfraCluster has the signers of the kubelet authentication proposal in its status.
    #[default]
    WithSigners,
    /// A provider whose InfraCluster has no fields for the signers.
    WithoutSigners,
    /// Cluster API Provider AWS, with an externally managed AWSCluster in this network.
    Aws(Network),
}

impl InfraCluster {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::WithSigners => GENERIC_CLUSTER,
            Self::WithoutSigners => PLAIN_CLUSTER,
            Self::Aws(_) => AWS_CLUSTER,
        }
    }

    pub(super) fn annotations(&self) -> Map<String, Value> {
        match self {
            Self::WithSigners | Self::WithoutSigners => Map::new(),
            Self::Aws(_) => aws::cluster_annotations(),
        }
    }

    pub(super) fn spec(&self, endpoint: &Value) -> Value {
        match self {
            Self::WithSigners | Self::WithoutSigners => json!({ "controlPlaneEndpoint": endpoint }),
            Self::Aws(network) => aws::cluster_spec(network, endpoint),
        }
    }

    /// The status of a ready InfraCluster.
    pub(super) fn status(&self, contract: Contract) -> Value {
        match self {
            Self::WithSigners | Self::WithoutSigners => contract.infrastructure_status(),
            Self::Aws(network) => aws::cluster_status(network),
        }
    }

    /// The kind of the provider's machine templates, and the spec of a template.
    pub(super) fn machine_template(&self) -> (Kind, Value) {
        match self {
            Self::WithSigners | Self::WithoutSigners => (
                GENERIC_MACHINE_TEMPLATE,
                json!({ "template": { "spec": {} } }),
            ),
            Self::Aws(network) => (AWS_MACHINE_TEMPLATE, aws::machine_template(network)),
        }
    }
}

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) group: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
}

const CORE: &str = "cluster.x-k8s.io";
pub(super) const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

pub(super) const CLUSTER: Kind = Kind::new(CORE, "Cluster", "clusters");
pub(super) const MACHINE: Kind = Kind::new(CORE, "Machine", "machines");
pub(super) const MACHINE_POOL: Kind = Kind::new(CORE, "MachinePool", "machinepools");
pub(super) const KUBEADM_CONFIG: Kind = Kind::new(
    "bootstrap.cluster.x-k8s.io",
    "KubeadmConfig",
    "kubeadmconfigs",
);
pub(super) const GENERIC_MACHINE: Kind =
    Kind::new(INFRASTRUCTURE, "GenericMachine", "genericmachines");
pub(super) const GENERIC_MACHINE_POOL: Kind =
    Kind::new(INFRASTRUCTURE, "GenericMachinePool", "genericmachinepools");
pub(super) const MACHINE_DEPLOYMENT: Kind =
    Kind::new(CORE, "MachineDeployment", "machinedeployments");
pub(super) const KUBEADM_CONFIG_TEMPLATE: Kind = Kind::new(
    "bootstrap.cluster.x-k8s.io",
    "KubeadmConfigTemplate",
    "kubeadmconfigtemplates",
);
const GENERIC_MACHINE_TEMPLATE: Kind = Kind::new(
    INFRASTRUCTURE,
    "GenericMachineTemplate",
    "genericmachinetemplates",
);
pub(super) const GENERIC_CONTROL_PLANE: Kind = Kind::new(
    "controlplane.cluster.x-k8s.io",
    "GenericControlPlane",
    "genericcontrolplanes",
);
pub(super) const KUBEADM_CONTROL_PLANE: Kind = Kind::new(
    "controlplane.cluster.x-k8s.io",
    "KubeadmControlPlane",
    "kubeadmcontrolplanes",
);
const GENERIC_CLUSTER: Kind = Kind::new(INFRASTRUCTURE, "GenericCluster", "genericclusters");
const PLAIN_CLUSTER: Kind = Kind::new(INFRASTRUCTURE, "PlainCluster", "plainclusters");
pub(super) const AWS_CLUSTER: Kind = Kind::new(INFRASTRUCTURE, "AWSCluster", "awsclusters");
pub(super) const AWS_MACHINE: Kind = Kind::new(INFRASTRUCTURE, "AWSMachine", "awsmachines");
pub(super) const AWS_MACHINE_TEMPLATE: Kind =
    Kind::new(INFRASTRUCTURE, "AWSMachineTemplate", "awsmachinetemplates");

impl Kind {
    const fn new(group: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            kind,
            plural,
        }
    }

    /// The resource name for kubectl, with the group, because another group can contain the same kind.
    pub(super) fn resource(self) -> String {
        format!("{}.{}", self.plural, self.group)
    }
}

impl Contract {
    /// The API version in which objects are written.
    pub fn version(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
        }
    }

    pub(super) fn api_version(self, kind: Kind) -> String {
        format!("{}/{}", kind.group, self.version())
    }

    /// A reference to an object, as in a spec.
    pub(super) fn reference(self, kind: Kind, namespace: &str, name: &str) -> Value {
        match self {
            Self::V1Beta1 => json!({
                "apiVersion": self.api_version(kind), "kind": kind.kind,
                "namespace": namespace, "name": name,
            }),
            Self::V1Beta2 => json!({ "apiGroup": kind.group, "kind": kind.kind, "name": name }),
        }
    }

    /// The status of a ready Cluster.
    pub(super) fn cluster_status(self) -> Value {
        let mut status = match self {
            Self::V1Beta1 => json!({ "infrastructureReady": true, "controlPlaneReady": true }),
            Self::V1Beta2 => json!({
                "initialization": {
                    "infrastructureProvisioned": true, "controlPlaneInitialized": true,
                },
                "conditions": [condition("ControlPlaneInitialized")],
            }),
        };
        status["phase"] = json!("Provisioned");
        status
    }

    /// The status of a Machine or MachinePool that has its bootstrap data and its infrastructure.
    pub(super) fn machine_status(self) -> Value {
        match self {
            Self::V1Beta1 => json!({
                "bootstrapReady": true, "infrastructureReady": true,
                "conditions": [condition("BootstrapReady"), condition("InfrastructureReady")],
            }),
            Self::V1Beta2 => json!({
                "initialization": {
                    "bootstrapDataSecretCreated": true, "infrastructureProvisioned": true,
                },
                "conditions": [
                    condition("BootstrapConfigReady"), condition("InfrastructureReady"),
                ],
            }),
        }
    }

    /// The status of a KubeadmConfig.
    pub(super) fn bootstrap_status(self, secret: &str) -> Value {
        match self {
            Self::V1Beta1 => json!({ "ready": true, "dataSecretName": secret }),
            Self::V1Beta2 => json!({
                "initialization": { "dataSecretCreated": true }, "dataSecretName": secret,
            }),
        }
    }

    /// The status of a provisioned object of an infrastructure provider.
    pub(super) fn infrastructure_status(self) -> Value {
        match self {
            Self::V1Beta1 => json!({ "ready": true }),
            Self::V1Beta2 => json!({ "initialization": { "provisioned": true } }),
        }
    }
}

fn condition(kind: &str) -> Value {
    json!({
        "type": kind, "status": "True", "reason": "Ready", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}
