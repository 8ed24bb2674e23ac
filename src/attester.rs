//! The interface that a provider implements to prove the identity of the machine.

use std::fmt;

use kubelet_attestation::evidence::tpm::Challenge;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;

use crate::clock::Deadline;
use crate::failure::{Code, Failure};
pub use crate::finding::{Finding, Report};
pub use crate::kubelet::KubeletArguments;
pub use crate::machine::Machine;
use crate::settings::{Entry, Settings};

/// The default lifetime to request, in seconds: seven days. Certificates are renewed after 20 to 28 hours, so the
/// management cluster can be unavailable for more than five days.
const WEEK: u32 = 7 * 24 * 3600;

/// The placeholder for secret values in evidence.
pub(crate) const LEFT_OUT: &str = "(not shown)";

/// Whether the controller renews this provider's certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The controller renews certificates, and the machine attests for each renewal.
    Attested,
    /// The controller cannot renew certificates, because no evidence shows that the request comes from the same
    /// machine.
    Impossible,
}

/// Proves the identity of this machine.
///
/// A run calls the methods from one thread at a time, and only if it needs a new credential. After a crash, the next
/// run can repeat a call, so a call must not change the machine.
pub trait Attester: fmt::Debug + Send + Sync + 'static {
    /// The provider's name, which selects its signer.
    fn provider(&self) -> Provider;

    /// The table of the provider's own settings.
    fn settings(&self) -> &'static [Entry] {
        &[]
    }

    /// Returns whether the controller renews the provider's certificates.
    fn renewal(&self) -> Renewal {
        Renewal::Attested
    }

    /// The default lifetime to request, in seconds.
    fn expiration_seconds(&self) -> u32 {
        WEEK
    }

    /// The evidence versions that the provider supports, at least one, in order of preference.
    fn versions(&self) -> Vec<EvidenceVersion> {
        vec![EvidenceVersion::V1]
    }

    /// Returns the machine's provider ID.
    ///
    /// A run calls this method at its start if it needs a new credential, even if the run only fetches a certificate
    /// that is already issued. If [`known`](ProviderIdSources::known) is set, the provider can skip a slow query.
    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, Failure>;

    /// Returns evidence that supports only `claim`; `None` for a provider without evidence.
    ///
    /// # Errors
    ///
    /// [`Code::EvidenceInvalid`] means that this machine cannot support this claim. The run then drops the open
    /// request, and the next run starts again.
    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, Failure>;

    /// The members of the JSON evidence that only the controller is allowed to see. Commands that show a request hide
    /// the values of these members.
    fn secret_members(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns evidence that answers a challenge and supports `claim`. The claim has the same key as the challenged
    /// request. `None` for a provider without challenges.
    ///
    /// # Errors
    ///
    /// [`Code::EvidenceInvalid`] means that this machine cannot answer this challenge. The next run then gets a new
    /// challenge. After any other error, the next run answers the same challenge.
    fn respond(
        &self,
        claim: &Claim<'_>,
        challenged: &Challenged<'_>,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let (_, _) = (claim, challenged);
        Ok(None)
    }

    /// Returns a cloud-init template for node names on the provider's platform; `None` if the platform does not
    /// determine the name.
    fn node_name_template(&self) -> Option<&'static str> {
        None
    }

    /// Returns the machine's identity, for output to users. Queries the sources of the identity again.
    fn identify(&self, sources: &ProviderIdSources<'_>) -> Result<Identity, Failure> {
        self.provider_id(sources).map(Identity::new)
    }

    /// The names of the provider's own `doctor` checks, in the order of the output.
    fn checks(&self) -> &'static [&'static str] {
        &[]
    }

    /// Runs the provider's own checks, and reports each finding immediately. Does not change anything. `node_name` is
    /// the node's name, if it is known. If a check has not reported a finding by the deadline, it fails.
    fn examine(
        &self,
        sources: &ProviderIdSources<'_>,
        node_name: Option<&NodeName>,
        report: Report<'_>,
    ) {
        let (_, _, _) = (sources, node_name, report);
    }

    /// Returns a string about `evidence`, which this provider created and the controller accepted. The plugin stores
    /// the string, and passes it to later runs until the state directory is reset.
    fn to_remember(&self, evidence: &[u8]) -> Option<&'static str> {
        let _ = evidence;
        None
    }
}

