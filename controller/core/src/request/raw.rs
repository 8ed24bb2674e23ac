//! A request of ours, unread.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestStatus,
};
use kubelet_attestation::names::Provider;

use crate::decide::Verifiers;
use crate::policy::size;
use crate::refusal::{Denial, Ignored};

/// An open request to one of our signers, within limits; nothing of it has been read.
#[derive(Debug)]
pub struct RawRequest {
    provider: Provider,
    request: Vec<u8>,
    usages: Vec<String>,
    username: String,
    groups: Vec<String>,
    uid: Option<String>,
    expiration: Option<Duration>,
}

/// Why a request does not enter the chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Dismissal {
    /// It is not ours to answer.
    #[error(transparent)]
    Ignore(#[from] Ignored),
    /// It is ours, and over a limit.
    #[error(transparent)]
    Deny(#[from] Denial),
}

impl RawRequest {
    /// Takes an open request to a signer of one of these verifiers.
    ///
    /// One that is approved and not issued goes through the whole chain: somebody else's approval
    /// proves nothing.
    pub fn triage(
        csr: &CertificateSigningRequest,
        verifiers: &Verifiers,
    ) -> Result<Self, Dismissal> {
        let spec = &csr.spec;
        let provider = Provider::of_client_signer(&spec.signer_name)
            .filter(|provider| verifiers.of(provider).is_some())
            .ok_or_else(|| Ignored::AnotherSigner {
                signer: spec.signer_name.clone(),
            })?;
        if let Some(status) = &csr.status {
            still_open(status)?;
        }
        size::within_limits(spec)?;
        Ok(Self {
            provider,
            request: spec.request.0.clone(),
            usages: spec.usages.clone().unwrap_or_default(),
            username: spec.username.clone().unwrap_or_default(),
            groups: spec.groups.clone().unwrap_or_default(),
            uid: spec.uid.clone(),
            expiration: spec
                .expiration_seconds
                .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())),
        })
    }

    /// The provider whose signer is asked.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    pub(super) fn request(&self) -> &[u8] {
        &self.request
    }

    pub(super) fn usages(&self) -> &[String] {
        &self.usages
    }

    pub(super) fn username(&self) -> &str {
        &self.username
    }

    pub(super) fn groups(&self) -> &[String] {
        &self.groups
    }

    pub(super) fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    pub(super) fn expiration(&self) -> Option<Duration> {
        self.expiration
    }
}

fn still_open(status: &CertificateSigningRequestStatus) -> Result<(), Ignored> {
    let has = |kind: &str| {
        status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == kind)
    };
    if has("Denied") {
        Err(Ignored::AlreadyDenied)
    } else if has("Failed") {
        Err(Ignored::AlreadyFailed)
    } else if status
        .certificate
        .as_ref()
        .is_some_and(|certificate| !certificate.0.is_empty())
    {
        Err(Ignored::AlreadyIssued)
    } else {
        Ok(())
    }
}
