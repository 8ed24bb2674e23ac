//! A crash between two steps.

use std::sync::Arc;

use clap::ValueEnum;
use futures::future::BoxFuture;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::NodeName;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::ledger::{LastIssued, Record, Records, Stored, Version, WriteError};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::verifier::Identity;
use node_attestation_runtime::client::CallError;
use node_attestation_runtime::csr_writer::RequestStore;

/// The step after which the controller dies.
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
    ) -> BoxFuture<'a, Result<Option<CertificateSigningRequest>, CallError>> {
        self.inner.get(name)
    }

    fn update<'a>(
        &'a self,
        subresource: &'static str,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<CertificateSigningRequest, CallError>> {
        Box::pin(async move {
            let updated = self.inner.update(subresource, request).await;
            self.point.reached(match subresource {
                "approval" => CrashPoint::Approve,
                _ => CrashPoint::Publish,
            });
            updated
        })
    }
}

/// Records that die after a write.
#[derive(Debug)]
pub(crate) struct CrashingRecords {
    inner: Arc<dyn Records>,
    point: CrashPoint,
}

impl CrashingRecords {
    pub(crate) fn new(inner: Arc<dyn Records>, point: CrashPoint) -> Self {
        Self { inner, point }
    }
}

impl Records for CrashingRecords {
    fn known<'a>(
        &'a self,
        name: &'a NodeName,
    ) -> BoxFuture<'a, Result<Option<Stored>, Unavailable>> {
        self.inner.known(name)
    }

    fn known_of_machine<'a>(
        &'a self,
        identity: &'a Identity,
        key: KeyDigest,
    ) -> BoxFuture<'a, Result<Vec<Stored>, Unavailable>> {
        self.inner.known_of_machine(identity, key)
    }

    fn caught_up<'a>(
        &'a self,
        name: &'a NodeName,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<(), Unavailable>> {
        self.inner.caught_up(name, version)
    }

    fn read<'a>(
        &'a self,
        name: &'a NodeName,
    ) -> BoxFuture<'a, Result<Option<Stored>, Unavailable>> {
        self.inner.read(name)
    }

    fn create<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<Stored, WriteError>> {
        Box::pin(async move {
            let created = self.inner.create(record).await;
            self.point.reached(CrashPoint::Claim);
            created
        })
    }

    fn replace<'a>(
        &'a self,
        record: &'a Record,
        read: &'a Version,
    ) -> BoxFuture<'a, Result<Stored, WriteError>> {
        Box::pin(async move {
            let replaced = self.inner.replace(record, read).await;
            self.point.reached(CrashPoint::Claim);
            replaced
        })
    }

    fn delete<'a>(
        &'a self,
        name: &'a NodeName,
        read: &'a Version,
    ) -> BoxFuture<'a, Result<(), WriteError>> {
        self.inner.delete(name, read)
    }

    fn all(&self) -> BoxFuture<'_, Result<Vec<Stored>, Unavailable>> {
        self.inner.all()
    }

    fn note<'a>(
        &'a self,
        name: &'a NodeName,
        issued: &'a LastIssued,
    ) -> BoxFuture<'a, Result<(), Unavailable>> {
        self.inner.note(name, issued)
    }
}
