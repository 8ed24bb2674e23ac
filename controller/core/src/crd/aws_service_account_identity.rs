//! `AWSServiceAccountIdentity`: an AWS role that a service account in the same namespace assumes.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An AWS role that the controller uses for EC2 calls, for Clusters in this namespace that refer to this object. The
/// service account with the same name in this namespace uses its token to assume the role.
///
/// The fields follow the proposal "CAPA: Multi-tenancy" of Cluster API Provider AWS. No other project implements the
/// proposal.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "AWSServiceAccountIdentity",
    plural = "awsserviceaccountidentities",
    shortname = "awssai",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    doc = "An AWS role that the service account with the same name and namespace assumes.",
    label("clusterctl.cluster.x-k8s.io", ""),
    label("clusterctl.cluster.x-k8s.io/move", ""),
    printcolumn(
        name = "Role",
        type_ = "string",
        json_path = ".spec.roleARN",
        description = "The ARN of the role"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct AWSServiceAccountIdentitySpec {
    /// The ARN of the role. The role's trust policy must name the OIDC provider of the management cluster, and the
    /// service account.
    #[serde(rename = "roleARN")]
    #[schemars(
        length(max = 2048),
        regex(pattern = "^arn:[a-z-]+:iam::[0-9]{12}:role/[!-~]+$")
    )]
    pub role_arn: String,
    /// The name of the session. If empty, the controller derives a name from the name of this object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64), regex(pattern = r"^([\w+=,.@-]{2,64})?$"))]
    pub session_name: String,
    /// The validity of the session, in seconds.
    #[serde(default = "an_hour")]
    #[schemars(range(min = 900, max = 43200))]
    pub duration_seconds: i64,
    /// An inline session policy, in JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2048))]
    pub inline_policy: String,
    /// The ARNs of managed session policies.
    #[serde(rename = "policyARNs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 10),
        inner(length(max = 2048), regex(pattern = "^arn:[!-~]+$"))
    )]
    pub policy_arns: Vec<String>,
    /// The audiences of the token.
    #[serde(default = "sts")]
    #[schemars(length(min = 1, max = 8), inner(length(min = 1, max = 253)))]
    pub audiences: Vec<String>,
    /// The validity of the token, in seconds.
    #[serde(default = "a_day")]
    #[schemars(range(min = 600, max = 86400))]
    pub expiration_seconds: i64,
}

fn an_hour() -> i64 {
    3600
}

fn sts() -> Vec<String> {
    vec!["sts.amazonaws.com".to_owned()]
}

fn a_day() -> i64 {
    86400
}
