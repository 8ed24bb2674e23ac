//! Builds a request from the node's name and the provider ID, and saves it.

use data_encoding::HEXLOWER;
use kubelet_attestation::csr::CLIENT_USAGES;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::evidence::tpm::Challenge;
use kubelet_attestation::names::{Audience, NodeName, ProviderId, csr_name};
use kubelet_attestation::version::EvidenceVersion;
use sha2::{Digest as _, Sha256};

use super::attempt::{Attempt, Demand};
use super::names::bound;
use super::negotiation::Negotiation;
use super::step::Step;
use crate::attester::{Challenged, Claim, Renewal};
use crate::clock;
use crate::credential::Credential;
use crate::csr::client_request;
use crate::failure::{Code, Failure};
use crate::key::PrivateKey;
use crate::kube::ApiErrorKind;
use crate::pending::{OpenRequest, Pending, Subject};
use crate::secret::Secret;
use crate::store::{StoreFile, StoreLock};
use crate::store_contents::StoreContents;

impl Attempt {
    pub(super) fn subject(
        &self,
        (node_name, provider_id): (NodeName, ProviderId),
        audience: Audience,
    ) -> Subject {
        Subject {
            signer_name: self.attester.provider().client_signer(),
            expiration_seconds: self.settings.expiration_seconds,
            node_name,
            provider_id,
            audience,
        }
    }

    /// The evidence version that the provider prefers.
    pub(super) fn preferred_version(&self) -> EvidenceVersion {
        let mut versions = self.attester.versions().into_iter();
        versions.next().unwrap_or(EvidenceVersion::V1)
    }

