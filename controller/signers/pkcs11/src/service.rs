//! The gRPC service.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use node_attestation_signer_api::external_signer_server::ExternalSigner;
use node_attestation_signer_api::{
    SignRequest, SignResponse, StatusRequest, StatusResponse, VERSION,
};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};
use tonic::{Request, Response, Status};

use crate::authority::{Authority, Cluster};
use crate::policy;
use crate::server_names::Reserved;
use crate::token::{Keys, TokenError};
use crate::turns::{Busy, Turns};

/// The time for which an answer of the token is a sign of its health.
const GOOD_FOR: Duration = Duration::from_secs(3);

/// Deadline of the token for `Status`; the controller waits for three seconds.
const STATUS_DEADLINE: Duration = Duration::from_secs(2);

/// The health of a token that does not answer.
const BUSY: &str = "the token has not answered the calls before this one";

/// Signs for some CAs with the keys of one token.
pub(crate) struct Service<T> {
    token: Arc<T>,
    authorities: Vec<(Authority, Turns)>,
    /// Calls of all CAs at a time.
    calls: Arc<Semaphore>,
    /// The time of the token's last good answer.
    good: watch::Sender<Option<Instant>>,
    /// The last check of the token, which all calls of `Status` wait for.
    checked: parking_lot::Mutex<Option<Checked>>,
    reserved: Reserved,
    clock: fn() -> SystemTime,
}

/// The answer to a check; `None` while the token has not answered.
type Checked = watch::Receiver<Option<Result<(), String>>>;

impl<T: Keys> Service<T> {
    /// Checks that the token has all keys, unless it refused the PIN: then each call tells that. It signs as many things
    /// at a time as `calls`, for all CAs and for each.
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
                    tracing::error!(error = chain(&error), "nothing can be signed");
                    break;
                }
                checked => checked?,
            }
        }
        let authorities = authorities.into_iter();
        Ok(Self {
            token: Arc::new(token),
            authorities: authorities
                .map(|authority| (authority, Turns::new(calls.of_ca)))
                .collect(),
            calls: Arc::new(Semaphore::new(calls.of_all)),
            good: watch::Sender::new(None),
            checked: parking_lot::Mutex::default(),
            reserved,
            clock,
        })
    }

    /// The CA, if it is one of this cluster.
    fn authority(&self, request: &SignRequest) -> Option<&(Authority, Turns)> {
        let cluster = Cluster {
            namespace: request.cluster_namespace.clone(),
            name: request.cluster_name.clone(),
        };
        let mut all = self.authorities.iter();
        all.find(|(one, _)| {
            one.cluster == cluster && one.sha256.as_slice() == request.ca_certificate_sha256
        })
    }

    /// Asks the token in a thread that may wait for it. The question is asked to its end, also when nobody waits for the
    /// answer any more: then it keeps its turn among those of its CA, and no turn of another CA.
    async fn ask<A: Send + 'static>(
        &self,
        turns: &Turns,
        question: impl FnOnce(&T) -> Result<A, TokenError> + Send + 'static,
    ) -> Result<A, Status> {
        let (turn, _caller) = turns.take().await.map_err(|Busy| {
            tracing::warn!("refused: the token is busy");
            Status::resource_exhausted(BUSY)
        })?;
        let closed = |_| Status::unavailable("the signer stops");
        let _of_all = self.calls.acquire().await.map_err(closed)?;
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
            tracing::error!(error, "the token did not answer");
            Status::unavailable(error)
        })
    }

    /// The health of the token. It takes no turn, and one thread at most waits for the token.
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
            // A signature that is made meanwhile tells as much.
            Ok(()) = good.changed() => Ok(()),
            () = sleep(STATUS_DEADLINE) => Err(BUSY.to_owned()),
        }
    }

    /// The check of the token that waits for it, or a new one.
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
        // Nothing waits for the thread.
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

/// Calls at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls {
    /// Of all CAs together.
    pub(crate) of_all: usize,
    /// Of each CA.
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
        let Some((authority, turns)) = self.authority(&request) else {
            tracing::warn!(namespace, cluster, "refused: the CA is not of this cluster");
            return Err(Status::permission_denied(
                "this signer has no key of this CA for this cluster",
            ));
        };
        let algorithm = request.algorithm();
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
                tracing::warn!(namespace, cluster, reason, "refused");
                return Err(Status::permission_denied(reason));
            }
        };
        let label = authority.key_label.clone();
        let signed = self.ask(turns, move |token| {
            let signature = token.sign(&label, algorithm, &request.tbs_certificate)?;
            let policy::NodeCertificate { user, serial } = certificate;
            // Here, so that no signature is without its line, though nobody waits for it any more.
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

/// The error with its causes.
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
