//! A crash of the controller between two steps.

use std::sync::Arc;

use clap::ValueEnum;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::NodeName;
use node_attestation_core::identifiers::{KeyDigest, RecordUid};
use node_attestation_core::ledger::{
    AllRecords, LastIssued, Record, Records, Stored, Version, WriteError,
};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::verifier::Identity;
use node_attestation_runtime::client::CallError;
use node_attestation_runtime::csr_writer::RequestStore;

/// The step after which the controller crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CrashPoint {
    /// The node identity has been written.
    Claim,
    /// The request's subresource `/approval` has been written: the request is approved or denied.
    Approve,
    /// The request's subresource `/status` has been written: the certificate is issued, or the request has failed.
    Publish,
}

impl CrashPoint {
    fn reached(self, point: Self) {
        if self == point {
            std::process::abort();
        }
    }
}

/// A store that crashes the controller after a write.
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

#[async_trait::async_trait]
impl RequestStore for CrashingStore {
    async fn get(&self, name: &str) -> Result<Option<CertificateSigningRequest>, CallError> {
        self.inner.get(name).await
    }

    async fn update(
        &self,
        subresource: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        let updated = self.inner.update(subresource, request).await;
        self.point.reached(match subresource {
            "approval" => CrashPoint::Approve,
            _ => CrashPoint::Publish,
        });
        updated
    }
}

/// A store of node identities that crashes the controller after a write.
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

#[async_trait::async_trait]
impl Records for CrashingRecords {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.inner.known(name).await
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        self.inner.known_of_machine(identity, key).await
    }

    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        self.inner.known_of_uid(uid).await
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        self.inner.caught_up(name, version).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.inner.read(name).await
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        let created = self.inner.create(record).await;
        self.point.reached(CrashPoint::Claim);
        created
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        let replaced = self.inner.replace(record, read).await;
        self.point.reached(CrashPoint::Claim);
        replaced
    }

    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError> {
        self.inner.delete(name, read).await
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        self.inner.all().await
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        self.inner.note(name, issued).await
    }
}
