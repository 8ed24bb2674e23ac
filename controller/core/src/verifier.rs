//! The verifiers of evidence.

use std::fmt::Debug;
use std::time::SystemTime;

use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;

pub use crate::crd::TpmBoot;
use crate::crd::conditions::ConditionReport;
use crate::identifiers::{KeyDigest, ServingName};
use crate::inventory::Machine;
use crate::refusal::{Deferral, Denial, Reason, Refusal, Unavailable};

mod findings;
mod insecure;
pub mod platform;
mod unavailable;
mod verifiers;

pub use findings::{Expiring, Findings};
pub use insecure::InsecureVerifier;
pub use unavailable::VerifierUnavailable;
pub use verifiers::{ParsedSettings, Verifiers};

/// Appraises the evidence of the machines of one attestation provider.
///
/// An implementation can call other services. It has its own deadlines, and returns a [`Refusal::Retry`] for an outage,
/// never a denial.
#[async_trait::async_trait]
pub trait Verifier: Debug + Send + Sync {
    /// The attestation provider whose evidence the verifier appraises.
    fn provider(&self) -> &Provider;

    /// The supported versions of evidence. Empty: the provider has no evidence, and requests must not contain any.
    fn versions(&self) -> &[EvidenceVersion];

    /// Verifies that the evidence is valid and bound to the key of this request, and returns the identity of its
    /// machine.
    ///
    /// The caller checks that the identity matches the located machine.
    async fn verify(&self, appraisal: Appraisal<'_>, now: SystemTime)
    -> Result<Assurance, Refusal>;

    /// Predicts the identity of a machine of an existing Node, which has not sent evidence yet. Performs the checks of
    /// [`verify`](Self::verify) that do not depend on evidence, with the same functions. The result is not a
    /// verification.
    async fn foresee(
        &self,
        _machine: &Machine,
        provider_id: &ProviderId,
        _now: SystemTime,
    ) -> Result<Foresight, Refusal> {
        Ok(Foresight::of(Identity::of(provider_id.clone())))
    }

    /// Whether the verifier also appraises evidence of a machine whose infrastructure has not set its provider ID yet
    /// ([`Machine::unnamed`]). The bootstrap token identifies such a machine, which gets the claimed provider ID. Its
    /// node identity is retired if the infrastructure sets a different provider ID.
    fn accepts_late_provider_ids(&self) -> bool {
        false
    }

    /// The verifier's own reasons for a denial, for metrics. A reason keeps its name in all versions.
    fn denials(&self) -> Vec<Reason> {
        Vec::new()
    }

    /// Returns the names and addresses that the platform reports for the machine with this provider ID. They are for
    /// serving certificates, if the inventory does not report them. If the platform does not report names, returns
    /// `None`: the names that the node reports can then count.
    ///
    /// The proposal: `VerifyServingAttestationData`.
    ///
    /// # Errors
    ///
    /// Returns an error if the platform cannot be queried, or does not have the machine yet. The request then waits.
    async fn serving_names(
        &self,
        _provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        Ok(None)
    }

    /// Conditions of the cluster's `KubeletAuthentication`, in addition to the results of requests. They do not affect
    /// decisions, and do not require calls.
    fn reports(&self) -> Vec<ConditionReport> {
        Vec::new()
    }

    /// Findings about the machines of the cluster, from the evidence up to `now`. They do not affect decisions, and do
    /// not require calls.
    fn findings(&self, _now: SystemTime) -> Findings {
        Findings::default()
    }
}

/// The inputs of an appraisal: the evidence, and the fields that a key binding must cover.
///
/// The claims are well-formed, but not verified. [`machine`](Self::machine) comes from the inventory.
#[derive(Debug, Clone, Copy)]
pub struct Appraisal<'a> {
    /// The evidence. `None` for a provider without evidence.
    pub evidence: Option<&'a [u8]>,
    /// The audiences of this cluster.
    pub audiences: &'a [Audience],
    /// The provider ID that the request claims.
    pub provider_id: &'a ProviderId,
    /// The node name that the request claims.
    pub node_name: &'a NodeName,
    /// DER of the request's `SubjectPublicKeyInfo`.
    pub spki: &'a [u8],
    /// The machine in the inventory that matches the claims.
    pub machine: &'a Machine,
    /// The time at which the API server received the request. Evidence ages while requests wait.
    pub asked: SystemTime,
}

