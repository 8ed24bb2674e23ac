//! `KubeletAuthentication`: the machines that can join a Cluster, and their evidence.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use kubelet_attestation::names::Provider;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::aws::AwsSettings;
use super::combinations;
use super::exempt_nodes::ExemptNodes;
use super::schema::{self, immutable, rule};
use super::tpm::TpmSettings;
use crate::lifetimes::{ATTESTED_SECONDS, INSECURE_SECONDS, MAX_SECONDS};

/// The evidence that the kubelets of a Cluster must send, and the certificates that they get. The object has the name
/// of the Cluster, so each Cluster has only one.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "attestation.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "KubeletAuthentication",
    plural = "kubeletauthentications",
    shortname = "kubeauth",
    category = "cluster-api",
    namespaced,
    status = "KubeletAuthenticationStatus",
    derive = "PartialEq",
    doc = "The evidence that the kubelets of one Cluster must send, and the certificates that they get.",
    label("clusterctl.cluster.x-k8s.io", ""),
    label("clusterctl.cluster.x-k8s.io/move", ""),
    label("cluster.x-k8s.io/v1beta1", "v1alpha1"),
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    validation = Rule::new("self.metadata.name == self.spec.clusterName")
        .message("must match metadata.name: a Cluster can have only one KubeletAuthentication")
        .field_path(".spec.clusterName"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether kubelets can get certificates"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "The reason of the condition Ready"
    ),
    printcolumn(
        name = "Attestors",
        type_ = "string",
        json_path = ".spec.authorizedAttestors",
        description = "The attestation providers whose evidence is accepted"
    ),
    printcolumn(
        name = "Paths Closed",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"AutoApprovePathsClosed\")].status",
        description = "True if no auto-approval path is open"
    ),
    printcolumn(
        name = "Nodes",
        type_ = "integer",
        json_path = ".status.identities.live",
        description = "The number of live node identities"
    ),
    printcolumn(
        name = "Earliest Expiry",
        type_ = "string",
        json_path = ".status.earliestExpiry",
        description = "The earliest expiry of a live node's certificate"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        description = "The message of the condition Ready",
        priority = "1"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = combinations::rules()))]
