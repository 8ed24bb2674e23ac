//! The requests of a cluster that the controller answers, and their signer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::signer::Signer;

/// The signer of approved requests.
#[derive(Debug, Clone)]
pub enum Issuance {
    /// We do, with the cluster's CA.
    Sign(Arc<Signer>),
    /// kube-controller-manager does, where the CA's key is not to be had. Nodes ask the built-in
    /// client signer ([`KubeletSignerMode::ApproveOnly`]), and their certificates carry no UID: a node is
    /// known by its name, its record and its evidence, and cannot be revoked.
    ApproveOnly,
}

/// The requests that the controller answers beside those to the client signers of the admitted providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Duties {
    /// Kubelets' serving certificates: `kubernetes.io/kubelet-serving`, and
    /// `cluster.x-k8s.io/kubelet-serving-<provider>` of every admitted provider that has evidence.
    pub serving: bool,
    /// Requests to `kubernetes.io/kube-apiserver-client-kubelet`.
    pub built_in: KubeletSignerMode,
    /// Approve the renewal of a control-plane machine's certificate of kubeadm by the built-in
    /// client signer, which has no evidence. Without effect where `built_in` is
    /// [`KubeletSignerMode::Ignore`].
    pub control_plane_renewal: bool,
}

/// The treatment of requests to the built-in client signer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KubeletSignerMode {
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

/// Whether attestation is enforced: on, unless whoever looks after a cluster says otherwise. All
/// clones say the same.
///
/// While it is off, nodes that have no record go on as before: their requests to Kubernetes' own
/// signers are left alone.
#[derive(Debug, Clone)]
pub struct Enforcement(Arc<AtomicBool>);

impl Default for Enforcement {
    fn default() -> Self {
        Self::new(true)
    }
}

impl Enforcement {
    /// On or off from the beginning.
    pub fn new(is_on: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_on)))
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Turns it on or off, from the next request on.
    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }
}
