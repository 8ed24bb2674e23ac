//! What a provider implements: how a machine proves what it is.

use std::error::Error;
use std::fmt;

use kubelet_attestation::evidence::tpm::Challenge;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;

use crate::clock::Deadline;
use crate::failure::Code;
use crate::kubelet::KubeletArguments;
use crate::machine::Machine;
use crate::node_name::kubelets_provider_id;
use crate::settings::{Entry, Settings};

/// Seven days: renewed daily, so the management cluster may be away for six.
const WEEK: u32 = 7 * 24 * 3600;

/// Whether the controller renews this provider's certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// They are renewed, and the machine proves itself each time.
    Attested,
    /// They cannot be renewed, because nothing would prove that the same machine asks.
    Impossible,
}

/// A way to prove what machine this is.
///
/// Called from one thread at a time, and never while the stored credential is good enough. A call
/// may be repeated after a crash; it must not change the machine.
pub trait Attester: fmt::Debug + Send + Sync + 'static {
    /// The provider's name, which selects its signer.
    fn provider(&self) -> Provider;

    /// The table of the provider's own settings.
    fn settings(&self) -> &'static [Entry] {
        &[]
    }

    /// Whether a certificate can be renewed.
    fn renewal(&self) -> Renewal {
        Renewal::Attested
    }

    /// The lifetime to ask for, in seconds, where the settings do not say.
    fn expiration_seconds(&self) -> u32 {
        WEEK
    }

    /// The versions of evidence that can be made, best first.
    fn versions(&self) -> Vec<EvidenceVersion> {
        vec![EvidenceVersion::v1()]
    }

    /// What its infrastructure calls this machine.
    ///
    /// Asked at the start of each run that needs another credential, also where its certificate is
    /// issued and has but to be fetched: [`known`](ProviderIdSources::known) saves asking what
    /// answers slowly.
    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, AttesterError>;

    /// Evidence that supports `claim` and no other, or none for a provider that has none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Evidence`] says that this machine cannot support this claim: an open request is
    /// given up, so that the next run begins anew.
    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, AttesterError>;

    /// The members of the evidence, which is JSON, that nobody but the controller should see. People
    /// are shown a request without their values.
    fn secret_members(&self) -> &'static [&'static str] {
        &[]
    }

    /// Evidence that answers a challenge and supports `claim`, whose key is that of the request that
    /// was challenged; none for a provider that is asked no challenge.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Evidence`] says that this machine cannot answer
    /// this challenge: another is asked for. After any other the next run answers it.
    fn respond(
        &self,
        claim: &Claim<'_>,
        challenged: &Challenged<'_>,
    ) -> Result<Option<Vec<u8>>, AttesterError> {
        let (_, _) = (claim, challenged);
        Ok(None)
    }

    /// The name of the endorsement key that `evidence` was made with, by this provider: later runs
    /// use the same until the store is reset. `None` for evidence of no TPM.
    fn endorsement_key(&self, evidence: &[u8]) -> Option<&'static str> {
        let _ = evidence;
        None
    }
}

/// What a machine is asked after it has said what it has.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Challenged<'a> {
    /// The evidence that was challenged, perhaps made by an earlier run.
    pub evidence: &'a [u8],
    /// The challenge.
    pub challenge: &'a Challenge,
}

/// What evidence is about. The key binding is made from it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Claim<'a> {
    /// The format to write.
    pub version: &'a EvidenceVersion,
    /// The cluster it is for.
    pub audience: &'a Audience,
    /// The machine.
    pub provider_id: &'a ProviderId,
    /// The node.
    pub node_name: &'a NodeName,
    /// DER of the `SubjectPublicKeyInfo` of the request's key.
    pub spki: &'a [u8],
    /// The settings; each provider has some of its own.
    pub settings: &'a Settings,
    /// The endorsement key that the machine enrolled with, as [`Attester::endorsement_key`] named it.
    pub endorsement_key: Option<&'a str>,
    /// When the evidence has to be there.
    pub deadline: Deadline,
}

/// What may say how this machine is called.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ProviderIdSources<'a> {
    /// The settings: `providerID`, and each provider's own.
    pub settings: &'a Settings,
    /// The endorsement key that the machine enrolled with, as [`Attester::endorsement_key`] named it.
    pub endorsement_key: Option<&'a str>,
    /// The arguments of the kubelet that started us.
    pub kubelet: Option<&'a KubeletArguments>,
    /// The arguments that kubeadm wrote down for the kubelet.
    pub kubeadm: Option<&'a KubeletArguments>,
    /// What the firmware says.
    pub machine: &'a Machine,
    /// What the machine is called in an open request, which was made in this boot and under these
    /// settings: what was asked then would answer the same.
    pub known: Option<&'a ProviderId>,
    /// When the answer has to be there.
    pub deadline: Deadline,
}

impl ProviderIdSources<'_> {
    /// The provider ID that somebody wrote down: in the settings, or else for the kubelet.
    ///
    /// # Errors
    ///
    /// Nobody did, or what the kubelet was told is no provider ID.
    pub fn configured(&self) -> Result<ProviderId, AttesterError> {
        self.try_configured()?.ok_or_else(|| {
            AttesterError::new(
                ErrorKind::Configuration,
                "this machine's provider ID is not known",
                "set providerID in the settings, or give the kubelet --provider-id",
            )
        })
    }

    /// As [`written`](Self::configured), for machines that have another source: none where nobody did.
    ///
    /// # Errors
    ///
    /// What the kubelet was told is no provider ID.
    pub fn try_configured(&self) -> Result<Option<ProviderId>, AttesterError> {
        if let Some(id) = &self.settings.provider_id {
            return Ok(Some(id.clone()));
        }
        kubelets_provider_id(self.kubelet, self.kubeadm)
            .transpose()
            .map_err(|error| {
                AttesterError::new(
                    ErrorKind::Configuration,
                    "the kubelet's --provider-id cannot be used",
                    "correct the kubelet's --provider-id, or set providerID in the settings",
                )
                .because(error)
            })
    }
}

/// Whose fault it is that there is no evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is missing or wrong.
    Configuration,
    /// The source of evidence does not answer.
    Source,
    /// The TPM cannot be used.
    Tpm,
    /// The evidence is there and no verifier would accept it.
    Evidence,
    /// The node goes by a name that the machine does not have.
    NodeName,
}

impl ErrorKind {
    /// What the process exits with.
    pub fn code(self) -> Code {
        match self {
            Self::Configuration => Code::Configuration,
            Self::Source => Code::EvidenceUnavailable,
            Self::Tpm => Code::TpmUnavailable,
            Self::Evidence => Code::EvidenceInvalid,
            Self::NodeName => Code::NodeName,
        }
    }
}

/// A provider cannot say what this machine is, or not prove it.
#[derive(Debug)]
pub struct AttesterError {
    kind: ErrorKind,
    what: String,
    remedy: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl AttesterError {
    /// An error that says what went wrong and what to do about it.
    pub fn new(kind: ErrorKind, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            remedy: remedy.into(),
            source: None,
        }
    }

    /// The same with its cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(cause.into());
        self
    }

    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do about it.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl fmt::Display for AttesterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for AttesterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.source.as_deref()?;
        Some(source)
    }
}
