//! The verifier of TPM evidence, which performs cheap and local checks first.
//!
//! | | check | phase | calls |
//! | --- | --- | --- | --- |
//! | 1 | the evidence is well-formed, and is for this cluster | both | none |
//! | 2 | the public areas of the keys are acceptable | both | none |
//! | 3 | the endorsement key matches the machine's provider ID and the list | both | none |
//! | 4 | the endorsement key certificate and its chain are valid, if required | enrol | none |
//! | 5 | the response arrived in time, to a challenge with a key in use | respond | none |
//! | 6 | the attestation key signed the quote, for this request and its challenge | respond | none |
//! | 7 | the policy allows the boot state of the machine | respond | none |
//! | 8 | the endorsement key matches the `ConfigMaps` for the machine's host | both | management cluster, every few seconds |
//! | 9 | the endorsement key belongs to the machine, if checks 3 and 8 did not determine this | both | the platform |
//! | 10 | the platform accepts the machine, and reports the name of its Node | respond | the platform |
//!
//! After its checks, the first request fails with a challenge. The second request shows that the endorsement key and
//! the attestation key are in the same TPM, because no other TPM can decrypt the challenge. The second request also
//! shows that check 4 passed, because otherwise no challenge would exist.

mod foresight;

use std::sync::Arc;
use std::time::SystemTime;

use futures::future::FutureExt as _;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::tpm::{
    CHALLENGE_ANNOTATION, Challenge, ENDORSEMENT_KEY_ANNOTATION, Enrolment, Expiry, PublicAreas,
    Response, TpmEvidence,
};
use kubelet_attestation::names::{Audience, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::conditions::ConditionReport;
use node_attestation_core::identifiers::{KeyDigest, ServingName};
use node_attestation_core::inventory;
use node_attestation_core::log_lines::{LogLines, Unlimited};
use node_attestation_core::refusal::{Deferral, Denial, Failure, Reason, Refusal, Unavailable};
use node_attestation_core::verifier::platform::Platform;
use node_attestation_core::verifier::{
    Appraisal, Assurance, AttestedIdentity, Expiring, Findings, Foresight, Identity, Verifier,
};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::clock::elapsed;
use node_attestation_runtime::turns::{Line, calculations};

use crate::attest::VerifiedQuote;
use crate::chain::NotAccepted;
use crate::chain::checks::Checks;
use crate::challenge::{self, ChallengeKeySource, ChallengeKeys, Subject};
use crate::credential::{Credential, NoCredential};
use crate::denial::TpmDenial;
use crate::key_lists::{
    KeyList, KeyLists, NOT_READ_HERE, are_well_formed, listed_in, report_without_lists,
};
use crate::observations::Observations;
use crate::policy::TpmPolicy;
use crate::public::{AttestationKey, EndorsementKey};
use crate::registers::unmeasured;
use crate::trusted_ek::of_provider_id;

/// Appraises evidence from machines with TPMs, for one cluster.
#[derive(Debug)]
pub struct TpmVerifier {
    cluster_uid: String,
    policy: Arc<TpmPolicy>,
    lists: Option<Arc<dyn KeyLists>>,
    platform: Arc<dyn Platform>,
    keys: Arc<dyn ChallengeKeySource>,
    observations: Arc<Observations>,
    lines: Arc<dyn LogLines>,
    /// The cluster's queue for the checks of signatures and PCR values.
    checks: Line,
}

/// The keys of a machine's TPM, from their public areas.
struct Keys {
    endorsement: EndorsementKey,
    attestation: AttestationKey,
}

/// A machine, and whether a local source confirmed its endorsement key.
struct Machine<'a> {
    provider_id: &'a ProviderId,
    is_known: bool,
}

impl TpmVerifier {
    /// Creates a verifier for the cluster with this UID and this policy. The verifier queries `platform` for a machine
    /// if neither the machine's provider ID nor the policy specifies its endorsement key.
    ///
    /// If the policy lists `ConfigMaps`, all requests wait until [`reading`](Self::reading) provides a reader for them.
    pub fn new(
        cluster_uid: impl Into<String>,
        policy: impl Into<Arc<TpmPolicy>>,
        platform: Arc<dyn Platform>,
        keys: Arc<dyn ChallengeKeySource>,
    ) -> Self {
        Self {
            cluster_uid: cluster_uid.into(),
            policy: policy.into(),
            lists: None,
            platform,
            keys,
            observations: Arc::default(),
            lines: Arc::new(Unlimited),
            checks: calculations(&ObjectKey::new("", "")),
        }
    }

