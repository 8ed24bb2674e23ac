//! `RevokedNodeCredentials`: the certificates that may no longer write.

use std::collections::BTreeMap;
use std::time::SystemTime;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{schema, system_time};

/// The name of the one object of a workload cluster.
pub const REVOKED_NODE_CREDENTIALS: &str = "node-attestation-controller";

/// The most records that it lists: what fits in one object of etcd (1.5 MiB), with a margin.
pub const MAX_REVOKED: usize = 10_000;

/// The node certificates whose holders an admission policy refuses every write.
///
/// Written by the node-attestation-controller, on the workload cluster; a change by hand is undone.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "attestation.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "RevokedNodeCredentials",
    singular = "revokednodecredentials",
    plural = "revokednodecredentials",
    shortname = "revokednodecred",
    derive = "PartialEq",
    doc = "The node certificates whose holders an admission policy refuses every write.",
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
pub struct RevokedNodeCredentialsSpec {
    /// By the UID of a record, which of its generations are revoked. A certificate's UID is
    /// `<record>.<generation>`.
    #[serde(default)]
    #[schemars(schema_with = "schema::revoked")]
    pub revoked: BTreeMap<String, RevokedGenerations>,
}

/// The revoked generations of one record: all before the lowest valid one.
///
/// One value covers every generation that there ever was, so none can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RevokedGenerations {
    /// The lowest generation whose certificates are valid.
    #[serde(rename = "lowestValidGeneration")]
    pub lowest_valid: u64,
    /// The end of the last certificate of the generations before it; then the entry goes.
    #[serde(with = "system_time")]
    pub until: SystemTime,
}
