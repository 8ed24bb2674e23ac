//! Requests that can never be issued, although they contain no contradiction.

use std::error::Error;

use kubelet_attestation::version::{EvidenceVersion, SUPPORTED_VERSIONS_ANNOTATION};

use crate::identifiers::KeyDigest;

crate::reasons! {
    /// Why a request can never be issued, though nothing contradicts it.
    pub Failure {
        /// The controller does not read this version of evidence. The annotation lists the versions that it reads.
        #[error(
            "the evidence has version {version}; supported versions: {}",
            EvidenceVersion::list(supported)
        )]
        #[cure("Upgrade the older of plugin and controller.")]
        UnsupportedAttestationVersion {
            /// The version of the evidence.
            version: EvidenceVersion,
            /// The supported versions.
            supported: Vec<EvidenceVersion>,
        } => "the evidence version is not supported; the annotation lists the supported versions",
        /// The evidence is older than permitted.
        #[error("the evidence is too old")]
        #[cure("Synchronize the clocks. The plugin's next run creates new evidence.")]
        EvidenceExpired => "the evidence is too old",
        /// The annotation contains a challenge for the machine's TPM. The node answers it in another request with the
        /// same key, because a request can be answered only once.
        #[error("the TPM is challenged: {detail}")]
        #[cure("Nothing. This request is the first half of every join with a TPM.")]
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
        #[cure("Check the CA certificate and its key. The log has the cause.")]
        SigningImpossible(#[source] Box<dyn Error + Send + Sync>) => "the certificate could not be signed",
        /// The API server rejects the certificate. The log has its message.
        #[error("the API server refuses the certificate")]
        #[cure("See the log for the message of the API server. The node sends another request.")]
        CertificateRejected => "the API server refuses the certificate",
        /// 20 minutes after its creation, the request still has no machine in the cluster. The machine is gone, or
        /// never existed. No node waits for the request any more.
        #[error("the cluster has no such machine, 20 minutes after the request")]
        #[cure("Compare `identify` on the node with `spec.providerID` of the Machine.")]
        MachineMissing => "no machine was found for 20 minutes",
        /// The request was approved, and could not be decided for 10 minutes. An approved request must not stay open.
        /// The node sends another one by then.
        #[error("approved, but not verified in time: {0}")]
        #[cure("Find the cause in the log, and correct it. The node sends another request.")]
        UndecidedTooLong(String) => "the request was approved but could not be verified within ten minutes",
    }
}

impl Failure {
    /// The annotations that the controller writes with the condition: names and values.
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
