//! The requests of a run, one after the other, until one is issued or no other request can help.
//!
//! Most runs send one request. If the controller rejects the evidence version, the run sends
//! another, once. If the controller challenges the machine, the answer goes into another request.

use std::mem;
use std::sync::Arc;

use kubelet_attestation::ensure;
use kubelet_attestation::evidence::tpm::Challenge;
use kubelet_attestation::version::EvidenceVersion;

use super::attempt::Attempt;
use super::outcome::{conclude, denied, unreadable_challenge, unsupported};
use super::remedies::{certificate_failure, refused_certificate};
use super::step::Step;
use crate::clock;
use crate::failure::Failure;
use crate::kube::kubeconfig::{ClusterEndpoint, Login};
use crate::kube::{ApiClient, ApiError, ApiErrorKind, CsrState};
use crate::pending::{OpenRequest, Pending, Subject};
use crate::store::StoreLock;

/// The reason of a failed request whose evidence version the controller does not accept.
const UNSUPPORTED_VERSION: &str = "UnsupportedAttestationVersion";

/// The reason of a failed request that the controller answered with a challenge.
const CHALLENGE_ISSUED: &str = "ChallengeIssued";

/// The reason of a failed request whose evidence, or answer to a challenge, arrived too late.
const EVIDENCE_EXPIRED: &str = "EvidenceExpired";

/// The reasons of a denial that is about the requesting certificate: the ledger does not record it
/// as the node's. A request with the bootstrap credential may still be granted, because it claims
/// the name anew.
const NOT_THE_RECORDS: [&str; 3] = ["FormerCertificate", "RecordMissing", "RequesterUidMissing"];

/// The maximum number of challenges that a run answers: one, and another if the first answer
/// arrived too late.
const MAX_CHALLENGES: u32 = 2;

/// The credential of a request to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requester {
    /// The stored certificate. If the API server refuses it, the run uses the bootstrap credential,
    /// once.
    Certificate,
    Bootstrap,
}

/// The API server, and a client with the current login.
pub(super) struct Connection {
    endpoint: Arc<ClusterEndpoint>,
    requester: Requester,
    client: ApiClient,
}

impl Connection {
    /// Sends nothing yet.
    pub(super) fn new(
        endpoint: Arc<ClusterEndpoint>,
        login: &Login,
        requester: Requester,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            client: ApiClient::connect(&endpoint, login, &|name| std::env::var_os(name))?,
            endpoint,
            requester,
        })
    }

    /// Uses the bootstrap credential from now on.
    fn change_to(&mut self, bootstrap: &Login) -> Result<(), ApiError> {
        let endpoint = Arc::clone(&self.endpoint);
        *self = Self::new(endpoint, bootstrap, Requester::Bootstrap)?;
        Ok(())
    }
}

impl Attempt {
    /// Sends requests for `subject` and returns the issued chain.
    ///
    /// Every request is saved before it is sent, and has the same key. If a run is killed between a
    /// challenge and its answer, the next run continues with the challenged request, which the API
    /// server still has.
    pub(super) fn negotiate(
        &self,
        store: &StoreLock,
        mut server: Connection,
        pending: &mut Pending,
        subject: &Subject,
    ) -> Result<String, Failure> {
        let mut version = self.preferred_version();
        let mut may_change_version = true;
        let mut challenges_left = MAX_CHALLENGES;
        let mut open = self.open_request(store, pending, subject, &version)?;
        loop {
            let decision = self.submit_and_wait(store, &mut server, pending, &open)?;
            let another = match &decision {
                Some(CsrState::Denied { reason, message })
                    if server.requester == Requester::Certificate
                        && NOT_THE_RECORDS.contains(&reason.as_str()) =>
                {
                    let refused = denied(&open.name, reason, message);
                    let Some(bootstrap) = self.bootstrap_login(&refused) else {
                        pending.drop_request(store)?;
                        let remedy = refused_certificate(&self.settings.bootstrap_kubeconfig);
                        return Err(Failure::new(refused.code(), refused.what(), remedy));
                    };
                    server.change_to(&bootstrap)?;
                    Some(self.again(store, pending, subject, &version)?)
                }
                Some(CsrState::Failed {
                    reason,
                    message,
                    supported_versions: supported,
                    challenge,
                }) => match reason.as_str() {
                    UNSUPPORTED_VERSION => {
                        // Once: a controller that rejects a version that it lists itself must not
                        // cause a loop.
                        let another = self
                            .another_version(supported, &version)
                            .filter(|_| mem::take(&mut may_change_version));
                        let Some(another) = another else {
                            pending.drop_request(store)?;
                            return Err(unsupported(&version, supported, message));
                        };
                        version = another;
                        Some(self.again(store, pending, subject, &version)?)
                    }
                    CHALLENGE_ISSUED if challenges_left > 0 => {
                        challenges_left -= 1;
                        match challenge.as_deref().map(Challenge::parse) {
                            None => None,
                            // A challenge of an earlier run may have expired. For a challenge of
                            // this run only the controller's clock counts.
                            Some(Ok(challenge)) if open.acknowledged && has_ended(&challenge) => {
                                self.log.step("the challenge has ended: asking for another");
                                Some(self.again(store, pending, subject, &version)?)
                            }
                            Some(Ok(challenge)) => {
                                self.steps.done(Step::Challenged);
                                self.answer(store, pending, &open, &version, &challenge)?
                            }
                            Some(Err(error)) => {
                                pending.drop_request(store)?;
                                return Err(unreadable_challenge(&open, &error));
                            }
                        }
                    }
                    EVIDENCE_EXPIRED if open.answers && challenges_left > 0 => {
                        Some(self.again(store, pending, subject, &version)?)
                    }
                    _ => None,
                },
                Some(CsrState::Pending | CsrState::Denied { .. } | CsrState::Issued { .. })
                | None => None,
            };
            match another {
                Some(another) => open = another,
                None => return conclude(store, pending, decision),
            }
        }
    }

