//! Death between two steps.

use std::sync::Arc;
use std::time::SystemTime;

use clap::ValueEnum;
use futures::future::BoxFuture;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::NodeName;
use node_attestation_core::identifiers::CertificateUid;
use node_attestation_core::ledger::{Claim, Grant, Holder, Ledger, Renewal};
use node_attestation_core::refusal::Refusal;
use node_attestation_runtime::csr_writer::{RequestStore, StoreError};

/// After what to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CrashPoint {
    /// The name's record has been written.
    Claim,
    /// `/approval` has been written: approved, or denied.
    Approve,
    /// `/status` has been written: issued, or failed.
    Publish,
}

impl CrashPoint {
    fn reached(self, point: Self) {
        if self == point {
            std::process::abort();
        }
    }
}

/// A store that dies after a write.
#[derive(Debug)]
pub(crate) struct CrashingStore {
    inner: Arc<dyn RequestStore>,
    point: CrashPoint,
}

impl CrashingStore {
    pub(crate) fn new(inner: Arc<dyn RequestStore>, point: CrashPoint) -> Self {
        Self { inner, point }
    }
}

impl RequestStore for CrashingStore {
    fn get<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<CertificateSigningRequest>, StoreError>> {
        self.inner.get(name)
    }

    fn update_approval<'a>(
        &'a self,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<CertificateSigningRequest, StoreError>> {
        Box::pin(async move {
            let updated = self.inner.update_approval(request).await;
            self.point.reached(CrashPoint::Approve);
            updated
        })
    }

    fn update_status<'a>(
        &'a self,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<CertificateSigningRequest, StoreError>> {
        Box::pin(async move {
            let updated = self.inner.update_status(request).await;
            self.point.reached(CrashPoint::Publish);
            updated
        })
    }
}

/// A ledger that dies after a claim.
#[derive(Debug)]
pub(crate) struct CrashingLedger {
    inner: Arc<dyn Ledger>,
    point: CrashPoint,
}

impl CrashingLedger {
    pub(crate) fn new(inner: Arc<dyn Ledger>, point: CrashPoint) -> Self {
        Self { inner, point }
    }
}

impl Ledger for CrashingLedger {
    fn claim<'a>(
        &'a self,
        claim: &'a Claim,
        now: SystemTime,
    ) -> BoxFuture<'a, Result<Grant, Refusal>> {
        Box::pin(async move {
            let claimed = self.inner.claim(claim, now).await;
            self.point.reached(CrashPoint::Claim);
            claimed
        })
    }

    fn renew<'a>(
        &'a self,
        renewal: &'a Renewal,
        now: SystemTime,
    ) -> BoxFuture<'a, Result<Grant, Refusal>> {
        self.inner.renew(renewal, now)
    }

    fn holder<'a>(
        &'a self,
        node_name: &'a NodeName,
        uid: Option<CertificateUid>,
        now: SystemTime,
    ) -> BoxFuture<'a, Result<Holder, Refusal>> {
        self.inner.holder(node_name, uid, now)
    }
}
