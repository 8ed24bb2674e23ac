//! Requests that can never be issued, by nobody's fault.

use std::error::Error;

use kubelet_attestation::version::{EvidenceVersion, SUPPORTED_VERSIONS_ANNOTATION};

use crate::identifiers::KeyDigest;

crate::reasons! {
    /// Why a request can never be issued, though nothing contradicts it.
    pub Failure {
        /// The evidence is of a version that this controller does not read. The annotation lists
        /// those that it does.
        #[error(
            "the evidence is of version {version}, and {} are read",
            EvidenceVersion::list(supported)
        )]
        UnsupportedAttestationVersion {
            /// The version of the evidence.
            version: EvidenceVersion,
            /// The supported versions.
            supported: Vec<EvidenceVersion>,
        } => "the version of the evidence is not supported; the annotation lists those that are",
        /// The evidence is older than evidence may be.
        #[error("the evidence is too old")]
        EvidenceExpired => "the evidence is too old",
        /// The machine's TPM is asked to open a challenge, which the annotation holds. The node answers
        /// it in another request with the same key: a request can be answered once.
        #[error("the TPM is challenged: {detail}")]
        ChallengeIssued {
            /// A description of the challenge, for the log.
            detail: String,
            /// The challenge, as the provider's plugin reads it: names and values.
            annotations: Vec<(&'static str, String)>,
            /// The endorsement key that the machine has.
            endorsement_key: KeyDigest,
        } => "the annotation holds a challenge for the machine's TPM",
        /// The certificate could not be encoded or signed.
        #[error("the certificate could not be signed")]
        SigningImpossible(#[source] Box<dyn Error + Send + Sync>) => "the certificate could not be signed",
        /// The API server takes the certificate for none; its words are in the log.
        #[error("the API server refuses the certificate")]
        CertificateRejected => "the API server refuses the certificate",
        /// Twenty minutes after it was created the cluster has no such machine: it is gone, or never
        /// was. No node waits for the request any more.
        #[error("the cluster has no such machine, twenty minutes after the request")]
        MachineMissing => "the machine was not found for twenty minutes",
        /// It was approved, and for ten minutes something stood in the way of a decision. An
        /// approved request must not stay open, and the node asks anew by then.
        #[error("approved, and undecided for too long: {0}")]
        UndecidedTooLong(String) => "the request was approved, and could not be decided about in time",
    }
}

impl Failure {
    /// The annotations that go with the condition, names and values.
    pub fn annotations(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::UnsupportedAttestationVersion { supported, .. } => vec![(
                SUPPORTED_VERSIONS_ANNOTATION,
                EvidenceVersion::list(supported),
            )],
            Self::ChallengeIssued { annotations, .. } => annotations.clone(),
            Self::EvidenceExpired
            | Self::SigningImpossible { .. }
            | Self::CertificateRejected
            | Self::MachineMissing
            | Self::UndecidedTooLong { .. } => vec![],
        }
    }
}