    /// Returns the stored credential, if the next request must use its key. This is the case if the API server rejects
    /// the certificate with 401 because its CA was replaced, and the provider has no evidence. Without evidence,
    /// nothing shows that the request comes from the same machine. Until the certificate expires, the controller
    /// accepts only the certificate's key for this `NodeIdentity`.
    pub(super) fn refiled<'a>(&self, stored: &'a StoreContents) -> Option<&'a Credential> {
        let is_unknown = matches!(
            self.demand,
            Demand::Unless {
                refusal: ApiErrorKind::Unauthorized,
                ..
            }
        );
        let valid = stored.valid(clock::now())?;
        (is_unknown && self.attester.renewal() == Renewal::Impossible).then_some(valid)
    }

    /// Returns the key and the request of an earlier run. Otherwise, returns the key of the stored certificate if the
    /// next request [must use it](Self::refiled), or saves and returns a new key.
    pub(super) fn pending(
        &self,
        store: &StoreLock,
        stored: &StoreContents,
        saved: Option<Pending>,
    ) -> Result<Pending, Failure> {
        let pending = if let Some(saved) = saved {
            saved
        } else {
            let key = match self.refiled(stored) {
                Some(credential) => {
                    self.log.step("reusing the key of the stored certificate");
                    PrivateKey::from_pem(Secret::new(credential.key_pem().expose().clone()))
                        .map_err(|error| Failure::bug(&error))?
                }
                None => new_key()?,
            };
            let pending = Pending::of_key(key, self.machine.digest());
            pending.save(store)?;
            pending
        };
        self.steps.done(Step::KeySaved);
        Ok(pending)
    }

    /// Completes an earlier run that stored its certificate, but did not store the cluster's CA certificates in the
    /// origin, because the run was killed or could not write. Without this step, the certificate would appear to
    /// come from the previous CA, and this run would request another certificate.
    pub(super) fn finish(
        &self,
        store: &StoreLock,
        stored: &mut StoreContents,
    ) -> Result<(), Failure> {
        // If requests must use the stored key, a saved key that equals the stored key belongs to an open request.
        let is_refiled = self.refiled(stored).is_some();
        let (Some(credential), Some(origin), Some(endpoint)) =
            (&stored.credential, &mut stored.origin, &self.endpoint)
        else {
            return Ok(());
        };
        if origin.endpoint.ca_pem == endpoint.ca_pem() || is_refiled {
            return Ok(());
        }
        let left = self.read_pending(store)?.filter(|pending| {
            let ca = digest(endpoint.ca_pem());
            pending.key.public_bits() == credential.public_bits() && pending.ca == Some(ca)
        });
        if left.is_some() {
            origin.endpoint = endpoint.to_fields();
            origin.save(store)?;
            drop(store.remove(StoreFile::Pending));
        }
        Ok(())
    }

    /// Returns the key and the request of an earlier run, if they are stored.
    pub(super) fn saved_pending(
        &self,
        store: &StoreLock,
        stored: &StoreContents,
    ) -> Result<Option<Pending>, Failure> {
        let current = stored.credential.as_ref().map(Credential::public_bits);
        let is_refiled = self.refiled(stored).is_some();
        let pending = self.read_pending(store)?;
        Ok(pending.filter(|pending| {
            let is_current = current == Some(pending.key.public_bits());
            if is_refiled {
                // A request with a different key would remain pending until the certificate expires.
                is_current || pending.replaces_denied
            } else {
                // A saved key that equals the key of the stored certificate comes from a run that was killed after it
                // stored the certificate.
                !is_current
            }
        }))
    }

    fn read_pending(&self, store: &StoreLock) -> Result<Option<Pending>, Failure> {
        let read = store.read_key(StoreFile::Pending)?;
        let Some((text, exposed)) = read else {
            return Ok(None);
        };
        if let Some(exposed) = exposed {
            self.log.warn(&exposed);
        }
        let why = match Pending::parse(&text) {
            // Unlike for the origin, it must be certain that the key was saved on this machine. If this check wrongly
            // finds a difference, the run only sends one more request, but two machines must not use the same key.
            Ok(pending) if self.machine.identity().is_of(&pending.machine) => {
                return Ok(Some(pending));
            }
            Ok(_) => "it belongs to a different machine".to_owned(),
            Err(error) => error_chain(&error),
        };
        self.set_aside(store, StoreFile::Pending, &why)?;
        Ok(None)
    }

    /// Returns the request that a run would send, with a throwaway key.
    pub(super) fn dry_run(&self, stored: &StoreContents) -> Result<OpenRequest, Failure> {
        let bound = bound(&self.settings, stored);
        let names = self.names(bound.as_ref(), None)?;
        let audience = match (&self.settings.audience, self.attester.renewal()) {
            (Some(audience), _) => audience.clone(),
            (None, Renewal::Attested) => self.endpoint(stored, None)?.audience(),
            // The request has no evidence and does not contain a cluster, so any audience is sufficient.
            (None, Renewal::Impossible) => Audience::of_ca(&[]),
        };
        let subject = self.subject(names, audience);
        let key = new_key()?;
        let version = self.preferred_version();
        self.request(&key, &subject, &version, |claim| {
            self.attester.evidence(claim)
        })
    }

    fn request(
        &self,
        key: &PrivateKey,
        subject: &Subject,
        version: &EvidenceVersion,
        attest: impl FnOnce(&Claim<'_>) -> Result<Option<Vec<u8>>, Failure>,
    ) -> Result<OpenRequest, Failure> {
        let now = clock::now();
        let csr = key
            .pair()
            .and_then(|pair| client_request(&pair, &subject.node_name, &subject.provider_id))
            .map_err(|error| Failure::bug(&error))?;
        // The evidence must cover the key that the controller parses from these bytes.
        let request = CertificationRequest::from_der(&csr).map_err(|error| Failure::bug(&error))?;
        let evidence = attest(&Claim {
            version,
            audience: &subject.audience,
            provider_id: &subject.provider_id,
            node_name: &subject.node_name,
            spki: request.spki_der(),
            settings: &self.settings,
            remembered: self.remembered.get().map(String::as_str),
            deadline: self.deadline,
        })?;
        let envelope = Envelope {
            csr,
            provider: Some(self.attester.provider()),
            evidence,
        };
        let bytes = envelope.encode();
        let name = csr_name(&subject.signer_name, &CLIENT_USAGES, &bytes);
        let mut open = OpenRequest::new(name, bytes, subject.clone(), now);
        open.asked = Some(self.scope.clone());
        Ok(open)
    }
}

