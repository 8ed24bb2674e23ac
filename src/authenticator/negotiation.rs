//! Requests, one after the other, until one is issued or nothing is left to ask for.
//!
//! Mostly it is one. A controller that does not accept the version of the evidence gets another
//! request, once; one that challenges the machine gets its answer in another.

use kubelet_attestation::csr::CLIENT_USAGES;
use kubelet_attestation::evidence::tpm::Challenge;
use kubelet_attestation::version::EvidenceVersion;

use super::attempt::{Attempt, Locked};
use super::exit_code::{api_failure, certificate_failure, enrolment_failure, refused_certificate};
use super::outcome::{conclude, denied, no_version, unreadable_challenge, unsupported};
use super::step::Step;
use crate::clock;
use crate::enrolment::{self, Decision, EnrolmentError};
use crate::failure::Failure;
use crate::kube::kubeconfig::{ClusterEndpoint, Login};
use crate::kube::{ApiClient, ApiError, NewCsr};
use crate::pending::{OpenRequest, Pending, Subject};
use crate::store::StoreFile;

/// A controller's word for evidence in a version that it does not accept.
const UNSUPPORTED_VERSION: &str = "UnsupportedAttestationVersion";

/// A controller's word for evidence that it answers with a challenge.
const CHALLENGE_ISSUED: &str = "ChallengeIssued";

/// A controller's word for evidence, and for the answer to a challenge, that comes too late.
const EVIDENCE_EXPIRED: &str = "EvidenceExpired";

/// A controller's words for a request by a certificate that the ledger does not know as the node's.
/// A request by the bootstrap credential may still be granted: it claims the name anew.
const NOT_THE_RECORDS: [&str; 3] = ["FormerCertificate", "RecordMissing", "RequesterUidMissing"];

/// The challenges that are answered in one run: one, and another where the answer to it came too
/// late.
const MAX_CHALLENGES: u32 = 2;

/// By what credential the API server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requester {
    /// The stored certificate. If it is not accepted, the bootstrap credential is used once.
    Certificate,
    /// The bootstrap credential.
    Bootstrap,
}

/// The API server, and as whom it is asked.
pub(super) struct Connection {
    endpoint: ClusterEndpoint,
    login: Login,
    requester: Requester,
    client: Option<ApiClient>,
}

impl Connection {
    /// Connects to nothing yet.
    pub(super) fn new(endpoint: ClusterEndpoint, login: Login, requester: Requester) -> Self {
        Self {
            endpoint,
            login,
            requester,
            client: None,
        }
    }

    /// Asks with the bootstrap credential from now on.
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
            ApiClient::connect(&self.endpoint, &self.login, &environment)
                .map_err(|error| api_failure(&error))?
        };
        Ok(self.client.insert(client))
    }
}

/// What is left to try.
struct Budget {
    another_version: bool,
    challenges: u32,
}

/// What to ask for after a request that failed.
enum Next {
    /// As before, with new evidence.
    Enrolment,
    /// The same with the answer to a challenge.
    Answer(Challenge),
    /// Nothing.
    Nothing,
}

