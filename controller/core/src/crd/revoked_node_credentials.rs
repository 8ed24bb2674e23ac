//! `RevokedNodeCredentials`: the certificates that are no longer accepted for writes.

use std::collections::BTreeMap;
use std::time::SystemTime;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{schema, system_time};

/// The name of the only object of this kind in a workload cluster.
pub const REVOKED_NODE_CREDENTIALS: &str = "node-attestation-controller";

/// The revoked node certificates: an admission policy refuses every write from their holders.
///
/// The controller writes this object on the workload cluster, and reverts manual changes.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "attestation.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "RevokedNodeCredentials",
    singular = "revokednodecredentials",
    plural = "revokednodecredentials",
    shortname = "revokednodecred",
    derive = "PartialEq",
    doc = "The revoked node certificates: an admission policy refuses every write from their holders.",
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct RevokedNodeCredentialsSpec {
    /// The revoked generations, by the UID of their node identity. The UID in a certificate is `<UID of the node
    /// identity>.<generation>`.
    #[serde(default)]
    #[schemars(schema_with = "schema::revoked")]
    pub revoked: BTreeMap<String, RevokedGenerations>,
    /// The lowest valid generation of all node identities, in seconds since 1970. All earlier generations are revoked,
    /// either by an operator or because the Cluster was recreated with the same CA. The value can only increase.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(with = "i64", range(min = 0))]
    pub lowest_valid_generation: u64,
    /// The keys that an operator revoked, each with its machine. The name of an entry is the SHA-256 of the public key
    /// (SPKI).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::revoked_keys")]
    pub revoked_keys: BTreeMap<String, RevokedKey>,
}

/// A key whose certificates an operator revoked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevokedKey {
    /// The name of the Node.
    pub node_name: String,
    /// The generation that the key opened.
    pub generation: u64,
    /// The provider ID of the machine. The machine does not get a certificate until an operator releases the machine.
    #[serde(
        rename = "providerID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub provider_id: Option<String>,
    /// The time of the revocation.
    #[serde(with = "system_time")]
    pub revoked_at: SystemTime,
    /// The expiry of the last certificate. The controller removes the entry after this time.
    #[serde(with = "system_time")]
    pub until: SystemTime,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(generation: &u64) -> bool {
    *generation == 0
}

/// The revoked generations of one node identity: all generations before the lowest valid one.
///
/// One value covers all earlier generations, so no generation can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RevokedGenerations {
    /// The lowest valid generation.
    #[serde(rename = "lowestValidGeneration")]
    pub lowest_valid: u64,
    /// The expiry time of the last certificate from an earlier generation. The controller removes the entry after this
    /// time.
    #[serde(with = "system_time")]
    pub until: SystemTime,
}