    /// A request with new evidence. The object of the last one has a name made from its bytes, so
    /// they cannot be submitted again.
    fn again(
        &self,
        store: &StoreLock,
        pending: &mut Pending,
        subject: &Subject,
        version: &EvidenceVersion,
    ) -> Result<OpenRequest, Failure> {
        pending.drop_request(store)?;
        self.open_request(store, pending, subject, version)
    }

    fn another_version(
        &self,
        supported: &[EvidenceVersion],
        refused: &EvidenceVersion,
    ) -> Option<EvidenceVersion> {
        self.attester
            .versions()
            .into_iter()
            .find(|ours| supported.contains(ours) && ours != refused)
    }

    /// Sends `open`, and waits for the decision: `Pending` if there was none before the deadline,
    /// and `None` if the request was deleted.
    ///
    /// If the API server refuses the stored certificate, uses the bootstrap credential from then
    /// on.
    fn submit_and_wait(
        &self,
        store: &StoreLock,
        server: &mut Connection,
        pending: &mut Pending,
        open: &OpenRequest,
    ) -> Result<Option<CsrState>, Failure> {
        loop {
            let error = match self.ask(store, &server.client, pending, open) {
                Ok(decision) => {
                    if decision != Some(CsrState::Pending) {
                        self.steps.done(Step::Decided);
                    }
                    return Ok(decision);
                }
                Err(error) => error,
            };
            // Another request has this name. New bytes give the next run's request another name.
            if error.kind == ApiErrorKind::NameConflict {
                pending.drop_request(store)?;
            }
            ensure!(server.requester != Requester::Bootstrap, error.into());
            let is_about_the_requester = error.is_about_the_requester();
            let refused = certificate_failure(error, &self.settings.bootstrap_kubeconfig);
            ensure!(is_about_the_requester, refused);
            let bootstrap = self.bootstrap_login(&refused).ok_or(refused)?;
            server.change_to(&bootstrap)?;
        }
    }

    /// A new request costs one create and one watch. An acknowledged request costs one read, and
    /// one watch if it is still pending.
    fn ask(
        &self,
        store: &StoreLock,
        client: &ApiClient,
        pending: &mut Pending,
        open: &OpenRequest,
    ) -> Result<Option<CsrState>, ApiError> {
        let csr = open.to_csr();
        self.log.step(&format!("asking as {}", open.name));
        let mut found = None;
        if open.acknowledged {
            found = client.get(csr.name, self.deadline)?;
        }
        if found.is_none() {
            found = client.create(csr, self.deadline)?;
        }
        if found.is_none() {
            found = client.get(csr.name, self.deadline)?;
        }
        let Some(found) = found else {
            return Ok(None);
        };
        if !csr.is_what_was_stored(&found) {
            return Err(ApiError::name_conflict(csr.name));
        }
        if let (Some(request), false) = (&mut pending.request, open.acknowledged) {
            request.acknowledged = true;
            // If this fails, the next run finds its own request by its name.
            drop(pending.save(store));
        }
        self.steps.done(if open.answers {
            Step::AnswerAcknowledged
        } else {
            Step::Acknowledged
        });
        let decided = client.wait(&found, self.deadline)?;
        Ok(decided.map(|found| found.state))
    }
}

fn has_ended(challenge: &Challenge) -> bool {
    // An invalid date counts as expired.
    humantime::parse_rfc3339(challenge.expiry.as_str()).map_or(true, |end| end <= clock::now())
}