/// The identity of a machine, as `identify` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The machine's provider ID.
    pub provider_id: ProviderId,
    /// Facts about the machine, in the order of the output.
    pub facts: Vec<Fact>,
    /// The digest of the machine's endorsement key, in the format of endorsement key lists.
    pub endorsement_key: Option<String>,
}

/// A fact about a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The key of the fact in JSON.
    pub key: &'static str,
    /// The name of the fact in a table.
    pub name: &'static str,
    /// The value of the fact.
    pub value: String,
}

impl Identity {
    /// Creates the identity of a machine with this provider ID, without facts.
    pub fn new(provider_id: ProviderId) -> Self {
        Self {
            provider_id,
            facts: Vec::new(),
            endorsement_key: None,
        }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, key: &'static str, name: &'static str, value: impl Into<String>) -> Self {
        let value = value.into();
        self.facts.push(Fact { key, name, value });
        self
    }
}

/// A challenge, and the evidence to which the controller responded with the challenge.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Challenged<'a> {
    /// The challenged evidence. The evidence can come from an earlier run.
    pub evidence: &'a [u8],
    /// The challenge.
    pub challenge: &'a Challenge,
}

/// The statement that evidence supports. The key binding is computed from this statement.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Claim<'a> {
    /// The version of the evidence.
    pub version: &'a EvidenceVersion,
    /// The cluster for which the evidence is created.
    pub audience: &'a Audience,
    /// The machine's provider ID.
    pub provider_id: &'a ProviderId,
    /// The node's name.
    pub node_name: &'a NodeName,
    /// The `SubjectPublicKeyInfo` of the request's key, in DER.
    pub spki: &'a [u8],
    /// The settings, including the provider's own.
    pub settings: &'a Settings,
    /// The text of [`Attester::to_remember`] for the evidence with which the machine enrolled.
    pub remembered: Option<&'a str>,
    /// The deadline for the evidence.
    pub deadline: Deadline,
}

/// The sources of the provider ID.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ProviderIdSources<'a> {
    /// The settings: `providerID` and the provider's own settings.
    pub settings: &'a Settings,
    /// The text of [`Attester::to_remember`] for the evidence with which the machine enrolled.
    pub remembered: Option<&'a str>,
    /// The arguments of the kubelet that started this process, or otherwise the arguments in its unit.
    pub kubelet: Option<&'a KubeletArguments>,
    /// The machine, with the description from its firmware.
    pub machine: &'a Machine,
    /// The provider ID of an open request, if the request is from this boot and the settings are the same. A new query
    /// would then return the same provider ID.
    pub known: Option<&'a ProviderId>,
    /// The deadline for the answer.
    pub deadline: Deadline,
}

impl ProviderIdSources<'_> {
    /// Returns the configured provider ID: from the settings, otherwise from the kubelet's arguments and its
    /// configuration.
    ///
    /// # Errors
    ///
    /// No provider ID is configured, or the kubelet's provider ID is invalid.
    pub fn configured(&self) -> Result<ProviderId, Failure> {
        self.try_configured()?.ok_or_else(|| {
            Failure::new(
                Code::Configuration,
                "the provider ID of this machine is unknown",
                "set providerID in the settings or in the kubelet's configuration, or start the kubelet with \
                 --provider-id",
            )
        })
    }

    /// Does the same as [`configured`](Self::configured), for providers that can get the provider ID from another
    /// source. `None` if no provider ID is configured.
    ///
    /// # Errors
    ///
    /// The kubelet's provider ID is invalid.
    pub fn try_configured(&self) -> Result<Option<ProviderId>, Failure> {
        if let Some(id) = &self.settings.provider_id {
            return Ok(Some(id.clone()));
        }
        let Some(kubelet) = self.kubelet else {
            return Ok(None);
        };
        let id = kubelet.configured_provider_id(self.machine)?;
        id.map(|id| ProviderId::parse(&id))
            .transpose()
            .map_err(|error| {
                Failure::new(
                Code::Configuration,
                "the kubelet's provider ID is invalid",
                "correct the kubelet's --provider-id, or providerID in its configuration; or set \
                 providerID in the settings",
            )
            .because(&error)
            })
    }
}
