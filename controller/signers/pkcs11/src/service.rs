//! The gRPC service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use node_attestation_signer_api::external_signer_server::ExternalSigner;
use node_attestation_signer_api::{
    SignRequest, SignResponse, StatusRequest, StatusResponse, VERSION,
};
use node_attestation_turns::{FairTurns, Line, TurnLimits};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::{Request, Response, Status};

use crate::authority::{Authority, Cluster};
use crate::chain::chain;
use crate::log_lines::LogLines;
use crate::policy;
use crate::token::{Keys, TokenError};
use crate::turns::{Busy, Turns};

/// The time for which the token counts as healthy after a successful response.
const GOOD_FOR: Duration = Duration::from_secs(3);

/// The deadline for the token's response to `Status`. The controller waits 3 seconds.
const STATUS_DEADLINE: Duration = Duration::from_secs(2);

/// The health of a token that does not respond.
const BUSY: &str = "the token has not responded to earlier calls";

/// The maximum number of problems in a response, and the maximum length of each text. The controller reads at most 4
/// KiB.
const MAX_PROBLEMS: usize = 8;
const MAX_PROBLEM_LEN: usize = 256;

/// Signs for several CAs with the keys of one token.
pub(crate) struct Service<T> {
    token: Arc<T>,
    limits: Calls,
    /// The turns that all CAs share.
    calls: FairTurns,
    served: watch::Sender<Arc<Served>>,
    /// The files that the signer does not use, with the reasons.
    refused: watch::Sender<Vec<String>>,
    /// The Clusters whose key the token does not have, with the error.
    missing: watch::Sender<BTreeMap<Cluster, String>>,
    /// Whether a thread checks keys.
    is_checking: Arc<AtomicBool>,
    /// The time of the token's last successful response.
    good: watch::Sender<Option<Instant>>,
    /// The latest check of the token. All concurrent `Status` calls wait for it.
    checked: parking_lot::Mutex<Option<Checked>>,
    lines: LogLines,
    clock: fn() -> SystemTime,
}

/// The CAs. Each Cluster has one.
type Served = BTreeMap<Cluster, Arc<Signing>>;

/// A CA, with its turns for calls to the token.
struct Signing {
    authority: Arc<Authority>,
    /// The turns of this CA. An abandoned call keeps one of them until the token responds.
    turns: Turns,
    /// The queue of this CA for the turns of all CAs, which rotate through the namespaces, and then through the keys.
    /// An abandoned call does not keep one of these turns.
    line: Line,
    /// Whether the signer has found the key in the token.
    has_key: AtomicBool,
}

/// The result of a check. `None` until the token responds.
type Checked = watch::Receiver<Option<Result<(), String>>>;

impl<T: Keys> Service<T> {
    /// A service without CAs. `calls` limits the concurrent signatures, both in total and for each CA.
    pub(crate) fn new(token: T, calls: Calls, clock: fn() -> SystemTime) -> Self {
        Self {
            token: Arc::new(token),
            limits: calls,
            calls: FairTurns::new(TurnLimits {
                all: calls.of_all,
                of_cluster: calls.of_ca,
            }),
            served: watch::Sender::default(),
            refused: watch::Sender::default(),
            missing: watch::Sender::default(),
            is_checking: Arc::default(),
            good: watch::Sender::new(None),
            checked: parking_lot::Mutex::default(),
            lines: LogLines::default(),
            clock,
        }
    }

    /// Serves exactly these CAs. `refused` contains the files that are not used, with the reasons. Calls in progress
    /// are completed. A CA that was served before keeps its turns, even if its file has changed. Otherwise, each change
    /// would permit more abandoned calls, and each of them occupies a thread.
    pub(crate) fn serve(
        &self,
        authorities: impl IntoIterator<Item = Arc<Authority>>,
        refused: Vec<String>,
    ) {
        let former = self.served.borrow().clone();
        let served = authorities.into_iter().map(|authority| {
            let of_cluster = former.get(&authority.cluster);
            let same = of_cluster.filter(|signing| Arc::ptr_eq(&signing.authority, &authority));
            let signing = same.cloned().unwrap_or_else(|| {
                let of_key =
                    of_cluster.filter(|signing| signing.authority.key_label == authority.key_label);
                let turns = of_key.map(|signing| signing.turns.clone());
                Arc::new(Signing {
                    turns: turns.unwrap_or_else(|| Turns::new(self.limits.of_ca)),
                    line: self.calls.line(&*authority),
                    has_key: AtomicBool::new(false),
                    authority: authority.clone(),
                })
            });
            (authority.cluster.clone(), signing)
        });
        let served: Served = served.collect();
        self.served.send_replace(Arc::new(served));
        self.refused.send_replace(refused);
    }

