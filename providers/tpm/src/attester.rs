//! The attester of a machine with a TPM.

use std::sync::{Mutex, OnceLock, PoisonError};

use kubelet_attestation::evidence::Header;
use kubelet_attestation::evidence::tpm::{Enrolment, PublicAreas, Quote, Response, TpmEvidence};
use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator::attester::{
    Attester, Challenged, Claim, Identity, ProviderIdSources, Report,
};
use kubelet_authenticator::clock::Deadline;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::settings::Entry;

use crate::device::{SCHEME, ask, kind_of, name_of, read_keys};
use crate::protocol::{Ask, Bytes, Keys, QuoteFor, Quoted};
use crate::settings::{self, TpmSettings};
use crate::{certificate, examine, instance};

/// The machine's TPM.
#[derive(Debug, Default)]
pub(crate) struct Tpm {
    /// The keys that this run read to determine the provider ID, or the error. Later steps of the run use the same
    /// result.
    keys: Mutex<Option<Result<Keys, Failure>>>,
    /// The provider ID, if this run took it from an open request instead of the TPM.
    known: OnceLock<ProviderId>,
}

impl Attester for Tpm {
    fn provider(&self) -> Provider {
        Provider::TPM
    }

    fn settings(&self) -> &'static [Entry] {
        settings::TABLE
    }

    fn versions(&self) -> Vec<EvidenceVersion> {
        vec![EvidenceVersion::V2, EvidenceVersion::V1]
    }

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, Failure> {
        if let Some(id) = sources.try_configured()? {
            return Ok(id);
        }
        if let Some(id) = instance::provider_id(sources)? {
            return Ok(id);
        }
        let known = sources.known.filter(|id| id.as_str().starts_with(SCHEME));
        if let Some(known) = known {
            return Ok(self.known.get_or_init(|| known.clone()).clone());
        }
        let settings = TpmSettings::of(sources.settings, sources.remembered);
        let keys = self.keys(&settings, sources.deadline)?;
        let name = name_of(&keys)?;
        self.keep(Ok(keys));
        Ok(name)
    }

    fn identify(&self, sources: &ProviderIdSources<'_>) -> Result<Identity, Failure> {
        let settings = TpmSettings::of(sources.settings, sources.remembered);
        let keys = read_keys(&settings, sources.deadline)?;
        self.keep(Ok(keys.clone()));
        let id = self.provider_id(sources)?;
        Ok(examine::identity(id, &keys))
    }

    fn checks(&self) -> &'static [&'static str] {
        examine::CHECKS
    }

    fn examine(
        &self,
        sources: &ProviderIdSources<'_>,
        _node_name: Option<&NodeName>,
        report: Report<'_>,
    ) {
        self.keep(examine::examine(sources, report));
    }

    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, Failure> {
        let settings = TpmSettings::of(claim.settings, claim.remembered);
        let keys = self.keys(&settings, claim.deadline)?;
        // This run read the provider ID from an open request, and not from the TPM, so compare it with the TPM now.
        if self.known.get() == Some(claim.provider_id) && name_of(&keys)? != *claim.provider_id {
            let what = format!("the TPM does not match provider ID {}", claim.provider_id);
            let remedy = "no action is needed: the next run uses the provider ID of the TPM";
            return Err(Failure::new(Code::EvidenceInvalid, what, remedy));
        }
        let stored = keys.certificate.as_ref().map(|stored| stored.0.as_slice());
        let certificate = stored.and_then(certificate::in_index).map(<[u8]>::to_vec);
        // Omit the intermediate certificates in evidence of version v1, and if the TPM has no endorsement key
        // certificate, because verifiers reject them in these cases.
        let intermediates = if certificate.is_none() || *claim.version == EvidenceVersion::V1 {
            Vec::new()
        } else {
            certificate::chain(&keys.chain.0)
        };
        let evidence = TpmEvidence::Enrol(Enrolment {
            header: header(claim, claim.version),
            certificate,
            intermediates,
            keys: PublicAreas {
                endorsement: keys.endorsement.0,
                attestation: keys.attestation.0,
            },
        });
        Ok(Some(evidence.to_json()))
    }

    fn respond(
        &self,
        claim: &Claim<'_>,
        challenged: &Challenged<'_>,
    ) -> Result<Option<Vec<u8>>, Failure> {
        // Use the endorsement key and the version from the evidence that was challenged, even if the settings or this
        // release prefer a different key or version.
        let (asked, keys) = match TpmEvidence::parse(challenged.evidence) {
            Ok(TpmEvidence::Enrol(enrolment)) => (enrolment.header, enrolment.keys),
            Ok(TpmEvidence::Respond(response)) => (response.header, response.keys),
            Err(error) => {
                let what = "cannot read the evidence that the challenge was made for";
                let remedy = "no action is needed: the next run creates another request";
                return Err(Failure::new(Code::EvidenceInvalid, what, remedy).because(&error));
            }
        };
        let challenge = challenged.challenge;
        let settings = TpmSettings::of(claim.settings, claim.remembered);
        let question = QuoteFor {
            endorsement: Bytes(keys.endorsement.clone()),
            credential_blob: Bytes(challenge.credential_blob.clone()),
            encrypted_secret: Bytes(challenge.encrypted_secret.clone()),
            audience: claim.audience.clone(),
            provider_id: claim.provider_id.clone(),
            node_name: claim.node_name.clone(),
            spki: Bytes(claim.spki.to_vec()),
            id: Bytes(challenge.id.as_bytes().to_vec()),
            pcrs: settings.pcrs.clone(),
        };
        let question = Ask::Quote(Box::new(question));
        let quoted: Quoted = ask(&settings, question, claim.deadline)?;
        let evidence = TpmEvidence::Respond(Response {
            header: header(claim, &asked.version),
            id: challenge.id,
            expiry: challenge.expiry.clone(),
            keys: PublicAreas {
                endorsement: keys.endorsement,
                attestation: quoted.attestation.0,
            },
            quote: Quote {
                attest: quoted.attest.0,
                signature: quoted.signature.0,
                registers: quoted.pcrs,
            },
        });
        Ok(Some(evidence.to_json()))
    }

    /// Returns the type of the endorsement key. The provider ID is derived from the endorsement key, so a machine whose
    /// TPM has several keys must always use the same key.
    fn to_remember(&self, evidence: &[u8]) -> Option<&'static str> {
        let keys = match TpmEvidence::parse(evidence).ok()? {
            TpmEvidence::Enrol(enrolment) => enrolment.keys,
            TpmEvidence::Respond(response) => response.keys,
        };
        kind_of(&keys.endorsement)
    }
}

impl Tpm {
    /// Returns the keys. Reads the keys from the TPM on the first call.
    fn keys(&self, settings: &TpmSettings, deadline: Deadline) -> Result<Keys, Failure> {
        let mut read = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let read = read.take();
        read.unwrap_or_else(|| read_keys(settings, deadline))
    }

    fn keep(&self, keys: Result<Keys, Failure>) {
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys);
    }
}

fn header(claim: &Claim<'_>, version: &EvidenceVersion) -> Header {
    Header {
        version: version.clone(),
        audience: claim.audience.clone(),
    }
}