/// The identity of a machine, from its evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The provider ID in the evidence.
    pub provider_id: ProviderId,
    /// The name that the machine's Node must have, if the evidence determines it. `None` if the inventory determines
    /// it.
    pub node_name: Option<NodeName>,
    /// The ID of the instance, if its cloud has separate instance IDs.
    pub instance: Option<String>,
    /// The endorsement key of its TPM, if the evidence contains one.
    pub endorsement_key: Option<KeyDigest>,
    /// The boot of that TPM.
    pub boot: Option<TpmBoot>,
}

impl Identity {
    /// Creates an identity with only a provider ID.
    pub fn of(provider_id: ProviderId) -> Self {
        Self {
            provider_id,
            node_name: None,
            instance: None,
            endorsement_key: None,
            boot: None,
        }
    }
}

/// The part of a machine's identity that is known before the machine sends evidence.
#[derive(Debug)]
pub struct Foresight {
    /// The known part of the identity.
    pub identity: Identity,
    /// The outage or omission of a service that has more facts about the machine. `None` if each check without
    /// evidence passed.
    pub unknown: Option<Unavailable>,
    /// The denial that applies only to the first record of the machine.
    pub first_claim_only: Option<Denial>,
}

impl Foresight {
    /// The prediction of this identity, after all checks without evidence.
    pub fn of(identity: Identity) -> Self {
        Self {
            identity,
            unknown: None,
            first_claim_only: None,
        }
    }

    /// Adds the result of a service. An unavailable service leaves its facts unknown.
    ///
    /// # Errors
    ///
    /// The service refused the machine.
    pub fn and<T>(&mut self, result: Result<T, Refusal>) -> Result<Option<T>, Refusal> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Refusal::Retry(Deferral::VerifierUnavailable(source))) => {
                self.unknown.get_or_insert(source);
                Ok(None)
            }
            Err(refusal) => Err(refusal),
        }
    }
}

/// The assurance of an identity. Only an attested identity can be renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assurance {
    /// There is no evidence. The identity comes from the bootstrap token.
    None(Identity),
    /// The evidence of the machine was verified.
    Attested(AttestedIdentity),
}

impl Assurance {
    /// The identity, attested or only claimed.
    pub fn identity(&self) -> &Identity {
        match self {
            Self::None(identity) => identity,
            Self::Attested(identity) => identity.identity(),
        }
    }
}

/// An attested identity.
///
/// [`crate::ledger::Renewal`] requires this type, so an identity without evidence cannot be renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttestedIdentity {
    identity: Identity,
    unless_known: Option<Denial>,
}

impl AttestedIdentity {
    /// Creates an attested identity. A verifier calls this only after it has verified evidence that is bound to the
    /// request's key.
    pub fn vouched(identity: Identity) -> Self {
        Self {
            identity,
            unless_known: None,
        }
    }

    /// Returns the identity with a denial that applies only to a claim that opens the identity's first record. The
    /// denial is for a property that a machine must have when it joins, but can lose later. It does not affect renewals
    /// and new enrollments.
    #[must_use]
    pub fn unless_known(self, denial: impl Into<Denial>) -> Self {
        Self {
            unless_known: Some(denial.into()),
            ..self
        }
    }

    /// The identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The denial that applies if the identity has no record yet.
    pub fn denied_unless_known(&self) -> Option<&Denial> {
        self.unless_known.as_ref()
    }
}
