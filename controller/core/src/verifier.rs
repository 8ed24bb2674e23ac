//! The verifiers for evidence.

use std::fmt::Debug;
use std::time::SystemTime;

use futures::future::BoxFuture;
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

/// Appraises evidence from the machines of one attestation provider.
///
/// An implementation can call other services. It must enforce its own deadlines. For an outage, it must return
/// [`Refusal::Retry`], and never a denial.
#[async_trait::async_trait]
pub trait Verifier: Debug + Send + Sync {
    /// The attestation provider whose evidence the verifier appraises.
    fn provider(&self) -> &Provider;

    /// The supported evidence versions. Empty if the provider has no evidence, so that requests must not contain
    /// evidence.
    fn versions(&self) -> &[EvidenceVersion];

    /// Verifies that the evidence is valid and bound to the key in this request, and returns the identity of the
    /// machine.
    ///
    /// The caller checks that the identity matches the located machine.
    async fn verify(&self, appraisal: Appraisal<'_>, now: SystemTime)
    -> Result<Assurance, Refusal>;

    /// Predicts the identity of an existing Node's machine, which has not sent evidence yet. Performs those checks of
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

    /// Whether the verifier also appraises evidence from a machine whose infrastructure provider has not set its
    /// provider ID yet ([`Machine::unnamed`]). The bootstrap token identifies this machine, and its node identity
    /// stores the claimed provider ID. The node identity is retired if the infrastructure provider sets a different
    /// provider ID.
    fn accepts_late_provider_ids(&self) -> bool {
        false
    }

    /// The verifier's own denial reasons, for metrics. A reason has the same name in all versions.
    fn denials(&self) -> Vec<Reason> {
        Vec::new()
    }

    /// Returns the names and addresses that the platform reports for the machine with this provider ID. These names and
    /// addresses are used for serving certificates if the inventory does not report any. Returns `None` if the platform
    /// does not report names. The names from the node's own report can then be used.
    ///
    /// In the proposal, this is `VerifyServingAttestationData`.
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

    /// Background work for the cluster, which does not come from requests and never ends. `None` if there is none.
    fn background(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Conditions for the cluster's `KubeletAuthentication` that do not come from requests. They do not affect
    /// decisions, and need no calls to other services.
    fn reports(&self) -> Vec<ConditionReport> {
        Vec::new()
    }

    /// Findings about the machines of the cluster, from evidence received up to `now`. They do not affect decisions,
    /// and need no calls to other services.
    fn findings(&self, _now: SystemTime) -> Findings {
        Findings::default()
    }
}

/// The inputs to an appraisal: the evidence, the fields that the key binding must cover, and the machine.
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
    /// The time at which the API server created the request. Evidence ages while requests wait.
    pub asked: SystemTime,
}

/// The identity of a machine, as its evidence shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The provider ID in the evidence.
    pub provider_id: ProviderId,
    /// The required name of the machine's Node. `None` if the inventory, and not the evidence, determines the name.
    pub node_name: Option<NodeName>,
    /// The ID of the instance, if its cloud has separate instance IDs.
    pub instance: Option<String>,
    /// The endorsement key of the machine's TPM, if the evidence contains one.
    pub endorsement_key: Option<KeyDigest>,
    /// The start counters and clock of that TPM.
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
    /// The outage of a service that has more facts about the machine, or the reason why the service was not called.
    /// `None` if all checks that do not need evidence passed.
    pub unknown: Option<Unavailable>,
    /// A denial that applies only when the machine opens its first record.
    pub first_claim_only: Option<Denial>,
}

impl Foresight {
    /// Creates the prediction of this identity, after all checks that do not need evidence.
    pub fn of(identity: Identity) -> Self {
        Self {
            identity,
            unknown: None,
            first_claim_only: None,
        }
    }

    /// Returns the result of a service. If the service is unavailable, records the outage in
    /// [`unknown`](Self::unknown).
    ///
    /// # Errors
    ///
    /// Returns the refusal if the service refuses the machine.
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

/// The level of assurance for an identity. Only an attested identity can be renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assurance {
    /// There is no evidence. The identity comes from the bootstrap token.
    None(Identity),
    /// The evidence of the machine was verified.
    Attested(AttestedIdentity),
}

impl Assurance {
    /// The identity, either attested or only claimed.
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
    /// denial concerns a property that a machine must have when it joins, but can lose later. It does not affect
    /// renewals and later enrollments.
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

    /// Returns the denial that applies if the identity has no record yet.
    pub fn denied_unless_known(&self) -> Option<&Denial> {
        self.unless_known.as_ref()
    }
}
