//! The custom resource that stores a node identity.

use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::schema::{self, immutable, rule_at};
use super::system_time;

/// The machine that holds a node name in a Cluster. The controller creates this object when a machine first claims the
/// name.
///
/// The name of the object is `<cluster>.<node name>`. A name that is too long or ambiguous is truncated, and contains a
/// digest. Therefore exactly one object exists for each Cluster and node name.
// Missing values in the spec are serialized as null, so a merge patch of a node identity clears the values of the
// previous holder. An API server drops a null before it validates the object.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "attestation.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "NodeIdentity",
    plural = "nodeidentities",
    shortname = "nodeid",
    category = "cluster-api",
    namespaced,
    status = "NodeIdentityStatus",
    derive = "PartialEq",
    doc = "The machine that holds a node name in a Cluster. The controller creates this object when a machine first \
           claims the name.",
    label("clusterctl.cluster.x-k8s.io", ""),
    label("clusterctl.cluster.x-k8s.io/move", ""),
    label("cluster.x-k8s.io/v1beta1", "v1alpha1"),
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    validation = Rule::new(
        "self.metadata.name == self.spec.clusterName + '.' + self.spec.nodeName \
         || self.metadata.name.matches('^[-a-z0-9]{64,}([.]|$)')"
    )
    .message("must follow the Cluster's name in the object's name: a node name has one NodeIdentity")
    .field_path(".spec.nodeName"),
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".spec.clusterName"
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".spec.nodeName"
    ),
    printcolumn(
        name = "Provider ID",
        type_ = "string",
        json_path = ".spec.providerID",
        description = "The machine that holds the name"
    ),
    printcolumn(
        name = "Attestor",
        type_ = "string",
        json_path = ".spec.attestor",
        description = "The attestation provider that verified the machine"
    ),
    printcolumn(
        name = "Gen",
        type_ = "integer",
        json_path = ".spec.generation",
        description = "The generation number of the node name, starting at 1"
    ),
    printcolumn(
        name = "Revoked",
        type_ = "integer",
        json_path = ".spec.revoked.generation",
        description = "The last generation whose certificates were revoked"
    ),
    printcolumn(
        name = "Retired",
        type_ = "string",
        json_path = ".spec.tombstone.reason",
        description = "The reason why the name no longer has a holder"
    ),
    printcolumn(
        name = "Expires",
        type_ = "string",
        json_path = ".status.notAfter",
        description = "The expiry of the last certificate"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Machine",
        type_ = "string",
        json_path = ".spec.machineName",
        description = "The name of the Machine at the time of the claim",
        priority = "1"
    ),
    printcolumn(
        name = "Opened By",
        type_ = "string",
        json_path = ".spec.opened.requestName",
        description = "The CertificateSigningRequest that opened the generation",
        priority = "1"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    in_one_generation(".providerID", "self.providerID == oldSelf.providerID"),
    in_one_generation(".attestor", "self.attestor == oldSelf.attestor"),
    in_one_generation(
        ".tpmBoot",
        "(has(self.tpmBoot) ? has(oldSelf.tpmBoot) && self.tpmBoot == oldSelf.tpmBoot : !has(oldSelf.tpmBoot))",
    ),
    in_one_generation(".opened.keySHA256", "self.opened.keySHA256 == oldSelf.opened.keySHA256"),
    rule_at(
        ".revoked.generation",
        "!has(self.revoked) || self.revoked.generation <= self.generation",
        "a generation after the current one cannot be revoked",
    ),
    rule_at(
        ".supersededGeneration",
        "!has(self.supersededGeneration) || self.supersededGeneration < self.generation",
        "must be a generation before the current one",
    ),
    rule_at(
        ".formerUntil",
        "!has(self.formerUntil) || self.generation > 1",
        "the first generation has no earlier generation",
    ),
]))]
pub struct NodeIdentitySpec {
    /// The name of the Cluster, in this namespace.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = schema::SUBDOMAIN),
        extend("x-kubernetes-validations" = [immutable()])
    )]
    pub cluster_name: String,
    /// The name of the Node.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = schema::SUBDOMAIN),
        extend("x-kubernetes-validations" = [immutable()])
    )]
    pub node_name: String,
    /// 16 random bytes in hexadecimal digits. This value does not change when the Cluster is moved. Every certificate
    /// contains this value and the generation.
    #[schemars(
        length(max = 32),
        regex(pattern = "^[0-9a-f]{32}$"),
        extend("x-kubernetes-validations" = [immutable()])
    )]
    pub uid: String,
    /// The provider ID of the machine in Cluster API.
    #[serde(rename = "providerID")]
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = "^[A-Za-z0-9+.-]+://[!-~]+$")
    )]
    pub provider_id: String,
    /// The attestation provider that verified the machine; `insecure` for a machine without evidence.
    #[schemars(length(min = 1, max = 32), regex(pattern = schema::LABEL))]
    pub attestor: String,
    /// The ID of the instance in its cloud.
    #[schemars(length(min = 1, max = 256), regex(pattern = schema::VISIBLE))]
    pub instance: Option<String>,
    /// The name of the Machine at the time of the claim. This field is only informational.
    #[schemars(length(min = 1, max = 253), regex(pattern = schema::SUBDOMAIN))]
    pub machine_name: Option<String>,
    /// The SHA-256 of the public key (SPKI) of the TPM's endorsement key.
    #[serde(rename = "endorsementKeySHA256")]
    #[schemars(length(max = 64), regex(pattern = schema::SHA256))]
    pub endorsement_key_sha256: Option<String>,
    /// The TPM's start counters and clock at the time of the claim. Lower values show that the TPM was copied or
    /// cleared.
    pub tpm_boot: Option<TpmBoot>,
    /// The generation number of the node name, starting at 1. Certificates of earlier generations are invalid.
    #[schemars(
        with = "i64",
        range(min = 1),
        extend("x-kubernetes-validations" = [schema::rule("self >= oldSelf", "can only increase")])
    )]
    pub generation: u64,
    /// The request that opened this generation.
    pub opened: Opened,
    /// The latest possible expiry of the certificate that opened this generation.
    #[schemars(schema_with = "schema::time")]
    pub not_after: Time,
    /// The expiry time of the last certificate from an earlier generation.
    #[serde(default)]
    #[schemars(schema_with = "schema::time")]
    pub former_until: Option<Time>,
    /// The expiry of the last renewed certificate. The controller can update this value up to 1 day late.
    #[serde(default)]
    #[schemars(schema_with = "schema::time")]
    pub renewed_until: Option<Time>,
    /// The start counters and clock of the machine's TPM when the last certificate was issued.
    #[serde(default)]
    pub last_tpm_boot: Option<LastTpmBoot>,
    /// The previous generation. Its certificates remain valid until the node uses a certificate of the current
    /// generation. Set if the machine sent stronger evidence with a renewal.
    #[serde(default)]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub superseded_generation: Option<u64>,
    /// Set when the name no longer has a holder. The node identity is kept as long as one of its certificates can be
    /// valid.
    pub tombstone: Option<Tombstone>,
    /// Set after an operator or a new holder of the name has revoked the certificates.
    pub revoked: Option<Revoked>,
}