    /// Returns the verifier with a reader for the policy's `ConfigMaps`.
    #[must_use]
    pub fn reading(self, lists: Arc<dyn KeyLists>) -> Self {
        let lists = Some(lists);
        Self { lists, ..self }
    }

    /// Returns the verifier with the observations of the cluster's previous verifiers, whose settings were different.
    #[must_use]
    pub fn observing(self, observations: Arc<Observations>) -> Self {
        Self {
            observations,
            ..self
        }
    }

    /// Returns the verifier with the cluster's log-line budget.
    #[must_use]
    pub fn logging(self, lines: Arc<dyn LogLines>) -> Self {
        Self { lines, ..self }
    }

    /// Returns the verifier with this Cluster's turns. By default, the verifier uses the turns of a controller without
    /// a management cluster.
    #[must_use]
    pub fn in_turns_of(self, cluster: &ObjectKey) -> Self {
        let checks = calculations(cluster);
        Self { checks, ..self }
    }

    async fn lists(&self) -> Result<Arc<[Arc<KeyList>]>, Unavailable> {
        match &self.lists {
            Some(lists) => lists.read().await,
            None if self.policy.has_key_lists => Err(Unavailable::new(NOT_READ_HERE)),
            None => Ok(Arc::default()),
        }
    }

    /// Appraises a first request, and returns the failure with its challenge.
    async fn enrol(
        &self,
        enrolment: Enrolment,
        appraisal: &Appraisal<'_>,
        now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        let audience = &enrolment.header.audience;
        let keys = read(audience, &enrolment.keys, appraisal)?;
        let machine = self.machine(&keys, appraisal)?;
        let certificates = (
            enrolment.certificate.as_deref(),
            &enrolment.intermediates[..],
        );
        let mut checks = Checks::of(&self.checks);
        let authorities = &self.policy.authorities;
        let required = authorities.require(certificates, &keys.endorsement, now, &mut checks);
        // The future is boxed, because each task reserves memory for its largest future.
        let end = match required.boxed().await {
            Ok(end) => end,
            Err(NotAccepted { denial, expired }) => {
                if let Some(end) = expired {
                    self.note_expired(end, &machine, &keys, appraisal, now)
                        .await;
                }
                return Err(denial.into());
            }
        };
        self.check_ek_source(&machine, &keys, appraisal).await?;
        if let Some(end) = end {
            let machine = &appraisal.machine.name;
            self.observations
                .certificate(machine, end, (now, elapsed()));
        }

        let challenge_keys = self.keys.keys().map_err(Deferral::VerifierUnavailable)?;
        let subject = self.subject(audience, &keys, appraisal);
        let challenge = issue(&subject, &keys, &challenge_keys, now);
        let challenge =
            challenge.map_err(|source| Deferral::VerifierUnavailable(Unavailable::new(source)))?;
        Err(challenge_issued(&challenge, keys.endorsement.digest()).into())
    }

    /// Records the expiry of a machine's certificates if the expiry is the only reason for the denial. Otherwise, after
    /// the next start of the controller, the observations would not contain the machine, because all of its requests
    /// end with this denial.
    async fn note_expired(
        &self,
        end: Expiring,
        machine: &Machine<'_>,
        keys: &Keys,
        appraisal: &Appraisal<'_>,
        now: SystemTime,
    ) {
        // Record the expiry only if the TPM belongs to this machine, because a request can contain the keys of any TPM.
        if self.check_ek_source(machine, keys, appraisal).await.is_ok() {
            let machine = &appraisal.machine.name;
            self.observations
                .certificate(machine, end, (now, elapsed()));
        }
    }