    /// Checks that the token has the keys that were not found yet, in a thread that can block. One check runs at a
    /// time. A missing key affects only its own CA.
    pub(crate) fn check_keys(&self) {
        if self.is_checking.swap(true, Ordering::AcqRel) {
            return;
        }
        let (token, served) = (self.token.clone(), self.served.borrow().clone());
        let (missing, is_checking) = (self.missing.clone(), self.is_checking.clone());
        // The thread is not joined, because `missing` gets the result.
        drop(tokio::task::spawn_blocking(move || {
            let found = missing_keys(&*token, &served);
            let former = missing.send_replace(found.clone());
            for (cluster, error) in &found {
                if former.get(cluster) != Some(error) {
                    let Cluster { namespace, name } = cluster;
                    tracing::error!(namespace, cluster = name, error, "cannot sign with the CA");
                }
            }
            is_checking.store(false, Ordering::Release);
        }));
    }

    /// The problems of single CAs, for `Status`: the first few problems, and the total number.
    fn problems(&self) -> (Vec<String>, u32) {
        let mut all = self.refused.borrow().clone();
        let missing = self.missing.borrow().clone();
        all.extend(
            missing
                .iter()
                .map(|(cluster, error)| format!("{cluster}: {error}")),
        );
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let first = all.iter().take(MAX_PROBLEMS);
        (first.map(|text| shown(text)).collect(), count)
    }

    /// Returns the CA in the request, if it belongs to the cluster in the request.
    fn signing(&self, request: &SignRequest) -> Option<Arc<Signing>> {
        let cluster = Cluster {
            namespace: request.cluster_namespace.clone(),
            name: request.cluster_name.clone(),
        };
        let served = self.served.borrow().clone();
        let signing = served
            .get(&cluster)
            .filter(|signing| signing.authority.sha256.as_slice() == request.ca_certificate_sha256);
        signing.cloned()
    }

    /// Calls the token in a thread that can block. The call always completes, even if its caller no longer waits. In
    /// that case, it occupies only a turn of its CA.
    async fn ask<A: Send + 'static>(
        &self,
        Signing {
            authority,
            turns,
            line,
            has_key: _,
        }: &Signing,
        question: impl FnOnce(&T) -> Result<A, TokenError> + Send + 'static,
    ) -> Result<A, Status> {
        let (turn, _caller) = turns.take().await.map_err(|Busy| {
            if let Ok(left_out) = self.lines.take(&authority.cluster.namespace) {
                tracing::warn!(left_out, "refused: the token is busy");
            }
            Status::resource_exhausted(BUSY)
        })?;
        let _of_all = line.turn().await;
        let token = self.token.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let answer = question(&token);
            drop(turn);
            answer
        });
        let answer = answer.await;
        let answer = answer.map_err(|_| Status::internal("the signer failed"))?;
        if answer.is_ok() {
            self.good.send_replace(Some(Instant::now()));
        }
        answer.map_err(|error| {
            let error = chain(&error);
            if let Ok(left_out) = self.lines.take(&authority.cluster.namespace) {
                tracing::error!(error, left_out, "the token did not respond");
            }
            Status::unavailable(error)
        })
    }

    /// Returns the health of the token. This call does not take a turn, and at most one thread waits for the token.
    async fn health(&self) -> Result<(), String> {
        let mut good = self.good.subscribe();
        let last = *good.borrow_and_update();
        if last.is_some_and(|last| last.elapsed() < GOOD_FOR) {
            return Ok(());
        }
        let mut checked = self.check();
        tokio::select! {
            answer = checked.wait_for(Option::is_some) => match answer.as_deref() {
                Ok(Some(health)) => health.clone(),
                Ok(None) | Err(_) => Err("the signer failed".to_owned()),
            },
            // A concurrent signature also shows that the token is healthy.
            Ok(()) = good.changed() => Ok(()),
            () = sleep(STATUS_DEADLINE) => Err(BUSY.to_owned()),
        }
    }

    /// Returns the token check that is in progress, or starts a new check.
    fn check(&self) -> Checked {
        let mut last = self.checked.lock();
        let waits =
            |checked: &&Checked| checked.borrow().is_none() && checked.has_changed().is_ok();
        if let Some(checked) = last.as_ref().filter(waits) {
            return checked.clone();
        }
        let (sender, receiver) = watch::channel(None);
        *last = Some(receiver.clone());
        let (token, good) = (self.token.clone(), self.good.clone());
        // The thread is not joined, because the receiver gets the result.
        drop(tokio::task::spawn_blocking(move || {
            let checked = token.check().map_err(|error| chain(&error));
            if checked.is_ok() {
                good.send_replace(Some(Instant::now()));
            }
            sender.send_replace(Some(checked));
        }));
        receiver
    }
}

