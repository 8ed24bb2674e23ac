//! The gRPC service.

use std::error::Error;
use std::sync::Arc;
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
use crate::log_lines::LogLines;
use crate::policy;
use crate::server_names::Reserved;
use crate::token::{Keys, TokenError};
use crate::turns::{Busy, Turns};

/// The time for which the token counts as healthy after a successful response.
const GOOD_FOR: Duration = Duration::from_secs(3);

/// The deadline for the token's response to `Status`. The controller waits 3 seconds.
const STATUS_DEADLINE: Duration = Duration::from_secs(2);

/// The health of a token that does not respond.
const BUSY: &str = "the token has not answered earlier calls";

/// Signs for several CAs with the keys of one token.
pub(crate) struct Service<T> {
    token: Arc<T>,
    authorities: Vec<Signing>,
    /// The turns that all CAs share.
    #[cfg(test)]
    calls: FairTurns,
    /// The time of the token's last successful response.
    good: watch::Sender<Option<Instant>>,
    /// The latest check of the token. All concurrent `Status` calls wait for it.
    checked: parking_lot::Mutex<Option<Checked>>,
    reserved: Reserved,
    lines: LogLines,
    clock: fn() -> SystemTime,
}

/// A CA, with its turns for calls to the token.
struct Signing {
    authority: Authority,
    /// The turns of this CA. An abandoned call keeps one of them until the token responds.
    turns: Turns,
    /// The queue of this CA for the turns of all CAs, which rotate by namespace and then by key. An abandoned call does
    /// not keep one of these turns.
    line: Line,
}

/// The result of a check. `None` until the token responds.
type Checked = watch::Receiver<Option<Result<(), String>>>;

impl<T: Keys> Service<T> {
    /// Checks that the token has all keys. If the token rejected the PIN, the service still starts, and each call
    /// returns this error. `calls` limits the concurrent signatures, both in total and for each CA.
    pub(crate) fn new(
        token: T,
        calls: Calls,
        authorities: Vec<Authority>,
        reserved: Reserved,
        clock: fn() -> SystemTime,
    ) -> Result<Self, TokenError> {
        for authority in &authorities {
            match token.check_key(&authority.key_label) {
                Err(error @ TokenError::PinRefused) => {
                    tracing::error!(error = chain(&error), "cannot sign");
                    break;
                }
                checked => checked?,
            }
        }
        let of_all = FairTurns::new(TurnLimits {
            all: calls.of_all,
            of_cluster: calls.of_ca,
        });
        let signing = |authority| Signing {
            turns: Turns::new(calls.of_ca),
            line: of_all.line(&authority),
            authority,
        };
        Ok(Self {
            token: Arc::new(token),
            authorities: authorities.into_iter().map(signing).collect(),
            #[cfg(test)]
            calls: of_all,
            good: watch::Sender::new(None),
            checked: parking_lot::Mutex::default(),
            reserved,
            lines: LogLines::default(),
            clock,
        })
    }

    /// Returns the CA that the request names, if it belongs to the cluster in the request.
    fn signing(&self, request: &SignRequest) -> Option<&Signing> {
        let cluster = Cluster {
            namespace: request.cluster_namespace.clone(),
            name: request.cluster_name.clone(),
        };
        let mut all = self.authorities.iter();
        all.find(|Signing { authority, .. }| {
            authority.cluster == cluster
                && authority.sha256.as_slice() == request.ca_certificate_sha256
        })
    }

    /// Calls the token in a thread that can block. The call always completes, even if its caller no longer waits. In
    /// that case, it occupies only a turn of its CA.
    async fn ask<A: Send + 'static>(
        &self,
        Signing {
            authority,
            turns,
            line,
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
                tracing::error!(error, left_out, "the token did not answer");
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
        Ok(Response::new(StatusResponse {
            version: VERSION.to_owned(),
            health,
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
        let (authority, algorithm) = (&signing.authority, request.algorithm());
        let certificate = match policy::check(
            &request.tbs_certificate,
            authority,
            algorithm,
            &self.reserved,
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
        let signed = self.ask(signing, move |token| {
            let signature = token.sign(&label, algorithm, &request.tbs_certificate)?;
            let policy::NodeCertificate { user, serial } = certificate;
            // Logged in the thread, so that every signature has a log line even if the caller no longer waits.
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

/// Formats the error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;