    async fn respond(
        &self,
        response: Response,
        appraisal: &Appraisal<'_>,
        now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        let Response {
            header,
            id,
            expiry,
            keys,
            quote,
        } = response;
        let keys = read(&header.audience, &keys, appraisal)?;
        let machine = self.machine(&keys, appraisal)?;
        challenge::in_time(&expiry, appraisal.asked, now)?;

        let challenge_keys = self.keys.keys_of_answers();
        let challenge_keys = challenge_keys.map_err(Deferral::VerifierUnavailable)?;
        let subject = self.subject(&header.audience, &keys, appraisal);
        if !challenge_keys.made(id, subject.cluster_uid) {
            // The challenge key was rotated, this replica does not have the challenge key yet, or the Cluster was
            // moved. The node requests a new challenge.
            return Err(Failure::EvidenceExpired.into());
        }
        let ChallengeKeys { current, former } = &*challenge_keys;
        let binding = |key| {
            let secret = subject.secret(key, id, &expiry);
            let parts = [id.as_bytes(), secret.as_slice()];
            let binding = KeyBinding::new(
                &Provider::TPM,
                &header.audience,
                appraisal.provider_id,
                appraisal.node_name,
                appraisal.spki,
                &parts,
            );
            *binding.as_bytes()
        };
        let qualifying = [Some(binding(current)), former.as_ref().map(binding)];
        let mut checks = Checks::of(&self.checks);
        let verify = || VerifiedQuote::verify(&keys.attestation, quote, &qualifying);
        let quote = checks.run(verify).await.map_err(TpmDenial::from)??;
        let machine_name = appraisal.machine.name.as_str();
        cluster_line!(
            &*self.lines,
            INFO,
            machine = machine_name,
            %quote,
            "verified the TPM quote for a key"
        );
        let allows = || self.policy.registers.allows(&quote.registers);
        checks.run(allows).await.map_err(TpmDenial::from)??;
        self.check_ek_source(&machine, &keys, appraisal).await?;
        let unmeasured = unmeasured(&quote.registers).collect();
        self.observations.boot(machine_name, unmeasured, elapsed());

        // Compute the age with the API server's time, because an operator can change this machine's clock.
        let asked = appraisal.asked;
        self.platform.check(machine.provider_id, asked).await?;
        let node_name = if appraisal.machine.unnamed {
            // The request only claims the machine, so the platform would return the name of the claimed machine.
            None
        } else {
            let node_name = self.platform.node_name(machine.provider_id).await;
            node_name.map_err(Deferral::VerifierUnavailable)?
        };
        let identity = Identity {
            node_name,
            endorsement_key: Some(keys.endorsement.digest()),
            boot: Some(quote.boot),
            ..Identity::of(machine.provider_id.clone())
        };
        Ok(Assurance::Attested(AttestedIdentity::vouched(identity)))
    }

    /// Returns the machine from the inventory. The presented endorsement key must match all local sources that have a
    /// key for the machine.
    fn machine<'a>(&self, keys: &Keys, appraisal: &Appraisal<'a>) -> Result<Machine<'a>, Refusal> {
        let Appraisal { machine, .. } = *appraisal;
        let Some(provider_id) = &machine.provider_id else {
            let machine = machine.name.clone();
            return Err(Deferral::MachineNotReady(machine).into());
        };
        if provider_id != appraisal.provider_id {
            return Err(Denial::AnotherMachine {
                attested: provider_id.clone(),
                claimed: appraisal.provider_id.clone(),
            }
            .into());
        }
        let mut is_known = false;
        for (trusted, is_source) in self.local_keys(machine, provider_id) {
            check_ek(trusted, keys, appraisal)?;
            is_known |= is_source;
        }
        Ok(Machine {
            provider_id,
            is_known,
        })
    }

    /// Returns the endorsement keys of a machine from its provider ID and from the policy, each with a flag that is
    /// true if the key identifies the machine.
    fn local_keys<'a>(
        &'a self,
        machine: &'a inventory::Machine,
        provider_id: &'a ProviderId,
    ) -> impl Iterator<Item = (KeyDigest, bool)> {
        // A provider ID that only the request claims is not a source, because every machine with a TPM can claim its
        // own key.
        let of_id = of_provider_id(provider_id).map(|key| (key, !machine.unnamed));
        let listed = self.policy.allowed.keys_of(machine, provider_id);
        of_id.into_iter().chain(listed.map(|key| (key, true)))
    }

    /// Checks the endorsement key against the lists. If no source has a key for the machine, queries the platform.
    async fn check_ek_source(
        &self,
        machine: &Machine<'_>,
        keys: &Keys,
        appraisal: &Appraisal<'_>,
    ) -> Result<(), Refusal> {
        let unavailable = Deferral::VerifierUnavailable;
        let lists = self.lists().await.map_err(unavailable)?;
        let mut is_known = machine.is_known;
        for trusted in listed_in(&lists, machine.provider_id) {
            check_ek(trusted, keys, appraisal)?;
            is_known = true;
        }
        if is_known {
            return Ok(());
        }
        are_well_formed(&lists)?;
        // Free the lists before the call: the call can take 40 seconds, and the lists can change during this time.
        drop(lists);
        if appraisal.machine.unnamed {
            // The platform returns the TPM key of the claimed machine, which can differ from the machine that owns the
            // token.
            let machine = appraisal.machine.name.clone();
            return Err(Deferral::MachineNotReady(machine).into());
        }
        let kind = keys.endorsement.kind();
        let trusted = self.platform.endorsement_key(machine.provider_id, kind);
        let trusted = trusted.await.map_err(unavailable)?;
        let trusted = trusted
            .ok_or_else(|| TpmDenial::EndorsementKeyUnknown(appraisal.machine.name.clone()))?;
        Ok(check_ek(trusted, keys, appraisal)?)
    }

    fn subject<'a>(
        &'a self,
        audience: &'a Audience,
        keys: &'a Keys,
        appraisal: &Appraisal<'a>,
    ) -> Subject<'a> {
        Subject {
            cluster_uid: &self.cluster_uid,
            audience,
            endorsement: keys.endorsement.name(),
            attestation: keys.attestation.name(),
            spki: appraisal.spki,
            provider_id: appraisal.provider_id,
            node_name: appraisal.node_name,
        }
    }
}

