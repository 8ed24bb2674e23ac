//! The requests of a run, one after the other, until a certificate is issued, or no other request can succeed.
//!
//! Most runs send one request. If the controller rejects the evidence version, the run sends another request with a
//! different version. If the controller challenges the machine, the run sends the response in another request.

use std::mem;
use std::time::Duration;

use kubelet_attestation::contract::{
    CHALLENGE_ISSUED, EVIDENCE_EXPIRED, FORMER_CERTIFICATE, IDENTITY_REVOKED,
    KEY_OF_ANOTHER_MACHINE, RECORD_MISSING, REQUESTER_UID_MISSING, UNSUPPORTED_ATTESTATION_VERSION,
};
use kubelet_attestation::ensure;
use kubelet_attestation::evidence::tpm::Challenge;
use kubelet_attestation::version::EvidenceVersion;

use super::attempt::Attempt;
use super::outcome::{denied, unreadable_challenge, unsupported};
use super::remedies::{bootstrap_refused, certificate_failure, refused_certificate};
use super::step::Step;
use crate::clock;
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{ClusterEndpoint, Kubeconfig};
use crate::kube::{ApiClient, ApiError, ApiErrorKind, CsrState};
use crate::pending::{OpenRequest, Pending, Subject};
use crate::reasons;
use crate::store::StoreLock;

/// The reasons for a denial of a request whose certificate is not recorded in the `NodeIdentity` of the node. The
/// controller can still approve a request that uses the bootstrap credential, because such a request claims the name
/// again.
const NOT_THE_RECORDS: [&str; 3] = [FORMER_CERTIFICATE, RECORD_MISSING, REQUESTER_UID_MISSING];

/// The reasons for a denial because of the request's key: the certificates with this key were revoked, or the key
/// belongs to another machine. A request with a new key is a new claim, which the controller can grant.
const NOT_WITH_THIS_KEY: [&str; 2] = [IDENTITY_REVOKED, KEY_OF_ANOTHER_MACHINE];

/// The maximum number of challenges that a run answers: the first challenge, and another challenge if the response to
/// the first arrived too late.
const MAX_CHALLENGES: u32 = 2;

/// The requests that a run sends for one subject with one key.
pub(super) struct Negotiation<'a> {
    pub(super) attempt: &'a Attempt,
    pub(super) store: &'a StoreLock,
    pub(super) pending: &'a mut Pending,
    pub(super) subject: &'a Subject,
    /// The lifetime of the stored certificate, if the API server accepts the certificate and it is valid.
    pub(super) lifetime: Option<Duration>,
    /// The version of the next evidence.
    pub(super) version: EvidenceVersion,
    pub(super) endpoint: &'a ClusterEndpoint,
    pub(super) client: ApiClient,
    /// Whether the key is the key of the stored certificate. If the controller denies that key, the run creates another
    /// key, but only once.
    pub(super) has_stored_key: bool,
    /// Whether the client uses the bootstrap credential. The client switches to the bootstrap credential once, if the
    /// API server refuses the stored certificate.
    pub(super) is_bootstrap: bool,
}

