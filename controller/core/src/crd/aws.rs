//! Settings of the attestation provider `aws`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Settings of the attestation provider `aws`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsSettings {
    /// The AWS accounts in which machines can be. If empty, machines can be only in the account of the AWS credentials
    /// for the Cluster.
    #[schemars(
        length(max = 64),
        inner(length(max = 12), regex(pattern = "^[0-9]{12}$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub accounts: Vec<String>,
    /// The AWS regions in which machines can be. If empty, machines can be in every region.
    #[schemars(
        length(max = 64),
        inner(length(max = 32), regex(pattern = "^[a-z]{2}(-[a-z]+)+-[0-9]{1,2}$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub regions: Vec<String>,
    /// The name that the Node of an instance must have. `InstanceID` is safer, because AWS never reuses an instance ID.
    pub node_name: AwsNodeName,
    /// Whether the instance must run from the root volume with which it was launched.
    pub root_volume_check: bool,
    /// Tags that an instance must have, with their values.
    #[schemars(schema_with = "schema::tags")]
    pub required_tags: BTreeMap<String, String>,
    /// The `AWSServiceAccountIdentity` in this namespace that the controller uses for EC2 calls, instead of the
    /// identity in the Cluster's objects.
    #[schemars(length(min = 1, max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_identity: Option<String>,
}

impl Default for AwsSettings {
    fn default() -> Self {
        Self {
            accounts: Vec::new(),
            regions: Vec::new(),
            node_name: AwsNodeName::PrivateDnsName,
            root_volume_check: true,
            required_tags: BTreeMap::new(),
            service_account_identity: None,
        }
    }
}

/// The name that the Node of an instance must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum AwsNodeName {
    /// The private DNS name.
    #[default]
    #[serde(rename = "PrivateDNSName")]
    PrivateDnsName,
    /// The instance's ID.
    #[serde(rename = "InstanceID")]
    InstanceId,
}
