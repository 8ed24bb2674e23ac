//! Which requests of a cluster are ours to answer, and who signs.

use std::sync::Arc;

use crate::signer::Signer;

/// Who signs what is approved.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Issuance {
    /// We do, with the cluster's CA.
    Sign(Arc<Signer>),
    /// kube-controller-manager does, where the CA's key is not to be had. Nodes ask the built-in
    /// client signer ([`BuiltIn::ApproveOnly`]), and their certificates carry no UID: a node is
    /// known by its name, its record and its evidence, and cannot be revoked.
    ApproveOnly,
}

impl Issuance {
    /// The cluster's CA, where we have its key.
    pub fn signer(&self) -> Option<&Signer> {
        match self {
            Self::Sign(signer) => Some(signer),
            Self::ApproveOnly => None,
        }
    }
}

/// What is ours to answer beside the client signers of the admitted providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::exhaustive_structs, reason = "every caller writes one out")]
pub struct Duties {
    /// Kubelets' serving certificates: `kubernetes.io/kubelet-serving`, and
    /// `cluster.x-k8s.io/kubelet-serving-<provider>` of every admitted provider that has evidence.
    pub serving: bool,
    /// Requests to `kubernetes.io/kube-apiserver-client-kubelet`.
    pub built_in: BuiltIn,
    /// Approve the renewal of a control-plane machine's certificate of kubeadm by the built-in
    /// client signer, which has no evidence. Without effect where `built_in` is
    /// [`BuiltIn::Ignore`].
    pub control_plane_renewal: bool,
}

/// What becomes of a request to the built-in client signer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BuiltIn {
    /// It is not ours.
    #[default]
    Ignore,
    /// It is denied. Left pending, it would be approved by kube-controller-manager as soon as
    /// somebody restores the binding for that.
    Deny,
    /// With evidence it goes through every check and is approved, for kube-controller-manager to
    /// sign; without, it is denied.
    ApproveOnly,
}
