//! The calls to an external signer.

use std::future::Future;
use std::time::Duration;

use futures::future::FutureExt as _;
use hyper_util::rt::TokioIo;
use kubelet_attestation::ensure;
use kubelet_attestation::text::visible;
use node_attestation_signer_api::external_signer_client::ExternalSignerClient;
use node_attestation_signer_api::{SignRequest, StatusRequest, VERSION};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use tower::service_fn;

use super::SignerEndpoint;
use crate::metrics::Metrics;
use crate::shared::Turnstile;
use crate::turns::{FairTurns, Line, TurnLimits};

/// The limits on concurrent calls. The total is a typical number of concurrent sessions for a network HSM.
pub(super) const CALLS: TurnLimits = TurnLimits {
    all: 64,
    of_cluster: 8,
};

/// The deadline for a signature, including the wait for a turn. A KMS needs less than one second, and the deadline for
/// a decision is 2 minutes.
const SIGN_DEADLINE: Duration = Duration::from_secs(10);

/// The deadline for a status call. Concurrent requests share its response.
const STATUS_DEADLINE: Duration = Duration::from_secs(3);

/// The time for which a successful status is reused.
const GOOD_FOR: Duration = Duration::from_secs(5);

/// The time for which a failed status is reused. It is short, so that the next attempt for a request detects that the
/// signer has recovered.
const BAD_FOR: Duration = Duration::from_secs(1);

/// The maximum length of a response, in bytes. An RSA-4096 signature is 512 bytes long.
const MAX_ANSWER_LEN: usize = 4 * 1024;

/// The maximum length of the headers, which include the error message.
const MAX_HEADERS_LEN: u32 = 8 * 1024;

/// The maximum length of an error message. A longer message is truncated.
const MAX_MESSAGE_LEN: usize = 256;

#[derive(derive_more::Debug)]
pub(super) struct Client {
    endpoint: SignerEndpoint,
    #[debug(skip)]
    rpc: ExternalSignerClient<Channel>,
    pub(super) calls: FairTurns,
    /// The last status, with its time. The lock is held for at most one status call, whose deadline is the same for all
    /// clusters.
    status: Turnstile<Option<(Instant, Result<(), SignerCallError>)>>,
    /// The problems in the last status. They are kept, so that each change is logged only once.
    problems: watch::Sender<Vec<String>>,
    metrics: Metrics,
}

/// A call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} of the external signer at {endpoint}: {code:?}: {message}")]
pub(super) struct SignerCallError {
    operation: &'static str,
    endpoint: String,
    pub(super) code: Code,
    message: String,
}

impl Client {
    pub(super) fn new(endpoint: SignerEndpoint, metrics: Metrics) -> Self {
        let path = endpoint.path().to_owned();
        // This host name is never resolved, because the client connects to the socket.
        let channel = Endpoint::from_static("http://localhost")
            .connect_timeout(STATUS_DEADLINE)
            .http2_max_header_list_size(MAX_HEADERS_LEN)
            .connect_with_connector_lazy(service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            }));
        Self {
            rpc: ExternalSignerClient::new(channel).max_decoding_message_size(MAX_ANSWER_LEN),
            endpoint,
            calls: FairTurns::new(CALLS),
            status: Turnstile::default(),
            problems: watch::Sender::default(),
            metrics,
        }
    }

    /// Whether the controller signs for `kubernetes.io/kubelet-serving` through this signer.
    pub(super) fn signs_kubelet_serving(&self) -> bool {
        self.endpoint.signs_kubelet_serving()
    }

    /// Requests the status. Concurrent callers share one call.
    pub(super) async fn check(&self) -> Result<(), SignerCallError> {
        let mut last = self.status.lock().await;
        if let Some((at, status)) = &*last {
            let counts_for = if status.is_ok() { GOOD_FOR } else { BAD_FOR };
            if at.elapsed() < counts_for {
                return status.clone();
            }
        }
        let status = self.status().await;
        *last = Some((Instant::now(), status.clone()));
        status
    }

    async fn status(&self) -> Result<(), SignerCallError> {
        const OPERATION: &str = "Status";
        let mut rpc = self.rpc.clone();
        let call = async move { rpc.status(StatusRequest {}).await };
        let answer = self.called(OPERATION, STATUS_DEADLINE, call).await?;
        let wrong = |message: String| {
            let status = Status::failed_precondition(message);
            self.error(OPERATION, &status)
        };
        ensure!(
            answer.version == VERSION,
            wrong(format!(
                "its version is {:?} instead of {VERSION:?}",
                answer.version
            ))
        );
        self.report(answer.problem_count, &answer.problems);
        ensure!(answer.health == "ok", wrong(answer.health));
        Ok(())
    }

    /// Logs the problems of single CAs if they changed. The problems with one CA do not affect other CAs.
    fn report(&self, count: u32, problems: &[String]) {
        self.metrics.signer_problems(count);
        let problems: Vec<String> = problems.iter().map(|text| short(text)).collect();
        let changed = self.problems.send_if_modified(|last| {
            let is_new = *last != problems;
            *last = problems;
            is_new
        });
        let problems = self.problems.borrow();
        if changed && count > 0 {
            let first = problems.join("; ");
            tracing::warn!(count, first, "the external signer cannot use some CAs");
        }
    }

    /// Requests a signature, after waiting for a turn in this queue.
    pub(super) async fn sign(
        &self,
        line: &Line,
        request: SignRequest,
    ) -> Result<Vec<u8>, SignerCallError> {
        let mut rpc = self.rpc.clone();
        let call = async move {
            let _turn = line.turn().await;
            rpc.sign(request).await
        };
        let answer = self.called("Sign", SIGN_DEADLINE, call.boxed()).await;
        answer.map(|answer| answer.signature)
    }

    async fn called<T>(
        &self,
        operation: &'static str,
        deadline: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, SignerCallError> {
        let begin = Instant::now();
        let answer = timeout(deadline, call).await.unwrap_or_else(|_| {
            let message = format!("no response within {} s", deadline.as_secs());
            Err(Status::deadline_exceeded(message))
        });
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.metrics
            .signer_called(operation, code_name(code), begin.elapsed());
        match answer {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(self.error(operation, &status)),
        }
    }

    fn error(&self, operation: &'static str, status: &Status) -> SignerCallError {
        SignerCallError {
            operation,
            endpoint: self.endpoint.path().display().to_string(),
            code: status.code(),
            message: short(status.message()),
        }
    }
}

/// The beginning of a string from the signer, without control characters.
fn short(text: &str) -> String {
    visible(text).chars().take(MAX_MESSAGE_LEN).collect()
}

/// The name of a status code in the gRPC specification.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
