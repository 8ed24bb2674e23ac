//! The log lines about decisions. Text from a requester is always the value of a field, which the formatter escapes.

use std::error::Error;
use std::mem;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::csr::{envelope, parse, subject};
use kubelet_attestation::errors::{error_chain, shortened};
use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use node_attestation_core::cluster_line;
use node_attestation_core::decide::{Decided, Decision};
use node_attestation_core::ledger::FailedUpdates;
use node_attestation_core::log_lines::LogLines;
use node_attestation_core::refusal::Ignored;

use crate::events::{grant_history, reason};
use crate::log_lines::{ClusterLines, LineKind};
use crate::metrics;

/// The maximum length of a name in a line, in bytes, which is the limit in Kubernetes.
const MAX_NAME_LEN: usize = 253;

/// The request fields that every line contains.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    name: &'a str,
    requester: &'a str,
    request: &'a [u8],
    provider: Option<Provider>,
}

impl<'a> Subject<'a> {
    /// The provider that the request's signer belongs to, if the signer is in `signers`.
    pub(crate) fn provider_of(&self, signers: &[String]) -> Option<&str> {
        let provider = self.provider.as_ref()?;
        let signer = provider.client_signer();
        signers.contains(&signer).then(|| provider.as_str())
    }

    /// Creates the fields.
    pub(crate) fn of(request: &'a CertificateSigningRequest) -> Self {
        Self {
            name: shown(request.metadata.name.as_ref()),
            requester: shown(request.spec.username.as_ref()),
            request: &request.spec.request.0,
            provider: Provider::of_client_signer(&request.spec.signer_name),
        }
    }

    /// The requested node name, if it is valid. The checks of a granted request have already parsed the name.
    fn node(&self, decision: &Decision) -> Option<NodeName> {
        match decision {
            Decision::Issue(certificate) => Some(certificate.node_name.clone()),
            Decision::Approve(approval) => Some(approval.node_name().clone()),
            Decision::Ignore(_) | Decision::Deny(_) | Decision::Fail(_) | Decision::Retry(_) => {
                claimed_node(self.request)
            }
        }
    }
}

/// Truncates text from the workload API server, which a tenant can operate.
fn shown(text: Option<&String>) -> &str {
    shortened(text.map_or("", String::as_str), MAX_NAME_LEN)
}

fn claimed_node(request: &[u8]) -> Option<NodeName> {
    let envelope = envelope::Envelope::parse(request).ok()?;
    let csr = parse::CertificationRequest::from_der(&envelope.csr).ok()?;
    subject::node_name(csr.subject()).ok()
}

/// Converts to milliseconds with microsecond precision, because most checks take less than one millisecond.
fn millis(duration: Duration) -> f64 {
    let micros = u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
    f64::from(micros) / 1000.0
}

/// The failures of a task that is retried until it succeeds. The first failure is logged as a warning, and later
/// failures at debug level.
#[derive(Debug, Default)]
pub struct Failures(bool);

impl Failures {
    /// Whether this failure is the first since the last success.
    pub fn is_first(&mut self) -> bool {
        !mem::replace(&mut self.0, true)
    }

    /// Logs the records that a cluster's sweep could not update. During an outage, only the first line is a warning.
    pub(crate) fn of_sweep(&mut self, lines: &dyn LogLines, failed: Option<&FailedUpdates>) {
        const MESSAGE: &str = "cannot update node identities; the next sweep retries";
        let Some(failed) = failed else {
            return self.end();
        };
        let (node, error) = (failed.node_name.as_str(), failed.error.as_str());
        let count = failed.count;
        if self.is_first() {
            cluster_line!(lines, WARN, node, count, error, "{MESSAGE}");
        } else {
            let cluster = lines.cluster();
            tracing::debug!(cluster, node, count, error, "{MESSAGE}");
        }
    }

    /// Records a success.
    pub fn end(&mut self) {
        self.0 = false;
    }
}

/// Logs that an answer could not be written. `repeated` is set if it was not the first failure.
pub(crate) fn unanswered(lines: &dyn LogLines, csr: &str, error: &dyn Error, repeated: bool) {
    const MESSAGE: &str = "the request was not answered";
    let (csr, error) = (shortened(csr, MAX_NAME_LEN), error_chain(error));
    if repeated {
        tracing::debug!(csr, error, "{MESSAGE}");
    } else {
        cluster_line!(lines, WARN, csr, error, "{MESSAGE}");
    }
}

/// Logs that the API server rejected an answer.
pub(crate) fn rejected(lines: &dyn LogLines, subject: &Subject<'_>, error: &dyn Error) {
    cluster_line!(
        lines,
        ERROR,
        csr = subject.name,
        error = error_chain(error),
        "the API server rejected the controller's answer to the request"
    );
}

/// Logs that the checks of a request did not finish before their deadline.
pub(crate) fn unchecked(
    lines: &dyn LogLines,
    request: &CertificateSigningRequest,
    deadline: Duration,
) {
    let csr = shown(request.metadata.name.as_ref());
    cluster_line!(
        lines,
        ERROR,
        csr,
        "the checks did not complete within {deadline:?}"
    );
}

