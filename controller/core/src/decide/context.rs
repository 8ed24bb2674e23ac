//! The cluster whose requests are decided.

use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::Audience;

use crate::crd::BuiltInRenewal;
use crate::inventory::Inventory;
use crate::ledger::RecordLedger;
use crate::request;
use crate::scope::Enforcement;
use crate::serving::ServingPolicy;
use crate::signer::Signer;
use crate::verifier::Verifiers;

/// All that a decision needs to know about one workload cluster.
#[derive(Debug, Clone)]
pub struct Context {
    /// The verifiers, one for each provider that the cluster admits.
    pub verifiers: Verifiers,
    /// The audiences that mean this cluster.
    pub audiences: Vec<Audience>,
    /// Its machines.
    pub inventory: Arc<dyn Inventory>,
    /// The ledger of its node names.
    pub ledger: Arc<RecordLedger>,
    /// The signer, with the cluster's CA.
    pub signer: Arc<Signer>,
    /// The longest validity of certificates.
    pub longest_lifetime: Duration,
    /// Whether Kubernetes' own signer can renew without evidence.
    pub built_in_renewal: BuiltInRenewal,
    /// Whether nodes without a record are kept from Kubernetes' own signers.
    pub enforcement: Enforcement,
    /// The names and addresses that serving certificates must not have.
    pub serving: ServingPolicy,
}

impl Context {
    /// The signers whose requests are ours to answer: what must be watched.
    pub fn signers(&self) -> Vec<String> {
        request::signers(&self.verifiers)
    }

    /// The same, without those of attestors that are unavailable: their requests wait.
    pub fn available_signers(&self) -> Vec<String> {
        request::signers(&self.verifiers.available())
    }
}