#[async_trait::async_trait]
impl Verifier for TpmVerifier {
    fn provider(&self) -> &Provider {
        &Provider::TPM
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &[EvidenceVersion::V2, EvidenceVersion::V1]
    }

    fn denials(&self) -> Vec<Reason> {
        let of_platform = self.platform.denials();
        [TpmDenial::CATALOGUE, of_platform].concat()
    }

    async fn verify(
        &self,
        appraisal: Appraisal<'_>,
        now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        let evidence = appraisal.evidence.ok_or(Denial::EvidenceMissing)?;
        let evidence = TpmEvidence::parse(evidence)
            .map_err(|error| Denial::EvidenceMalformed(error.to_string()))?;
        match evidence {
            TpmEvidence::Enrol(enrolment) => self.enrol(enrolment, &appraisal, now).await,
            TpmEvidence::Respond(response) => self.respond(response, &appraisal, now).await,
        }
    }

    async fn foresee(
        &self,
        machine: &inventory::Machine,
        provider_id: &ProviderId,
        now: SystemTime,
    ) -> Result<Foresight, Refusal> {
        self.foreseen(machine, provider_id, now).await
    }

    fn accepts_late_provider_ids(&self) -> bool {
        self.policy.late_provider_ids
    }

    async fn serving_names(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        self.platform.serving_names(provider_id).await
    }

    fn reports(&self) -> Vec<ConditionReport> {
        let lists = self.lists.as_ref();
        let without = || report_without_lists(self.policy.has_key_lists);
        vec![lists.map_or_else(without, |lists| lists.report())]
    }

    fn findings(&self, now: SystemTime) -> Findings {
        self.observations.findings(&self.policy, (now, elapsed()))
    }
}

/// Parses the parts that both requests contain: the audience, which must match this cluster, and the keys.
fn read(
    audience: &Audience,
    keys: &PublicAreas,
    appraisal: &Appraisal<'_>,
) -> Result<Keys, Denial> {
    if !appraisal.audiences.contains(audience) {
        return Err(Denial::AudienceMismatch(audience.clone()));
    }
    Ok(Keys {
        endorsement: EndorsementKey::parse(&keys.endorsement)?,
        attestation: AttestationKey::parse(&keys.attestation)?,
    })
}

fn check_ek(trusted: KeyDigest, keys: &Keys, appraisal: &Appraisal<'_>) -> Result<(), TpmDenial> {
    let presented = keys.endorsement.digest();
    if presented == trusted {
        return Ok(());
    }
    Err(TpmDenial::EndorsementKeyOfAnotherMachine {
        machine: appraisal.machine.name.clone(),
        trusted,
        presented,
    })
}

/// Returns the failure that answers a first request, with the challenge. The node's plugin reads the challenge. The
/// annotation with the endorsement key is intended for operators.
fn challenge_issued(challenge: &Challenge, endorsement_key: KeyDigest) -> Failure {
    let Challenge { id, expiry, .. } = challenge;
    Failure::ChallengeIssued {
        detail: format!("{}, until {}", id.to_base64(), expiry.as_str()),
        annotations: vec![
            (CHALLENGE_ANNOTATION, challenge.to_annotation()),
            (ENDORSEMENT_KEY_ANNOTATION, endorsement_key.to_string()),
        ],
        endorsement_key,
    }
}

fn issue(
    subject: &Subject<'_>,
    keys: &Keys,
    challenge_keys: &ChallengeKeys,
    now: SystemTime,
) -> Result<Challenge, NoCredential> {
    let id = challenge_keys.current.new_id(subject.cluster_uid)?;
    let expiry: Expiry = challenge::expiry(now).ok_or(NoCredential)?;
    let secret = subject.secret(&challenge_keys.current, id, &expiry);
    let credential = Credential::make(&keys.endorsement, &keys.attestation, &secret)?;
    Ok(Challenge {
        id,
        expiry,
        credential_blob: credential.blob,
        encrypted_secret: credential.encrypted_secret,
    })
}

#[cfg(test)]
mod tests;
