//! Writes a decision into its request, either as a condition or as a certificate. No other code writes requests.
//!
//! | Decision | Write |
//! | --- | --- |
//! | approve | condition `Approved` through `/approval` |
//! | issue | condition `Approved` through `/approval`, then the certificate through `/status` |
//! | deny | condition `Denied` through `/approval`; `Failed` if the request is already approved |
//! | fail | condition `Failed` through `/status`, with the annotation that belongs to the reason |
//! | retry, ignore | none: kube-controller-manager never garbage-collects a pending request that has a condition |
//!
//! # Guarantees
//!
//! - Every write contains the `resourceVersion` of the request on which the decision is based. Either the write changes
//!   exactly that version, or it fails (409). After a 409, the caller must decide again with the current object.
//! - Every step can be repeated. After a crash between two steps, the request is approved but not issued, and every
//!   check runs again.
//! - A request for this controller's signers never remains approved but not issued. The request gets a certificate or
//!   the condition `Failed`, even if the decision is deferred repeatedly
//!   ([`Failure::UndecidedTooLong`](node_attestation_core::refusal::Failure::UndecidedTooLong)) or the API server
//!   rejects the certificate ([`Answered::Rejected`]).

use std::fmt::Debug;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use kube::api::Api;
use kubelet_attestation::evidence::tpm::ENDORSEMENT_KEY_ANNOTATION;

use node_attestation_core::decide::Decision;
use node_attestation_core::request::{ApprovalReason, Issued};

use crate::client::{CONTROLLER, CallError, Excess, call, post};
use crate::queue::{allowance, lean, memory};
use crate::watch::{readable_one_of, replaced_part_metadata};

/// The limit on memory for data that an API server adds to an approved request. The memory is held until the answer is
/// written.
const MAX_ADDED: usize = 4096;

const APPROVED_MESSAGE: &str = "approved by node-attestation-controller";

/// A store for the requests of one cluster.
///
/// A test, or an infrastructure provider with special requirements, can wrap [`KubeStore`].
#[async_trait::async_trait]
pub trait RequestStore: Debug + Send + Sync {
    /// Reads the request with this name. Returns `None` if it does not exist.
    async fn get(&self, name: &str) -> Result<Option<CertificateSigningRequest>, CallError>;

    /// Replaces the request through this subresource, if its `resourceVersion` has not changed. Returns `request` with
    /// the metadata of the new version.
    async fn update(
        &self,
        subresource: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError>;
}

/// The requests of one Kubernetes API server.
pub type KubeStore = Api<CertificateSigningRequest>;

#[async_trait::async_trait]
impl RequestStore for KubeStore {
    async fn get(&self, name: &str) -> Result<Option<CertificateSigningRequest>, CallError> {
        call(readable_one_of(self, name)).await
    }

    async fn update(
        &self,
        subresource: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        let name = request.metadata.name.as_deref().unwrap_or_default();
        let parameters = post(CONTROLLER);
        // A later write needs only the new version. Kubernetes keeps the stored spec, and the times of an approval.
        let metadata = replaced_part_metadata(self, (subresource, name), &parameters, request);
        Ok(CertificateSigningRequest {
            metadata: call(metadata).await?,
            ..request.clone()
        })
    }
}

/// The subresources through which requests are answered.
const APPROVAL: &str = "approval";
const STATUS: &str = "status";

/// The condition types of a request.
const APPROVED: &str = "Approved";
pub(crate) const DENIED: &str = "Denied";
pub(crate) const FAILED: &str = "Failed";

/// The outcome of writing an answer.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Answered {
    /// The answer was written, or did not require a write.
    Written,
    /// The API server rejected the answer as invalid, and would reject it again.
    Rejected {
        /// The current request, which can already be approved.
        request: Box<CertificateSigningRequest>,
        /// The error from the API server.
        error: CallError,
    },
}