impl Negotiation<'_> {
    /// Creates a request with a new key, because the controller denied the key of the stored certificate.
    pub(super) fn with_another_key(&mut self) -> Result<OpenRequest, Failure> {
        *self.pending = Pending {
            ca: self.pending.ca.take(),
            replaces_denied: true,
            ..Pending::of_key(new_key()?, self.pending.machine.clone())
        };
        self.has_stored_key = false;
        self.pending.save(self.store)?;
        self.open_request()
    }

    /// Returns the open request, if it can be continued. Otherwise, creates a new request with the same key. Saves the
    /// new request.
    pub(super) fn open_request(&mut self) -> Result<OpenRequest, Failure> {
        let (attempt, now) = (self.attempt, clock::now());
        let saved = self.pending.request.clone();
        let open =
            match saved.filter(|open| open.is_worth_taking_up(self.subject, self.lifetime, now)) {
                // This run queried the provider ID, so the next run does not need to query it.
                Some(open) => OpenRequest {
                    asked: Some(attempt.scope.clone()),
                    ..open
                },
                None => self.attest(|claim| attempt.attester.evidence(claim))?,
            };
        attempt.steps.done(Step::Attested);
        if self.pending.request.as_ref() != Some(&open) {
            self.save(&open)?;
        }
        attempt.steps.done(Step::RequestSaved);
        Ok(open)
    }

    /// Returns a saved request that answers `challenge` and has the key of `challenged`; `None` if the provider does
    /// not answer challenges.
    pub(super) fn answer(
        &mut self,
        challenged: &OpenRequest,
        challenge: &Challenge,
    ) -> Result<Option<OpenRequest>, Failure> {
        let attempt = self.attempt;
        let envelope = Envelope::parse(&challenged.bytes).map_err(|error| Failure::bug(&error))?;
        let asked = Challenged {
            evidence: &envelope.evidence.unwrap_or_default(),
            challenge,
        };
        let mut answers = false;
        let mut open = self.attest(|claim| {
            let evidence = attempt.attester.respond(claim, &asked)?;
            answers = evidence.is_some();
            Ok(evidence)
        })?;
        if !answers {
            return Ok(None);
        }
        attempt.steps.done(Step::Answered);
        open.answers = true;
        self.save(&open)?;
        attempt.steps.done(Step::AnswerSaved);
        Ok(Some(open))
    }

    /// Creates a request with the evidence from `attest`. Does not save the request. If the machine cannot support the
    /// claim, the open request is dropped, so that the next run starts again.
    fn attest(
        &mut self,
        attest: impl FnOnce(&Claim<'_>) -> Result<Option<Vec<u8>>, Failure>,
    ) -> Result<OpenRequest, Failure> {
        let key = &self.pending.key;
        let made = self
            .attempt
            .request(key, self.subject, &self.version, attest);
        if let Err(failure) = &made
            && failure.code() == Code::EvidenceInvalid
            && self.pending.request.is_some()
        {
            self.pending.drop_request(self.store)?;
        }
        made
    }

    fn save(&mut self, open: &OpenRequest) -> Result<(), Failure> {
        self.pending.request = Some(open.clone());
        self.pending.save(self.store)
    }
}

fn new_key() -> Result<PrivateKey, Failure> {
    PrivateKey::generate()
        .map_err(|error| Failure::of(Code::Internal, &error, "run the command again"))
}

/// The SHA-256 digest of CA certificates in PEM, in hexadecimal.
pub(super) fn digest(ca_pem: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(ca_pem))
}