/// A rule that applies only within a generation of the node identity.
fn in_one_generation(field: &str, unchanged: &str) -> Value {
    let rule = format!("self.generation > oldSelf.generation || {unchanged}");
    rule_at(field, &rule, "cannot be changed within a generation")
}

/// The key and the request that opened a generation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Opened {
    /// The SHA-256 of the public key (SPKI).
    #[serde(rename = "keySHA256")]
    #[schemars(length(max = 64), regex(pattern = schema::SHA256))]
    pub key_sha256: String,
    /// The name of the `CertificateSigningRequest`.
    #[schemars(length(min = 1, max = 253), regex(pattern = schema::VISIBLE))]
    pub request_name: String,
    /// The UID of the `CertificateSigningRequest`.
    #[serde(rename = "requestUID")]
    #[schemars(length(min = 1, max = 64), regex(pattern = schema::VISIBLE))]
    pub request_uid: String,
    /// The time of the claim.
    #[schemars(schema_with = "schema::time")]
    pub time: Time,
    /// The UID of the Node of the previous holder, which the controller deletes.
    #[serde(rename = "staleNodeUID")]
    #[schemars(length(min = 1, max = 64), regex(pattern = schema::VISIBLE))]
    pub stale_node_uid: Option<String>,
}

/// A TPM's start counters and clock. A later boot has greater values ("TPM 2.0 Library, Part 2", `TPMS_CLOCK_INFO`).
/// They decrease only after `TPM2_Clear`, or in an earlier copy of the TPM.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
pub struct TpmBoot {
    /// The number of resets.
    #[serde(rename = "resetCount")]
    #[schemars(with = "i64", range(min = 0))]
    pub resets: u32,
    /// The number of restarts and resumes since the last reset.
    #[serde(rename = "restartCount")]
    #[schemars(with = "i64", range(min = 0))]
    pub restarts: u32,
    // The clock can decrease after a power loss, but `resets` then increases.
    /// The clock of the TPM, in milliseconds.
    #[serde(serialize_with = "within_schema")]
    #[schemars(with = "i64", range(min = 0))]
    pub clock: u64,
}

