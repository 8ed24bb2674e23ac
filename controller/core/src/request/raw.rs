//! A request that has not been parsed yet.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestStatus,
};
use kubelet_attestation::ensure;
use kubelet_attestation::evidence::tpm::ENDORSEMENT_KEY_ANNOTATION;
use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, Provider};

use super::ApprovalReason;
use crate::policy::size;
use crate::refusal::{Deferral, Denial, Ignored};
use crate::verifier::Verifiers;

/// An open request, within the size limits, to a signer of this controller or of Kubernetes. It has not been parsed
/// yet.
#[derive(Debug)]
pub struct RawRequest {
    contents: RawContents,
}

/// The fields of a request.
#[derive(Debug)]
pub(super) struct RawContents {
    pub(super) signer_kind: SignerKind,
    pub(super) request: Vec<u8>,
    pub(super) usages: Vec<String>,
    pub(super) username: String,
    pub(super) groups: Vec<String>,
    pub(super) uid: Option<String>,
    pub(super) expiration: Option<Duration>,
    /// The time at which the API server created the request.
    pub(super) created: Option<SystemTime>,
    /// The annotation with an endorsement key.
    pub(super) annotated_key: Option<String>,
}

/// The kind of the requested signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignerKind {
    /// This controller's client signer for this provider.
    Client(Provider),
    /// kube-controller-manager's client signer.
    BuiltInClient,
    /// This controller's serving signer for this provider.
    Serving(Provider),
    /// kube-controller-manager's serving signer.
    BuiltInServing,
    /// The same signer in a cluster in which kube-controller-manager does not sign, so that this controller signs.
    OwnBuiltInServing,
}

/// The component that signs for `kubernetes.io/kubelet-serving` in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KubeletServing {
    /// kube-controller-manager.
    BuiltIn,
    /// This controller, with an external signer.
    Own,
}

impl SignerKind {
    /// Returns the kind of the signer with this name. `None` if the controller does not decide on requests to this
    /// signer.
    fn of(signer: &str, verifiers: &Verifiers) -> Option<Self> {
        let admitted = |provider: &Provider| verifiers.admits(provider);
        let attests = |provider: &Provider| match verifiers.of(provider) {
            Some(verifier) => !verifier.versions().is_empty(),
            None => *provider != Provider::INSECURE && admitted(provider),
        };
        match signer {
            BUILT_IN_CLIENT_SIGNER => Some(Self::BuiltInClient),
            BUILT_IN_SERVING_SIGNER => Some(Self::BuiltInServing),
            _ => Provider::of_client_signer(signer)
                .filter(admitted)
                .map(Self::Client)
                .or_else(|| {
                    Provider::of_serving_signer(signer)
                        .filter(attests)
                        .map(Self::Serving)
                }),
        }
    }
}

/// The names of the signers whose requests the controller answers, including the signers for attestation providers with
/// an unavailable verifier.
pub fn signers(verifiers: &Verifiers) -> Vec<String> {
    let built_in = [BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER].map(str::to_owned);
    let providers = verifiers.providers();
    let providers = || providers.iter();
    providers()
        .map(Provider::client_signer)
        .chain(providers().map(Provider::serving_signer))
        .chain(built_in)
        .filter(|signer| SignerKind::of(signer, verifiers).is_some())
        .collect()
}

/// The reason why a request does not enter the chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TriageError {
    /// The controller does not decide on the request.
    #[error(transparent)]
    Ignore(#[from] Ignored),
    /// The request exceeds a size limit.
    #[error(transparent)]
    Deny(#[from] Denial),
    /// The request needs a verifier that is unavailable. The controller does not parse this request, because it cannot
    /// determine whether the request is valid.
    #[error(transparent)]
    Retry(#[from] Deferral),
}

impl RawRequest {
    /// Accepts an open request to a signer of these verifiers, or to a built-in kubelet signer of Kubernetes.
    ///
    /// A request that is approved but not issued passes through the whole chain, because an approval by another
    /// approver is not a verification. The exception is a request that this controller approved and that
    /// kube-controller-manager signs: its checks are complete.
    pub fn triage(
        csr: &CertificateSigningRequest,
        verifiers: &Verifiers,
    ) -> Result<Self, TriageError> {
        triage(csr, verifiers, KubeletServing::BuiltIn)
    }

    /// The kind of the requested signer.
    pub fn signer_kind(&self) -> &SignerKind {
        &self.contents.signer_kind
    }

    pub(super) fn contents(&self) -> &RawContents {
        &self.contents
    }
}

/// Does the same as [`RawRequest::triage`], in a cluster where this component signs for
/// `kubernetes.io/kubelet-serving`. A request that this controller approved and must also sign is still open until it
/// has a certificate.
pub(crate) fn triage(
    csr: &CertificateSigningRequest,
    verifiers: &Verifiers,
    serving: KubeletServing,
) -> Result<RawRequest, TriageError> {
    let signer = &csr.spec.signer_name;
    let signer_kind = match (SignerKind::of(signer, verifiers), serving) {
        (None, _) => return Err(Ignored::AnotherSigner(signer.clone()).into()),
        (Some(SignerKind::BuiltInServing), KubeletServing::Own) => SignerKind::OwnBuiltInServing,
        (Some(signer_kind), _) => signer_kind,
    };
    let CertificateSigningRequest { metadata, spec, .. } = csr;
    let created = metadata.creation_timestamp.as_ref();
    let annotations = metadata.annotations.as_ref();
    if let Some(status) = &csr.status {
        still_open(status, &signer_kind)?;
    }
    if let SignerKind::Client(provider) | SignerKind::Serving(provider) = &signer_kind {
        verifiers.is_available(provider)?;
    }
    size::within_limits(spec)?;
    let contents = RawContents {
        signer_kind,
        request: spec.request.0.clone(),
        usages: spec.usages.clone().unwrap_or_default(),
        username: spec.username.clone().unwrap_or_default(),
        groups: spec.groups.clone().unwrap_or_default(),
        uid: spec.uid.clone(),
        expiration: spec
            .expiration_seconds
            .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())),
        created: created.map(|time| time.0.into()),
        annotated_key: annotations.and_then(|all| all.get(ENDORSEMENT_KEY_ANNOTATION).cloned()),
    };
    Ok(RawRequest { contents })
}

fn still_open(
    status: &CertificateSigningRequestStatus,
    signer_kind: &SignerKind,
) -> Result<(), Ignored> {
    let conditions = || status.conditions.iter().flatten();
    let has = |kind: &str| conditions().any(|condition| condition.type_ == kind);
    let approved_by_us = conditions().any(|condition| {
        let reason = condition.reason.as_deref();
        condition.type_ == "Approved" && reason.is_some_and(ApprovalReason::is_ours)
    });
    let certificate = status.certificate.as_ref();
    let is_issued = certificate.is_some_and(|certificate| !certificate.0.is_empty());
    ensure!(!has("Denied"), Ignored::AlreadyDenied);
    ensure!(!has("Failed"), Ignored::AlreadyFailed);
    match signer_kind {
        SignerKind::BuiltInClient if is_issued && !approved_by_us => Err(Ignored::IssuedByOthers),
        _ if is_issued => Err(Ignored::AlreadyIssued),
        SignerKind::BuiltInClient | SignerKind::BuiltInServing if approved_by_us => {
            Err(Ignored::AlreadyApproved)
        }
        SignerKind::Client(_)
        | SignerKind::BuiltInClient
        | SignerKind::Serving(_)
        | SignerKind::BuiltInServing
        | SignerKind::OwnBuiltInServing => Ok(()),
    }
}
