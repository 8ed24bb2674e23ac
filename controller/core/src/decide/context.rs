//! The context of decisions: one workload cluster.

use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::Audience;

use crate::crd::ExemptNodes;
use crate::inventory::Inventory;
use crate::ledger::RecordLedger;
use crate::request;
use crate::scope::Enforcement;
use crate::serving::ServingPolicy;
use crate::signer::Signer;
use crate::verifier::Verifiers;

/// The inputs to decisions on the requests in one workload cluster.
#[derive(Debug, Clone)]
pub struct Context {
    /// The verifiers, one for each authorized attestation provider.
    pub verifiers: Verifiers,
    /// The audiences that evidence for this cluster can have.
    pub audiences: Vec<Audience>,
    /// The machines of the cluster.
    pub inventory: Arc<dyn Inventory>,
    /// The ledger with the cluster's node names.
    pub ledger: Arc<RecordLedger>,
    /// The signer for the cluster's CA.
    pub signer: Arc<Signer>,
    /// The maximum validity of certificates.
    pub longest_lifetime: Duration,
    /// The Nodes that renew with the built-in signer of Kubernetes, without evidence.
    pub exempt_nodes: ExemptNodes,
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

    /// The names from [`signers`](Self::signers), except the signers for unavailable attestation providers, whose
    /// requests wait.
    pub fn available_signers(&self) -> Vec<String> {
        request::signers(&self.verifiers.available())
    }
}
