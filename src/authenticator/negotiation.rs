//! The requests of a run, one after the other, until one is issued or no other request can help.
//!
//! Most runs send one request. If the controller rejects the evidence version, the run sends
//! another, once. If the controller challenges the machine, the answer goes into another request.

use kubelet_attestation::csr::CLIENT_USAGES;
use kubelet_attestation::evidence::tpm::Challenge;
use kubelet_attestation::version::EvidenceVersion;

use super::attempt::Attempt;
use super::exit_code::{certificate_failure, refused_certificate};
use super::outcome::{conclude, denied, no_version, unreadable_challenge, unsupported};
use super::step::Step;
use crate::clock;
use crate::enrolment;
use crate::failure::Failure;
use crate::kube::kubeconfig::{ClusterEndpoint, Login};
use crate::kube::{ApiClient, ApiError, ApiErrorKind, CsrState, NewCsr};
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

/// The API server, and the login for it.
pub(super) struct Connection {
    endpoint: ClusterEndpoint,
    login: Login,
    requester: Requester,
    client: Option<ApiClient>,
}

impl Connection {
    /// Does not connect yet.
    pub(super) fn new(endpoint: ClusterEndpoint, login: Login, requester: Requester) -> Self {
        Self {
            endpoint,
            login,
            requester,
            client: None,
        }
    }

    /// Uses the bootstrap credential from now on.
    fn change_to(&mut self, bootstrap: Login) {
        self.login = bootstrap;
        self.requester = Requester::Bootstrap;
        self.client = None;
    }

    fn client(&mut self) -> Result<&ApiClient, Failure> {
        let client = if let Some(client) = self.client.take() {
            client
        } else {
            let environment = |name: &str| std::env::var_os(name);
            ApiClient::connect(&self.endpoint, &self.login, &environment)?
        };
        Ok(self.client.insert(client))
    }
}

/// The retries that are left.
struct Budget {
    another_version: bool,
    challenges: u32,
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
        server: &mut Connection,
        pending: &mut Pending,
        subject: &Subject,
    ) -> Result<String, Failure> {
        let mut versions = self.attester.versions().into_iter();
        let mut version = versions.next().ok_or_else(no_version)?;
        let mut budget = Budget {
            another_version: true,
            challenges: MAX_CHALLENGES,
        };
        let mut open = self.open_request(store, pending, subject, &version)?;
        loop {
            let decision = self.submit_and_wait(store, server, pending, &open)?;
            if let Some(refused) = not_the_records(decision.as_ref(), server.requester, &open) {
                let path = &self.settings.bootstrap_kubeconfig;
                let Some(bootstrap) = self.bootstrap_login(&refused) else {
                    pending.drop_request(store)?;
                    let remedy = refused_certificate(path);
                    return Err(Failure::new(refused.code(), refused.what(), remedy));
                };
                server.change_to(bootstrap);
                open = self.again(store, pending, subject, &version)?;
                continue;
            }
            let Some(CsrState::Failed {
                reason,
                message,
                supported_versions: supported,
                challenge,
            }) = &decision
            else {
                return conclude(store, pending, decision);
            };
            let another = match reason.as_str() {
                UNSUPPORTED_VERSION => {
                    // Once: a controller that rejects a version that it lists itself must not cause
                    // a loop.
                    let another = self
                        .another_version(supported, &version)
                        .filter(|_| std::mem::take(&mut budget.another_version));
                    let Some(another) = another else {
                        pending.drop_request(store)?;
                        return Err(unsupported(&version, supported, message));
                    };
                    version = another;
                    Some(self.again(store, pending, subject, &version)?)
                }
                CHALLENGE_ISSUED if budget.challenges > 0 => {
                    budget.challenges -= 1;
                    match challenge.as_deref().map(Challenge::parse) {
                        None => None,
                        // A challenge of an earlier run may have expired. For a challenge of this
                        // run only the controller's clock counts.
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
                EVIDENCE_EXPIRED if open.answers && budget.challenges > 0 => {
                    Some(self.again(store, pending, subject, &version)?)
                }
                _ => None,
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

    fn submit_and_wait(
        &self,
        store: &StoreLock,
        server: &mut Connection,
        pending: &mut Pending,
        open: &OpenRequest,
    ) -> Result<Option<CsrState>, Failure> {
        loop {
            let error = match self.ask(store, server.client()?, pending, open)? {
                Ok(decision) => return Ok(decision),
                Err(error) => error,
            };
            if server.requester == Requester::Bootstrap {
                return Err(error.into());
            }
            let refused = certificate_failure(&error, &self.settings.bootstrap_kubeconfig);
            if !error.is_about_the_requester() {
                return Err(refused);
            }
            let bootstrap = self.bootstrap_login(&refused).ok_or(refused)?;
            server.change_to(bootstrap);
        }
    }

    fn ask(
        &self,
        store: &StoreLock,
        client: &ApiClient,
        pending: &mut Pending,
        open: &OpenRequest,
    ) -> Result<Result<Option<CsrState>, ApiError>, Failure> {
        let csr = NewCsr {
            name: &open.name,
            signer_name: &open.subject.signer_name,
            usages: &CLIENT_USAGES,
            expiration_seconds: open.subject.expiration_seconds,
            request: &open.bytes,
        };
        self.log.step(&format!("asking as {}", open.name));
        let acknowledged = open.acknowledged;
        let decision = enrolment::submit_and_wait(
            client,
            csr,
            acknowledged,
            || {
                if let (Some(request), false) = (&mut pending.request, acknowledged) {
                    request.acknowledged = true;
                    // If this fails, the next run finds its own request by its name.
                    drop(pending.save(store));
                }
                self.steps.done(if open.answers {
                    Step::AnswerAcknowledged
                } else {
                    Step::Acknowledged
                });
            },
            self.deadline,
        );
        // Another request has this name. New bytes give the next run's request another name.
        if let Err(error) = &decision
            && error.kind == ApiErrorKind::NameConflict
        {
            pending.drop_request(store)?;
        }
        if !matches!(decision, Err(_) | Ok(Some(CsrState::Pending))) {
            self.steps.done(Step::Decided);
        }
        Ok(decision)
    }
}

/// The failure of `open`, if its denial is about the requesting certificate.
fn not_the_records(
    decision: Option<&CsrState>,
    requester: Requester,
    open: &OpenRequest,
) -> Option<Failure> {
    let Some(CsrState::Denied { reason, message }) = decision else {
        return None;
    };
    let by_certificate = requester == Requester::Certificate;
    (by_certificate && NOT_THE_RECORDS.contains(&reason.as_str()))
        .then(|| denied(&open.name, reason, message))
}

fn has_ended(challenge: &Challenge) -> bool {
    // An invalid date counts as expired.
    humantime::parse_rfc3339(challenge.expiry.as_str()).map_or(true, |end| end <= clock::now())
}