/// The maximum number of concurrent calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls {
    /// The maximum for all CAs together.
    pub(crate) of_all: usize,
    /// The maximum for each CA.
    pub(crate) of_ca: usize,
}

#[tonic::async_trait]
impl<T: Keys> ExternalSigner for Service<T> {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let health = self.health().await;
        let health = health.err().unwrap_or_else(|| "ok".to_owned());
        let (problems, problem_count) = self.problems();
        Ok(Response::new(StatusResponse {
            version: VERSION.to_owned(),
            health,
            problems,
            problem_count,
        }))
    }

    async fn sign(&self, request: Request<SignRequest>) -> Result<Response<SignResponse>, Status> {
        let request = request.into_inner();
        let (namespace, cluster) = (&request.cluster_namespace, &request.cluster_name);
        let Some(signing) = self.signing(&request) else {
            if let Ok(left_out) = self.lines.take(namespace) {
                tracing::warn!(
                    namespace,
                    cluster,
                    left_out,
                    "refused: the CA does not belong to this cluster"
                );
            }
            return Err(Status::permission_denied(
                "this signer has no key for this CA and this cluster",
            ));
        };
        let (authority, algorithm) = (signing.authority.as_ref(), request.algorithm());
        let certificate = match policy::check(
            &request.tbs_certificate,
            authority,
            algorithm,
            (self.clock)(),
        ) {
            Ok(certificate) => certificate,
            Err(refused) => {
                let reason = refused.to_string();
                if let Ok(left_out) = self.lines.take(namespace) {
                    tracing::warn!(namespace, cluster, reason, left_out, "refused");
                }
                return Err(Status::permission_denied(reason));
            }
        };
        let label = authority.key_label.clone();
        let signed = self.ask(&signing, move |token| {
            let signature = token.sign(&label, algorithm, &request.tbs_certificate)?;
            let policy::NodeCertificate { user, serial } = certificate;
            // This line is logged in the thread, so that every signature has a log line even if the caller no longer
            // waits.
            tracing::info!(
                namespace = request.cluster_namespace,
                cluster = request.cluster_name,
                user,
                serial,
                "signed"
            );
            Ok(signature)
        });
        let signature = signed.await?;
        Ok(Response::new(SignResponse { signature }))
    }
}

/// The Clusters whose key the token does not have. If the token has a different error, the check ends, because `Status`
/// reports this error.
fn missing_keys(token: &impl Keys, served: &Served) -> BTreeMap<Cluster, String> {
    let mut missing = BTreeMap::new();
    for (cluster, signing) in served {
        if signing.has_key.load(Ordering::Relaxed) {
            continue;
        }
        match token.check_key(&signing.authority.key_label) {
            Ok(()) => signing.has_key.store(true, Ordering::Relaxed),
            Err(error @ TokenError::Key { .. }) => {
                missing.insert(cluster.clone(), chain(&error));
            }
            Err(_) => break,
        }
    }
    missing
}

/// The text of a problem, in ASCII and with a limited length. File names can contain any characters.
fn shown(problem: &str) -> String {
    let is_shown = |letter: &char| letter.is_ascii_graphic() || *letter == ' ';
    let letters = problem.chars().take(MAX_PROBLEM_LEN);
    letters
        .map(|letter| if is_shown(&letter) { letter } else { '_' })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests;
