//! The annotations of the custom resources, and of Machines.

/// The annotation on a `KubeletAuthentication` with which an operator permits the controller to retire more node
/// identities than usual. Its value is the number of node identities that one sweep is allowed to retire because their
/// Machines are missing. Node identities of Machines whose deletion the controller observed do not count.
pub const ALLOW_RETIREMENT_ANNOTATION: &str = "attestation.cluster.x-k8s.io/allow-retirement";

/// The annotation on a `KubeletAuthentication` that stores the first AWS account of the Cluster's identity. After an
/// operator removes the annotation, the controller accepts a different account.
pub const AWS_ACCOUNT_ANNOTATION: &str = "attestation.cluster.x-k8s.io/aws-account";

/// The annotation on each `KubeletAuthentication` that the controller created because of an annotation on the
/// Cluster. A `KubeletAuthentication` without this annotation was created by an operator.
///
/// Neither the owner nor the field manager identifies the creator: an operator can set the owner, and `clusterctl move`
/// drops the field manager.
pub const ENABLED_BY_ANNOTATION: &str = "attestation.cluster.x-k8s.io/enabled-by";

/// The annotation on a Machine with the ID of a bootstrap token that an operator assigned to the Machine, in addition
/// to the token in its `KubeadmConfig`.
pub const BOOTSTRAP_TOKEN_ANNOTATION: &str = "attestation.cluster.x-k8s.io/bootstrap-token-id";

/// The annotation on a `NodeIdentity` with which an operator resets the node identity, so that the next claim can
/// take the name.
///
/// Its value is the generation to reset. Therefore an annotation that is applied again or restored does not affect a
/// later generation.
pub const RESET_ANNOTATION: &str = "attestation.cluster.x-k8s.io/reset";

/// The annotation on a `KubeletAuthentication` with the lowest valid generation for all node identities, in seconds
/// since 1970. The value can only increase: a value that is lower than the value in the workload cluster has no effect.
pub const LOWEST_VALID_GENERATION_ANNOTATION: &str =
    "attestation.cluster.x-k8s.io/lowest-valid-generation";

/// The annotation on a `KubeletAuthentication` with the revoked machines that an operator released, each as
/// `<provider ID>@<Unix seconds>`, separated by spaces. Revocations up to that time no longer affect the machine.
pub const RELEASED_MACHINES_ANNOTATION: &str = "attestation.cluster.x-k8s.io/released-machines";

/// The annotation on a `NodeIdentity` or a `KubeletAuthentication` with the name of the user who last changed it
/// with `identities`, for example to revoke or reset a node identity. An admission policy checks the name.
pub const CHANGED_BY_ANNOTATION: &str = "attestation.cluster.x-k8s.io/changed-by";

/// The annotation on a `KubeletAuthentication` with the UID of the namespace `kube-system` in the first workload
/// cluster that the controller served for this object. A different UID shows that the Cluster was created again.
pub const WORKLOAD_UID_ANNOTATION: &str = "attestation.cluster.x-k8s.io/workload-uid";