pub struct KubeletAuthenticationSpec {
    /// The name of the Cluster, in this namespace.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = schema::SUBDOMAIN),
        extend("x-kubernetes-validations" = [immutable()])
    )]
    pub cluster_name: String,
    /// The attestation providers whose evidence is accepted. `insecure` has no evidence: it must be the only entry,
    /// and the controller must run with --allow-insecure.
    #[schemars(
        length(min = 1, max = 8),
        inner(length(min = 1, max = 32), regex(pattern = schema::LABEL)),
        extend(
            "x-kubernetes-list-type" = "set",
            "x-kubernetes-validations" = [
                rule(
                    "!('insecure' in self) || size(self) == 1",
                    "insecure cannot be combined with other attestors, because machines could join without their evidence",
                ),
                rule("!('null' in self)", "null approves every request: it is only for tests"),
            ]
        )
    )]
    pub authorized_attestors: Vec<String>,
    /// Settings of certificates.
    #[serde(default)]
    pub certificate: CertificateSettings,
    /// The audiences that evidence can have, in addition to the digests of the Cluster's CA certificates.
    #[serde(default)]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 256), regex(pattern = schema::VISIBLE)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub audiences: Vec<String>,
    /// Whether attestation is enforced. `Report`: it is not enforced. A condition lists the kubeadm bindings that
    /// approve requests without evidence, and the Nodes without a node identity. An admission policy warns about
    /// requests that it would reject. `Remove`: when every Node has a node identity, the controller removes the
    /// bindings and keeps them removed, and the admission policy rejects these requests. `RemoveNow`: like `Remove`,
    /// but without waiting for the Nodes. Nodes without a node identity cannot renew, and the condition lists them. If
    /// unset: `Remove` with evidence, and `Report` with `insecure`. With `insecure`, an unset field does not end an
    /// enforcement that is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AutoApproveBindings")]
    pub auto_approve_bindings: Option<AutoApproveBindings>,
    /// The treatment of bootstrap tokens. `Manage`: while attestation is enforced, the controller keeps the token of a
    /// Machine valid as long as the Machine exists, and then makes it expire. If every authorized attestor uses
    /// evidence, the controller does the same for the token of a machine pool. `Ignore`: the controller does not change
    /// tokens.
    #[serde(default)]
    pub bootstrap_tokens: BootstrapTokens,
    /// Whether existing Nodes can be adopted. `Allow`: with their kubelet certificate and new evidence.
    /// `AllowWithoutEvidence`, only for `insecure`: with only that certificate. `Recover`: only Nodes whose node
    /// identity was lost, with a certificate from this controller and new evidence. If unset: `Allow` with evidence,
    /// and `Refuse` with `insecure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Adoption")]
    pub adoption: Option<Adoption>,
    /// Nodes that renew their certificates with the built-in signer of Kubernetes, without evidence, until they have a
    /// node identity. Enforcement does not wait for them. An entry is the name of a Node without the plugin, such as a
    /// Windows node or a virtual kubelet. The entry `ControlPlane` means the nodes of control-plane Machines, because
    /// kubeadm issued the certificate of the first of these nodes. If unset: `ControlPlane` if every attestor
    /// uses evidence, and at least one of autoApproveBindings and adoption is also unset; otherwise, no Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "Vec<String>",
        length(max = 64),
        inner(length(min = 1, max = 253), regex(pattern = schema::NODE_OR_CONTROL_PLANE)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub exempt_nodes: Option<Vec<String>>,
    /// Whether serving certificates can have addresses that the machine itself reports, but its infrastructure does
    /// not. `Allow` requires servingAddressRanges.
    #[serde(default)]
    pub guest_reported_addresses: GuestReportedAddresses,
    /// The ranges, in CIDR notation, for the IP addresses of serving certificates, regardless of their source. DNS
    /// names are not limited. A range never permits an address that does not belong to the machine. If empty, the
    /// addresses are not limited.
    #[serde(default)]
    #[schemars(schema_with = "schema::address_ranges")]
    pub serving_address_ranges: Vec<String>,
    /// Settings of the attestation provider `aws`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<AwsSettings>,
    /// Settings of the attestation provider `tpm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TpmSettings>,
}

impl KubeletAuthenticationSpec {
    /// Creates a spec with these attestation providers for this Cluster, and the defaults.
    pub fn new(cluster_name: &str, authorized_attestors: &[&str]) -> Self {
        let attestors = authorized_attestors.iter().copied();
        Self {
            cluster_name: cluster_name.to_owned(),
            authorized_attestors: attestors.map(String::from).collect(),
            ..Self::default()
        }
    }

    /// The mode of enforcement: from the spec, or the default for its attestation providers.
    pub fn mode(&self) -> AutoApproveBindings {
        let default = if self.has_evidence() {
            AutoApproveBindings::Remove
        } else {
            AutoApproveBindings::Report
        };
        self.auto_approve_bindings.unwrap_or(default)
    }

    /// Whether existing Nodes can be adopted: from the spec, or the default for its attestation providers.
    ///
    /// The schema of earlier versions wrote `Refuse` into every object, so no stored object changes.
    pub fn adopts(&self) -> Adoption {
        let default = if self.has_evidence() {
            Adoption::Allow
        } else {
            Adoption::Refuse
        };
        self.adoption.unwrap_or(default)
    }

    /// The exempt Nodes: from the spec, or the default for its attestation providers.
    ///
    /// The schema of the first versions wrote `autoApproveBindings` and `adoption` into every object, and did not have
    /// `exemptNodes`. Therefore an object with the first two fields does not exempt any Node by default, so no stored
    /// object changes.
    pub fn exempt(&self) -> ExemptNodes {
        let can_be_earlier = self.auto_approve_bindings.is_some() && self.adoption.is_some();
        let default =
            (self.has_evidence() && !can_be_earlier).then_some(ExemptNodes::CONTROL_PLANE);
        match &self.exempt_nodes {
            Some(entries) => entries.iter().collect(),
            None => default.into_iter().collect(),
        }
    }

    /// Whether machines send evidence to each authorized attestation provider.
    fn has_evidence(&self) -> bool {
        let without = [Provider::INSECURE, Provider::NULL];
        let mut attestors = self.authorized_attestors.iter();
        !attestors.any(|one| without.iter().any(|without| one == without.as_str()))
    }