impl Attempt {
    /// The issued chain for `subject`.
    ///
    /// Every request is saved before it is sent, with the same key. A run that is killed between a
    /// challenge and its answer is taken up by the next at the request that was challenged, which
    /// the API server still has.
    pub(super) fn negotiate(
        &self,
        locked: &Locked<'_>,
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
        let mut open = self.open_request(locked, pending, subject, &version)?;
        loop {
            let decision = self.submit_and_wait(locked, server, pending, &open)?;
            if let Some(refused) = not_the_records(&decision, server.requester, &open) {
                let path = &self.settings.bootstrap_kubeconfig;
                let Some(bootstrap) = self.bootstrap_login(&refused) else {
                    locked.drop_request(pending)?;
                    let remedy = refused_certificate(path);
                    return Err(Failure::new(refused.code(), refused.what(), remedy));
                };
                server.change_to(bootstrap);
                locked.drop_request(pending)?;
                open = self.open_request(locked, pending, subject, &version)?;
                continue;
            }
            let Decision::Failed {
                reason,
                message,
                supported,
                challenge,
            } = &decision
            else {
                return conclude(locked, pending, decision);
            };
            let next = match reason.as_str() {
                UNSUPPORTED_VERSION => {
                    // Once: a controller that refuses what it asks for is not asked for ever.
                    let another = self
                        .another_version(supported, &version)
                        .filter(|_| std::mem::take(&mut budget.another_version));
                    let Some(another) = another else {
                        locked.drop_request(pending)?;
                        return Err(unsupported(&version, supported, message));
                    };
                    version = another;
                    Next::Enrolment
                }
                CHALLENGE_ISSUED => match challenge.as_deref().map(Challenge::parse) {
                    None => Next::Nothing,
                    Some(Ok(challenge)) => self.next(challenge, &open, &mut budget),
                    Some(Err(error)) => {
                        locked.drop_request(pending)?;
                        return Err(unreadable_challenge(&open, &error));
                    }
                },
                EVIDENCE_EXPIRED if open.answers && budget.challenges > 0 => Next::Enrolment,
                _ => Next::Nothing,
            };
            let another = match next {
                Next::Enrolment => {
                    locked.drop_request(pending)?;
                    Some(self.open_request(locked, pending, subject, &version)?)
                }
                Next::Answer(challenge) => {
                    self.answer(locked, pending, &open, &version, &challenge)?
                }
                Next::Nothing => None,
            };
            match another {
                Some(another) => open = another,
                None => return conclude(locked, pending, decision),
            }
        }
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

    /// What to do about the challenge in which `open` ended.
    fn next(&self, challenge: Challenge, open: &OpenRequest, budget: &mut Budget) -> Next {
        let Some(left) = budget.challenges.checked_sub(1) else {
            return Next::Nothing;
        };
        budget.challenges = left;
        // What an earlier run was asked may have ended since; for what was asked just now it is the
        // controller's clock that counts.
        if open.acknowledged && has_ended(&challenge) {
            self.log.step("the challenge has ended: asking for another");
            return Next::Enrolment;
        }
        self.steps.done(Step::Challenged);
        Next::Answer(challenge)
    }

    fn submit_and_wait(
        &self,
        locked: &Locked<'_>,
        server: &mut Connection,
        pending: &mut Pending,
        open: &OpenRequest,
    ) -> Result<Decision, Failure> {
        loop {
            let error = match self.ask(locked, server.client()?, pending, open)? {
                Ok(decision) => return Ok(decision),
                Err(error) => error,
            };
            if server.requester == Requester::Bootstrap {
                return Err(enrolment_failure(&error));
            }
            let refused = certificate_failure(&error, &self.settings.bootstrap_kubeconfig);
            if !is_about_the_requester(&error) {
                return Err(refused);
            }
            let bootstrap = self.bootstrap_login(&refused).ok_or(refused)?;
            server.change_to(bootstrap);
        }
    }

    fn ask(
        &self,
        locked: &Locked<'_>,
        client: &ApiClient,
        pending: &mut Pending,
        open: &OpenRequest,
    ) -> Result<Result<Decision, EnrolmentError>, Failure> {
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
                    drop(locked.write(StoreFile::Pending, &pending.to_json()));
                }
                self.steps.done(if open.answers {
                    Step::AnswerAcknowledged
                } else {
                    Step::Acknowledged
                });
            },
            self.deadline,
        );
        if let Err(EnrolmentError::NameConflict { .. }) = &decision {
            locked.drop_request(pending)?;
        }
        if !matches!(decision, Err(_) | Ok(Decision::Undecided)) {
            self.steps.done(Step::Decided);
        }
        Ok(decision)
    }
}

/// Whether the API server refuses whoever asks: another may be let through.
fn is_about_the_requester(error: &EnrolmentError) -> bool {
    matches!(
        error,
        EnrolmentError::Api(ApiError::Unauthorized { .. } | ApiError::Forbidden { .. })
    )
}

/// Why the certificate that made `open` is not accepted, if it is not.
fn not_the_records(
    decision: &Decision,
    requester: Requester,
    open: &OpenRequest,
) -> Option<Failure> {
    let Decision::Denied { reason, message } = decision else {
        return None;
    };
    let by_certificate = requester == Requester::Certificate;
    (by_certificate && NOT_THE_RECORDS.contains(&reason.as_str()))
        .then(|| denied(&open.name, reason, message))
}

fn has_ended(challenge: &Challenge) -> bool {
    // A day that there is not has no end that is still to come.
    humantime::parse_rfc3339(challenge.expiry.as_str()).map_or(true, |end| end <= clock::now())
}
