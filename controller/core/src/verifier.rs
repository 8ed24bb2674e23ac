//! The verifiers of machines' evidence.

use std::fmt::Debug;
use std::time::SystemTime;

use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;

pub use crate::crd::TpmBoot;
use crate::crd::conditions::ConditionReport;
use crate::identifiers::{KeyDigest, ServingName};
use crate::inventory::Machine;
use crate::refusal::{Denial, Reason, Refusal, Unavailable};

mod findings;
mod insecure;
pub mod platform;
mod unavailable;
mod verifiers;

pub use findings::{Expiring, Findings};
pub use insecure::InsecureVerifier;
pub use unavailable::VerifierUnavailable;
pub use verifiers::Verifiers;

/// Appraises the evidence of one provider's machines.
///
/// An implementation may call the outside world; it brings its own deadlines, and reports an outage
/// as a [`Refusal::Retry`], never as a denial.
#[async_trait::async_trait]
pub trait Verifier: Debug + Send + Sync {
    /// The provider of the evidence that it appraises.
    fn provider(&self) -> &Provider;

    /// The versions of evidence that it reads. Empty: the provider has no evidence, and a request
    /// must bring none.
    fn versions(&self) -> &[EvidenceVersion];

    /// Decides whether the evidence holds, is bound to the key of this request, and whose it is.
    ///
    /// The caller checks that the identity is the located machine's.
    async fn verify(&self, appraisal: Appraisal<'_>, now: SystemTime)
    -> Result<Assurance, Refusal>;

    /// Whether the verifier also appraises evidence of a machine whose infrastructure has not set its
    /// provider ID yet ([`Machine::unnamed`]). Its Machine is then the one of the bootstrap token, with the
    /// provider ID that the request claims; the record is retired if the infrastructure sets another.
    fn accepts_late_provider_ids(&self) -> bool {
        false
    }

    /// The verifier's own reasons for a denial, each with the same name in every version: for metrics.
    fn denials(&self) -> Vec<Reason> {
        Vec::new()
    }

    /// The names and addresses of the machine with this provider ID, by the word of its platform:
    /// for serving certificates, where the inventory does not report them. `None` where the platform
    /// has no say; then what the node reports may count.
    ///
    /// The proposal: `VerifyServingAttestationData`.
    ///
    /// # Errors
    ///
    /// The platform could not be asked, or does not know the machine yet; the request waits.
    async fn serving_names(
        &self,
        _provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        Ok(None)
    }

    /// Reports about the cluster beside the answers to its requests, for conditions of its
    /// `KubeletAuthentication`. No decision depends on them, and they cost no call.
    fn reports(&self) -> Vec<ConditionReport> {
        Vec::new()
    }

    /// Findings about the machines of the cluster, as far as its evidence has shown them by `now`. No decision
    /// depends on them, and they cost no call.
    fn findings(&self, _now: SystemTime) -> Findings {
        Findings::default()
    }
}

/// A request to appraise: the evidence, and the fields that a key binding must cover.
///
/// The claims have the right form and nothing more; [`machine`](Self::machine) comes from the
/// inventory.
#[derive(Debug, Clone, Copy)]
pub struct Appraisal<'a> {
    /// The evidence; `None` for a provider that has none.
    pub evidence: Option<&'a [u8]>,
    /// The audiences that mean this cluster.
    pub audiences: &'a [Audience],
    /// The provider ID that the request claims.
    pub provider_id: &'a ProviderId,
    /// The node name that the request claims.
    pub node_name: &'a NodeName,
    /// DER of the request's `SubjectPublicKeyInfo`.
    pub spki: &'a [u8],
    /// The machine that the inventory has under the claims.
    pub machine: &'a Machine,
    /// The time at which the API server received the request: evidence ages while requests wait for their turn.
    pub asked: SystemTime,
}

/// The identity of a machine, from its evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The provider ID that the evidence is about.
    pub provider_id: ProviderId,
    /// The name that its Node must have, where that follows from the evidence and is not left to
    /// the inventory.
    pub node_name: Option<NodeName>,
    /// The instance, where its cloud has names of its own for them.
    pub instance: Option<String>,
    /// The endorsement key of its TPM, where that proved it.
    pub endorsement_key: Option<KeyDigest>,
    /// The boot of that TPM.
    pub boot: Option<TpmBoot>,
}

impl Identity {
    /// The identity of which nothing is known but its provider ID.
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

/// The assurance of an identity. Only an attested one can be renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assurance {
    /// Nothing was proved; the identity is the bootstrap token's.
    None(Identity),
    /// The machine proved it.
    Attested(AttestedIdentity),
}

impl Assurance {
    /// The identity, however founded.
    pub fn identity(&self) -> &Identity {
        match self {
            Self::None(identity) => identity,
            Self::Attested(identity) => identity.identity(),
        }
    }
}

/// An identity that a machine proved.
///
/// [`crate::ledger::Renewal`] takes nothing less, so an unattested identity cannot be renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttestedIdentity {
    identity: Identity,
    unless_known: Option<Denial>,
}

impl AttestedIdentity {
    /// Vouches for `identity`: for a verifier to say, when evidence bound to the request's key
    /// proved it.
    pub fn vouched(identity: Identity) -> Self {
        Self {
            identity,
            unless_known: None,
        }
    }

    /// The same, but denied where the claim would open the identity's first record: for what a
    /// machine must be when it joins, and may cease to be later. Renewal and re-enrolment pass.
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

    /// Why no first record is opened for it.
    pub fn denied_unless_known(&self) -> Option<&Denial> {
        self.unless_known.as_ref()
    }
}