    /// The maximum validity of certificates: from the spec, or the default for its attestation providers.
    pub fn longest_lifetime(&self) -> Duration {
        let configured = self.certificate.expiration_seconds;
        let mut attestors = self.authorized_attestors.iter();
        let seconds = if attestors.any(|one| one == Provider::INSECURE.as_str()) {
            // A certificate for `insecure` cannot be renewed. With this default of earlier versions, it would expire
            // after a week.
            let configured = configured.filter(|seconds| *seconds != ATTESTED_SECONDS);
            configured.unwrap_or(INSECURE_SECONDS)
        } else {
            configured.unwrap_or(ATTESTED_SECONDS)
        };
        Duration::from_secs(seconds.into())
    }
}

/// Settings of certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSettings {
    /// The maximum validity of certificates, in seconds. A node can request a shorter validity. With evidence, the
    /// default is 604800 (7 days), and the maximum is 2592000 (30 days). With `insecure`, which cannot renew, the
    /// default is 31536000 (365 days), and the maximum is 31622400 (366 days). With `insecure`, 604800 also means the
    /// default, because earlier versions wrote it into every object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 600, max = MAX_SECONDS))]
    pub expiration_seconds: Option<u32>,
}

/// Declares an enum of settings. The first variant is the default, unless the field is optional.
macro_rules! choice {
    (
        $(#[$attribute:meta])* $name:ident {
            $(#[$first_attribute:meta])* $first:ident,
            $($(#[$variant_attribute:meta])* $variant:ident),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
        pub enum $name {
            $(#[$first_attribute])*
            #[default]
            $first,
            $($(#[$variant_attribute])* $variant),+
        }
    };
}

choice! {
    /// Whether attestation is enforced: kubeadm's bindings approve requests without evidence.
    AutoApproveBindings {
        /// It is not enforced. A condition lists the bindings, and the Nodes without a node identity. An admission
        /// policy warns about requests that it would reject. Nodes join and renew as before.
        Report,
        /// It is enforced when every Node has a node identity. Then the controller removes the bindings and keeps them
        /// removed, and the admission policy rejects requests.
        Remove,
        /// It is enforced immediately. Nodes without a node identity cannot renew their certificates.
        RemoveNow,
    }
}

choice! {
    /// The treatment of bootstrap tokens.
    BootstrapTokens {
        /// While attestation is enforced, the token of a Machine remains valid as long as the Machine exists.
        Manage,
        /// The controller does not change tokens.
        Ignore,
    }
}

choice! {
    /// Whether existing Nodes can be adopted.
    Adoption {
        /// They keep their certificates, and do not get certificates from this controller.
        Refuse,
        /// With their kubelet certificate and fresh evidence.
        Allow,
        /// With only their kubelet certificate, once for each Node. Only for `insecure`.
        AllowWithoutEvidence,
        /// Only with a certificate from this controller and fresh evidence, if the node identity was lost or comes from
        /// a backup.
        Recover,
    }
}

choice! {
    /// Whether serving certificates can have addresses that only the machine itself reports.
    GuestReportedAddresses {
        /// Only addresses that the infrastructure reports.
        Refuse,
        /// Addresses that the infrastructure or the machine reports.
        Allow,
    }
}

/// The state that the controller observed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletAuthenticationStatus {
    /// The `metadata.generation` that the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The signer name that kubelets use for their client certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 571))]
    pub kubelet_client_certificate_signer: Option<String>,
    /// The signer name that kubelets use for their serving certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 571))]
    pub kubelet_serving_certificate_signer: Option<String>,
    /// The earliest expiry of a live node's certificate that has not expired. Monitor this value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub earliest_expiry: Option<Time>,
    /// The number of node identities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identities: Option<IdentityCounts>,
    /// Conditions of the Cluster's authentication.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// The number of a Cluster's node identities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IdentityCounts {
    /// The number of live node identities, whose nodes hold their names.
    #[schemars(with = "i32", range(min = 0))]
    pub live: u32,
    /// The number of retired node identities, whose nodes no longer exist.
    #[schemars(with = "i32", range(min = 0))]
    pub tombstones: u32,
}

#[cfg(test)]
mod tests;