/// Writes `decision` into `request`, which must be the version on which the decision is based.
///
/// # Errors
///
/// After any error except 409, it is unknown whether the answer was written. The caller must decide again with the
/// current object.
pub async fn answer(
    store: &dyn RequestStore,
    mut request: CertificateSigningRequest,
    decision: &Decision,
) -> Result<Answered, CallError> {
    match decision {
        Decision::Ignore(_) | Decision::Retry(_) => Ok(Answered::Written),
        // An approval cannot be removed, and an approved request cannot be denied.
        Decision::Deny(denial) if is_approved(&request) => {
            let (reason, message) = (denial.reason(), denial.message());
            let fail = |request: &mut _| add_condition(request, FAILED, reason, message);
            write_status(store, request, fail).await
        }
        Decision::Deny(denial) => {
            add_condition(&mut request, DENIED, denial.reason(), denial.message());
            store.update(APPROVAL, &request).await?;
            Ok(Answered::Written)
        }
        Decision::Fail(failure) => {
            let fail = |request: &mut _| {
                for (name, value) in failure.annotations() {
                    annotate(request, name, value);
                }
                add_condition(request, FAILED, failure.reason(), failure.message());
            };
            write_status(store, request, fail).await
        }
        Decision::Issue(certificate) => issue(store, request, certificate).await,
        Decision::Approve(approval) => {
            approve(store, request, approval.approval_reason()).await?;
            Ok(Answered::Written)
        }
    }
}

async fn issue(
    store: &dyn RequestStore,
    request: CertificateSigningRequest,
    certificate: &Issued,
) -> Result<Answered, CallError> {
    let approved = approve(store, request, certificate.approval_reason).await?;
    let publish = |request: &mut CertificateSigningRequest| {
        if let Some(key) = certificate.endorsement_key {
            annotate(request, ENDORSEMENT_KEY_ANNOTATION, key.to_string());
        }
        let pem = ByteString(certificate.pem.clone().into());
        request.status.get_or_insert_default().certificate = Some(pem);
    };
    write_status(store, approved, publish).await
}

/// Approves the request, unless it is already approved.
async fn approve(
    store: &dyn RequestStore,
    mut request: CertificateSigningRequest,
    approval_reason: ApprovalReason,
) -> Result<CertificateSigningRequest, CallError> {
    if is_approved(&request) {
        return Ok(request);
    }
    add_condition(
        &mut request,
        APPROVED,
        approval_reason.reason(),
        APPROVED_MESSAGE,
    );
    let approved = lean(store.update(APPROVAL, &request).await?);
    let limit = allowance(memory(&request).saturating_add(MAX_ADDED));
    if memory(&approved) > limit {
        let excess = kube::Error::Service(Excess::Length(limit).into());
        return Err(CallError::Failed(Box::new(excess)));
    }
    Ok(approved)
}

async fn write_status(
    store: &dyn RequestStore,
    before: CertificateSigningRequest,
    change: impl FnOnce(&mut CertificateSigningRequest),
) -> Result<Answered, CallError> {
    let mut request = before.clone();
    change(&mut request);
    match store.update(STATUS, &request).await {
        Ok(_) => Ok(Answered::Written),
        Err(error) if error.is_invalid() => Ok(Answered::Rejected {
            request: Box::new(before),
            error,
        }),
        Err(error) => Err(error),
    }
}

/// Whether the request is approved, either by this controller or by another client.
pub(crate) fn is_approved(request: &CertificateSigningRequest) -> bool {
    has_condition(request, APPROVED)
}

/// Whether the request has a condition of this type.
pub(crate) fn has_condition(request: &CertificateSigningRequest, kind: &str) -> bool {
    let status = request.status.iter();
    let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == kind)
}

fn annotate(request: &mut CertificateSigningRequest, name: &str, value: String) {
    let annotations = request.metadata.annotations.get_or_insert_default();
    annotations.insert(name.to_owned(), value);
}

/// Adds a condition. The API server sets the times.
fn add_condition(request: &mut CertificateSigningRequest, kind: &str, reason: &str, message: &str) {
    let condition = CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..CertificateSigningRequestCondition::default()
    };
    let status = request.status.get_or_insert_default();
    status.conditions.get_or_insert_default().push(condition);
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
