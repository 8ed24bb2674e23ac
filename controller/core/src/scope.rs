//! The requests of a cluster that the controller answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The requests that the controller answers beside those to the client signers of the admitted providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Duties {
    /// Kubelets' serving certificates: `kubernetes.io/kubelet-serving`, and
    /// `cluster.x-k8s.io/kubelet-serving-<provider>` of every admitted provider that has evidence.
    pub serving: bool,
    /// Requests to `kubernetes.io/kube-apiserver-client-kubelet`.
    pub built_in: KubeletSignerMode,
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
    /// The same, except for the renewal of a control-plane machine's certificate of kubeadm. That is
    /// approved, without evidence, for kube-controller-manager to sign.
    DenyExceptControlPlane,
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