/// Logs the checks that led to a decision, one line for each check, in order.
pub(crate) fn checks(subject: &Subject<'_>, decided: &Decided) {
    for step in &decided.steps {
        tracing::debug!(
            csr = subject.name,
            check = step.check,
            millis = millis(step.took),
            "checked"
        );
    }
}

/// The name for the kind of a decision, in the log and in metrics.
pub(crate) fn outcome(decision: &Decision) -> &'static str {
    match decision {
        Decision::Ignore(_) => "ignored",
        Decision::Deny(_) => metrics::DENIED,
        Decision::Fail(_) => "failed",
        Decision::Retry(_) => "deferred",
        Decision::Issue(_) => "issued",
        Decision::Approve(_) => "approved",
    }
}

/// Logs a written decision as one line.
///
/// `repeated` is set for a deferral that was already logged. If the log-line budget is exhausted, the line is logged at
/// debug level.
pub(crate) fn decision(
    subject: &Subject<'_>,
    decided: &Decided,
    (whole, repeated): (Duration, bool),
    lines: &ClusterLines,
) {
    let detail = match &decided.decision {
        Decision::Ignore(ignored) => error_chain(ignored),
        Decision::Deny(denial) => error_chain(denial),
        Decision::Fail(failure) => error_chain(failure),
        Decision::Retry(deferral) => error_chain(deferral),
        Decision::Issue(certificate) => {
            let (uid, machine) = (&certificate.uid, &certificate.provider_id);
            let grant_history = grant_history(certificate.grant_reason.as_ref(), "; ");
            format!("certificate {uid} for {machine}{grant_history}")
        }
        Decision::Approve(approval) => {
            let machine = approval.provider_id();
            let machine = machine.map_or("an exempt Node", ProviderId::as_str);
            let grant_history = grant_history(approval.grant_reason(), "; ");
            format!("for {machine}, signed by another signer{grant_history}")
        }
    };
    let (outcome, reason) = (outcome(&decided.decision), reason(&decided.decision));
    let check = decided.steps.last().map(|step| step.check);
    let node = subject.node(&decided.decision);
    let node = node.as_ref().map(NodeName::as_str);
    let provider = subject.provider.as_ref().map(Provider::as_str);
    let millis = millis(whole);
    let left_out = match &decided.decision {
        Decision::Issue(_) | Decision::Approve(_) => lines.take_of(LineKind::Grant),
        Decision::Retry(_) if repeated => None,
        Decision::Ignore(Ignored::IssuedByOthers)
        | Decision::Deny(_)
        | Decision::Fail(_)
        | Decision::Retry(_) => lines.take_of(LineKind::Refusal),
        Decision::Ignore(_) => None,
    };
    let (is_logged, cluster) = (left_out.is_some(), lines.cluster());
    let left_out = left_out.filter(|left_out| *left_out > 0);
    macro_rules! line {
        ($level:ident) => {
            tracing::event!(
                tracing::Level::$level,
                cluster,
                csr = subject.name,
                node,
                provider,
                outcome,
                reason,
                check,
                millis,
                requester = subject.requester,
                detail,
                left_out,
                "decided"
            )
        };
    }
    match &decided.decision {
        _ if !is_logged => line!(DEBUG),
        Decision::Retry(_) | Decision::Issue(_) | Decision::Approve(_) => line!(INFO),
        Decision::Ignore(_) | Decision::Deny(_) | Decision::Fail(_) => line!(WARN),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
    use node_attestation_core::log_lines::Unlimited;
    use tracing::Level;

    use super::*;
    use crate::testing::ThreadLog;

    #[test]
    fn failing_sweeps_cause_one_warning_for_each_outage() {
        let failed = FailedUpdates {
            node_name: NodeName::parse("n1").unwrap(),
            error: "away".to_owned(),
            count: 5000,
        };
        let mut failures = Failures::default();
        let log = ThreadLog::start(Level::INFO);
        for failed in [Some(&failed), Some(&failed), None, Some(&failed)] {
            failures.of_sweep(&Unlimited, failed);
        }
        let text = log.text();
        assert_eq!(log.count(&["WARN"]), 2, "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn text_from_a_workload_api_server_is_truncated_in_log_lines() {
        let oversized = || Some("a".repeat(1 << 20));
        let mut request = CertificateSigningRequest::default();
        request.metadata.name = oversized();
        request.spec.username = oversized();
        let (subject, error) = (
            Subject::of(&request),
            std::io::Error::other("b".repeat(1 << 20)),
        );

        let log = ThreadLog::start(Level::INFO);
        rejected(&Unlimited, &subject, &error);
        unanswered(&Unlimited, subject.name, &error, false);

        let text = log.text();
        assert_eq!(text.lines().count(), 2);
        let longest = text.lines().map(str::len).max().unwrap();
        assert!(longest < 5000, "{longest}");
    }

    #[test]
    fn an_unserved_provider_is_not_used_as_a_label() {
        let signer =
            |provider: &str| format!("cluster.x-k8s.io/kube-apiserver-client-kubelet-{provider}");
        let request = |provider: &str| CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                signer_name: signer(provider),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        };
        let served = [signer("aws"), "kubernetes.io/kubelet-serving".to_owned()];

        assert_eq!(
            Subject::of(&request("aws")).provider_of(&served),
            Some("aws")
        );
        assert_eq!(
            Subject::of(&request("tenants-own")).provider_of(&served),
            None
        );
    }
}