/// Limits the clock to 63 bits, the maximum of the schema. No real clock reaches this value.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn within_schema<S: Serializer>(clock: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64((*clock).min(i64::MAX.unsigned_abs()))
}

/// The start counters and clock of a TPM when the last certificate of a generation was issued.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastTpmBoot {
    /// The generation of the certificate.
    #[schemars(with = "i64", range(min = 1))]
    pub generation: u64,
    /// The time when the certificate was issued. This field is always set in the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub time: Option<Time>,
    /// The start counters and clock of the TPM.
    pub boot: TpmBoot,
}

/// The retirement of a node identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule_at(".until", "self.since <= self.until", "must not be before since"),
]))]
pub struct Tombstone {
    /// The time at which the name lost its holder.
    #[serde(with = "system_time")]
    #[schemars(schema_with = "schema::time")]
    pub since: SystemTime,
    /// The reason: the Machine was deleted, has a different name, or its Cluster no longer has a
    /// `KubeletAuthentication`.
    pub reason: TombstoneReason,
    /// The expiry of the last certificate. The node identity can be deleted after this time.
    #[serde(with = "system_time")]
    #[schemars(schema_with = "schema::time")]
    pub until: SystemTime,
}

/// The reason for the retirement of a node identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum TombstoneReason {
    /// The Machine is gone.
    MachineGone,
    /// The machine now has a different name.
    Renamed,
    /// The Cluster no longer has a `KubeletAuthentication`.
    Unmanaged,
}

/// The revocation of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revoked {
    /// The last revoked generation. All earlier generations are also revoked.
    #[schemars(with = "i64", range(min = 1))]
    pub generation: u64,
    /// The time of the revocation.
    #[serde(with = "system_time")]
    #[schemars(schema_with = "schema::time")]
    pub at: SystemTime,
}

/// The last certificate of the node, for operators. This status is lost when the Cluster is moved, and no decision
/// depends on it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeIdentityStatus {
    /// The serial number of the last certificate, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = "^[0-9a-f]+$"))]
    pub serial: Option<String>,
    /// The expiry of the last certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub not_after: Option<Time>,
    /// The time of the last renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_renewal: Option<Time>,
    /// The start counters and clock of the machine's TPM at the time of the last renewal. Only earlier versions wrote
    /// this field, which is now in the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_tpm_boot: Option<LastTpmBoot>,
    /// The generation of a certificate that the node presented with evidence. The node identity does not contain this
    /// generation, because the node identity was restored from a backup. `identities restored` resets such a node
    /// identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub presented_generation: Option<u64>,
    /// Conditions of the node identity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
