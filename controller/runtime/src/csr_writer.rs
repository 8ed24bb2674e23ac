//! The only writer: a decision becomes a condition, or a certificate.
//!
//! | decision | written |
//! | --- | --- |
//! | approve | condition `Approved` through `/approval` |
//! | issue | condition `Approved` through `/approval`, then the certificate through `/status` |
//! | deny | condition `Denied` through `/approval`; `Failed` on a request that somebody approved |
//! | fail | condition `Failed` through `/status`, with the annotation that belongs to the reason |
//! | retry, ignore | nothing: with a condition of ours it would never be collected as garbage |
//!
//! # Guarantees
//!
//! - Every write carries the `resourceVersion` of what was decided on: it changes that very object,
//!   or nothing ([`StoreError::Conflict`], after which the fresh object must be decided on).
//! - Every step can be repeated. After a crash between two of them the request is approved and
//!   unissued, and goes through every check again.
//! - No request that is ours stays approved and unissued: it gets its certificate or `Failed`, also
//!   where a decision keeps being put off ([`Failure::UndecidedTooLong`](node_attestation_core::refusal::Failure::UndecidedTooLong)), or the API server does
//!   not take the certificate ([`Answered::Rejected`]).

use std::fmt::Debug;

use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use kubelet_attestation::evidence::tpm::ENDORSEMENT_KEY_ANNOTATION;

use node_attestation_core::decide::Decision;
use node_attestation_core::request::{ApprovalReason, Issued};

mod kube_store;

pub use kube_store::{KubeStore, StoreError};

const APPROVED_MESSAGE: &str = "approved by node-attestation-controller";

/// Where a cluster's requests are kept.
///
/// A test, or an infrastructure provider with needs of its own, can wrap [`KubeStore`].
pub trait RequestStore: Debug + Send + Sync {
    /// Reads the request of this name; `None` if there is none.
    fn get<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<CertificateSigningRequest>, StoreError>>;

    /// Replaces the request through `/approval`, if its version is still the one given; returns
    /// what it is now.
    fn update_approval<'a>(
        &'a self,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<CertificateSigningRequest, StoreError>>;

    /// Replaces the request through `/status`, if its version is still the one given; returns what
    /// it is now.
    fn update_status<'a>(
        &'a self,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<CertificateSigningRequest, StoreError>>;
}

/// The types of conditions that end a request, or let it be signed.
const APPROVED: &str = "Approved";
pub(crate) const DENIED: &str = "Denied";
pub(crate) const FAILED: &str = "Failed";

/// What became of an answer.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Answered {
    /// It is written, if there was anything to write.
    Written,
    /// The API server finds it invalid through `/status`, and will again.
    Rejected {
        /// The request as it is now: approved, where that was to be written first.
        request: Box<CertificateSigningRequest>,
        /// What the API server says.
        error: StoreError,
    },
}

/// Answers `request`, which is the object that `decision` was made about.
///
/// # Errors
///
/// Nothing is known of what was written after any error but [`StoreError::Conflict`]; decide on the
/// fresh object.
pub async fn answer(
    store: &dyn RequestStore,
    mut request: CertificateSigningRequest,
    decision: &Decision,
) -> Result<Answered, StoreError> {
    match decision {
        Decision::Ignore(_) | Decision::Retry(_) => Ok(Answered::Written),
        // An approval cannot be taken back, nor be followed by a denial.
        Decision::Deny(denial) if is_approved(&request) => {
            let (reason, message) = (denial.reason(), denial.message());
            let fail = |request: &mut _| add_condition(request, FAILED, reason, message);
            write_status(store, request, fail).await
        }
        Decision::Deny(denial) => {
            add_condition(&mut request, DENIED, denial.reason(), denial.message());
            store.update_approval(&request).await?;
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
        Decision::Issue(certificate) => issue(store, request, certificate.issued()).await,
        Decision::Approve(approval) => {
            approve(store, request, approval.basis()).await?;
            Ok(Answered::Written)
        }
    }
}

async fn issue(
    store: &dyn RequestStore,
    request: CertificateSigningRequest,
    certificate: &Issued,
) -> Result<Answered, StoreError> {
    let approved = approve(store, request, certificate.basis).await?;
    let publish = |request: &mut CertificateSigningRequest| {
        if let Some(key) = certificate.endorsement_key {
            annotate(request, ENDORSEMENT_KEY_ANNOTATION, key.to_string());
        }
        let pem = ByteString(certificate.pem.clone().into());
        request.status.get_or_insert_default().certificate = Some(pem);
    };
    write_status(store, approved, publish).await
}

/// The request, approved by us now or by somebody before.
async fn approve(
    store: &dyn RequestStore,
    mut request: CertificateSigningRequest,
    basis: ApprovalReason,
) -> Result<CertificateSigningRequest, StoreError> {
    if is_approved(&request) {
        return Ok(request);
    }
    add_condition(&mut request, APPROVED, basis.reason(), APPROVED_MESSAGE);
    store.update_approval(&request).await
}

async fn write_status(
    store: &dyn RequestStore,
    before: CertificateSigningRequest,
    change: impl FnOnce(&mut CertificateSigningRequest),
) -> Result<Answered, StoreError> {
    let mut request = before.clone();
    change(&mut request);
    match store.update_status(&request).await {
        Ok(_) => Ok(Answered::Written),
        Err(error) if error.is_final() => Ok(Answered::Rejected {
            request: Box::new(before),
            error,
        }),
        Err(error) => Err(error),
    }
}

/// Whether somebody approved it, we or another.
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

/// The API server fills the times in.
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
