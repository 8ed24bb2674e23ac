//! The context of decisions: one workload cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::{Audience, NodeName};

use crate::crd::BuiltInRenewal;
use crate::inventory::Inventory;
use crate::ledger::RecordLedger;
use crate::request;
use crate::scope::Enforcement;
use crate::serving::ServingPolicy;
use crate::signer::Signer;
use crate::verifier::Verifiers;

/// The inputs of decisions on the requests in one workload cluster.
#[derive(Debug, Clone)]
pub struct Context {
    /// The verifiers, one for each authorized attestation provider.
    pub verifiers: Verifiers,
    /// The audiences of this cluster.
    pub audiences: Vec<Audience>,
    /// The machines of the cluster.
    pub inventory: Arc<dyn Inventory>,
    /// The ledger of the cluster's node names.
    pub ledger: Arc<RecordLedger>,
    /// The signer, with the cluster's CA.
    pub signer: Arc<Signer>,
    /// The maximum validity of certificates.
    pub longest_lifetime: Duration,
    /// Whether the built-in signer of Kubernetes can renew certificates without evidence.
    pub built_in_renewal: BuiltInRenewal,
    /// The Nodes that renew with the built-in signer of Kubernetes, without evidence.
    pub exempt_nodes: BTreeSet<NodeName>,
    /// Whether nodes without a node identity are prevented from using the built-in signers.
    pub enforcement: Enforcement,
    /// The names and addresses that serving certificates must not contain.
    pub serving: ServingPolicy,
}

impl Context {
    /// The names of the signers whose requests the controller watches and answers.
    pub fn signers(&self) -> Vec<String> {
        request::signers(&self.verifiers)
    }

    /// Whether a node can renew with the built-in signer of Kubernetes.
    pub(super) fn has_exceptions(&self) -> bool {
        self.built_in_renewal == BuiltInRenewal::ControlPlane || !self.exempt_nodes.is_empty()
    }

    /// The same signer names, without the signers of unavailable attestation providers, whose requests wait.
    pub fn available_signers(&self) -> Vec<String> {
        request::signers(&self.verifiers.available())
    }
}