impl Negotiation<'_> {
    /// Sends requests and returns the issued chain.
    ///
    /// All requests have the same key, and each request is saved before it is sent. If a run is killed between a
    /// challenge and the response, the next run continues with the challenged request, which still exists in the API
    /// server.
    pub(super) fn run(mut self) -> Result<String, Failure> {
        let mut may_change_version = true;
        let mut challenges_left = MAX_CHALLENGES;
        let mut open = self.open_request()?;
        loop {
            let decision = self.submit_and_wait(&open)?;
            let another = match &decision {
                Some(CsrState::Denied { reason, message })
                    if !self.is_bootstrap && NOT_THE_RECORDS.contains(&reason.as_str()) =>
                {
                    let remedy = refused_certificate(&self.attempt.settings.bootstrap_kubeconfig);
                    let denied = denied(&open, reason, message, remedy);
                    if let Err(failure) = self.change_to_bootstrap(denied) {
                        // A failure that affects only this machine has no back-off. In this case, the request is kept,
                        // so that the next run does not create another request.
                        if failure.code() == Code::Denied {
                            self.pending.drop_request(self.store)?;
                        }
                        return Err(failure);
                    }
                    Some(self.again()?)
                }
                Some(CsrState::Denied { reason, message })
                    if self.has_stored_key && NOT_WITH_THIS_KEY.contains(&reason.as_str()) =>
                {
                    self.attempt.log.warn(&format!(
                        "the controller denied the key of the stored certificate ({reason}); \
                         creating a new key: {message}"
                    ));
                    Some(self.with_another_key()?)
                }
                Some(CsrState::Failed {
                    reason,
                    message,
                    supported_versions: supported,
                    challenge,
                }) => match reason.as_str() {
                    UNSUPPORTED_ATTESTATION_VERSION => {
                        // Try another version only once, because a controller that rejects a version from its own list
                        // must not cause a loop.
                        let another = self
                            .another_version(supported)
                            .filter(|_| mem::take(&mut may_change_version));
                        let Some(another) = another else {
                            self.pending.drop_request(self.store)?;
                            return Err(unsupported(&self.version, supported, message));
                        };
                        self.version = another;
                        Some(self.again()?)
                    }
                    CHALLENGE_ISSUED if challenges_left > 0 => {
                        challenges_left -= 1;
                        match challenge.as_deref().map(Challenge::parse) {
                            None => None,
                            // A challenge from an earlier run might have expired. Whether a challenge from this run has
                            // expired depends only on the controller's clock.
                            Some(Ok(challenge)) if open.acknowledged && has_ended(&challenge) => {
                                let step =
                                    "the challenge has expired; requesting another challenge";
                                self.attempt.log.step(step);
                                Some(self.again()?)
                            }
                            Some(Ok(challenge)) => {
                                self.attempt.steps.done(Step::Challenged);
                                self.answer(&open, &challenge)?
                            }
                            Some(Err(error)) => {
                                self.pending.drop_request(self.store)?;
                                return Err(unreadable_challenge(&open, &error));
                            }
                        }
                    }
                    EVIDENCE_EXPIRED if open.answers && challenges_left > 0 => Some(self.again()?),
                    _ => None,
                },
                Some(CsrState::Pending | CsrState::Denied { .. } | CsrState::Issued { .. })
                | None => None,
            };
            match another {
                Some(another) => open = another,
                None => return self.conclude(&open, decision),
            }
        }
    }

    /// Returns the issued chain, or the failure, according to the decision on `open`.
    fn conclude(self, open: &OpenRequest, decision: Option<CsrState>) -> Result<String, Failure> {
        let name = &open.name;
        let failure = match decision {
            Some(CsrState::Issued { chain_pem }) => return Ok(chain_pem),
            Some(CsrState::Pending) => {
                return Err(Failure::new(
                    Code::Pending,
                    format!("request {name} is still pending"),
                    "find out why node-attestation-controller has not answered it; the next run waits for the same \
                     request",
                ));
            }
            Some(CsrState::Denied { reason, message }) => {
                denied(open, &reason, &message, reasons::remedy(&reason))
            }
            Some(CsrState::Failed {
                reason, message, ..
            }) => Failure::new(
                Code::Failed,
                format!("request {name} failed ({reason}): {message}"),
                "the next run creates another request; ".to_owned() + &reasons::remedy(&reason),
            ),
            None => Failure::new(
                Code::Failed,
                format!("request {name} was deleted before a decision"),
                "the next run creates another request",
            ),
        };
        self.pending.drop_request(self.store)?;
        Err(failure)
    }

    /// Creates a request with new evidence. The name of a CSR is derived from its bytes, so the plugin cannot send the
    /// same bytes again.
    fn again(&mut self) -> Result<OpenRequest, Failure> {
        self.pending.drop_request(self.store)?;
        self.open_request()
    }

    fn another_version(&self, supported: &[EvidenceVersion]) -> Option<EvidenceVersion> {
        let mut ours = self.attempt.attester.versions().into_iter();
        ours.find(|ours| supported.contains(ours) && *ours != self.version)
    }

    /// Uses the bootstrap credential from now on, because the API server refused a certificate that has not expired.
    /// This happens if the CA was replaced, if the certificate was revoked, or if the `NodeIdentity` has a different
    /// holder. Returns `refused` if no bootstrap kubeconfig is usable.
    fn change_to_bootstrap(&mut self, refused: Failure) -> Result<(), Failure> {
        let path = &self.attempt.settings.bootstrap_kubeconfig;
        let Ok(bootstrap) = Kubeconfig::read(path) else {
            return Err(refused);
        };
        self.attempt.log.warn(&format!(
            "the API server refuses the certificate ({refused}); using the bootstrap credential"
        ));
        let environment = |name: &str| std::env::var_os(name);
        self.client = ApiClient::connect(self.endpoint, &bootstrap.login, &environment)?;
        self.is_bootstrap = true;
        Ok(())
    }

    /// Sends `open` and waits for the decision. Returns `Pending` without a decision at the deadline, and `None` if the
    /// request was deleted.
    ///
    /// If the API server refuses the stored certificate, this function uses the bootstrap credential from then on.
    fn submit_and_wait(&mut self, open: &OpenRequest) -> Result<Option<CsrState>, Failure> {
        loop {
            let error = match self.ask(open) {
                Ok(decision) => {
                    if decision != Some(CsrState::Pending) {
                        self.attempt.steps.done(Step::Decided);
                    }
                    return Ok(decision);
                }
                Err(error) => error,
            };
            // A different request has this name. The next run creates a request with new bytes, and therefore with a
            // different name.
            if error.kind == ApiErrorKind::NameConflict {
                self.pending.drop_request(self.store)?;
            }
            let path = &self.attempt.settings.bootstrap_kubeconfig;
            ensure!(!self.is_bootstrap, bootstrap_refused(error, path));
            let is_about_the_requester = error.is_about_the_requester();
            let refused = certificate_failure(error, path);
            ensure!(is_about_the_requester, refused);
            self.change_to_bootstrap(refused)?;
        }
    }

    /// Sends `open` if necessary, and waits for the decision. A new request needs one create call and one watch. An
    /// acknowledged request needs one read, and one watch if it is still pending.
    fn ask(&mut self, open: &OpenRequest) -> Result<Option<CsrState>, ApiError> {
        let attempt = self.attempt;
        let deadline = attempt.allowed.decision(attempt.deadline);
        let csr = open.to_csr();
        attempt.log.step(&format!("creating request {}", open.name));
        let mut found = None;
        if open.acknowledged {
            found = self.client.get(csr.name, deadline)?;
        }
        if found.is_none() {
            found = self.client.create(csr, deadline)?;
        }
        if found.is_none() {
            found = self.client.get(csr.name, deadline)?;
        }
        let Some(found) = found else {
            return Ok(None);
        };
        if !csr.is_what_was_stored(&found) {
            return Err(ApiError::name_conflict(csr.name));
        }
        if let (Some(request), false) = (&mut self.pending.request, open.acknowledged) {
            request.acknowledged = true;
            // If the save fails, the next run finds the request by its name.
            drop(self.pending.save(self.store));
        }
        attempt.steps.done(if open.answers {
            Step::AnswerAcknowledged
        } else {
            Step::Acknowledged
        });
        let decided = self.client.wait(&found, deadline)?;
        Ok(decided.map(|found| found.state))
    }
}

fn has_ended(challenge: &Challenge) -> bool {
    // A challenge with an invalid date counts as expired.
    humantime::parse_rfc3339(challenge.expiry.as_str()).map_or(true, |end| end <= clock::now())
}
