//! Requests that can never be issued, although they contain no contradiction.

use std::error::Error;

use kubelet_attestation::version::{EvidenceVersion, SUPPORTED_VERSIONS_ANNOTATION};

use crate::identifiers::KeyDigest;

crate::reasons! {
    /// The reasons why a request can never be issued, although it contains no contradiction.
    pub Failure {
        /// The controller does not support this evidence version. The annotation lists the supported versions.
        #[error(
            "the evidence has version {version}; supported versions: {}",
            EvidenceVersion::list(supported)
        )]
        #[cure("Upgrade the plugin or the controller, whichever is older.")]
        UnsupportedAttestationVersion {
            /// The version of the evidence.
            version: EvidenceVersion,
            /// The supported versions.
            supported: Vec<EvidenceVersion>,
        } => "the evidence version is not supported; the annotation lists the supported versions",
        /// The evidence is older than allowed.
        #[error("the evidence is too old")]
        #[cure("Synchronize the clocks of the node and the controller. At its next run, the plugin creates new \
                evidence.")]
        EvidenceExpired => "the evidence is too old",
        /// The annotation contains a challenge for the machine's TPM. The node responds in another request with the
        /// same key, because a request can be answered only once.
        #[error("the controller created a challenge for the TPM: {detail}")]
        #[cure("No action is needed: every join with a TPM starts with such a request.")]
        ChallengeIssued {
            /// A description of the challenge, for the log.
            detail: String,
            /// The challenge, as the provider's plugin reads it: names and values.
            annotations: Vec<(&'static str, String)>,
            /// The endorsement key that the machine has.
            endorsement_key: KeyDigest,
        } => "the annotation contains a challenge for the machine's TPM",
        /// The certificate could not be encoded or signed.
        #[error("the certificate could not be signed")]
        #[cure("Check the CA certificate and its key. The log shows the cause.")]
        SigningImpossible(#[source] Box<dyn Error + Send + Sync>) => "the certificate could not be signed",
        /// The API server rejected the certificate.
        #[error("the API server rejected the certificate")]
        #[cure("See the API server's message in the log. The node sends another request.")]
        CertificateRejected => "the API server rejected the certificate",
        /// The request did not match any machine in the cluster within 20 minutes of its creation. The machine was
        /// deleted or never existed. No node still waits for the request.
        #[error("the machine is still missing 20 minutes after the request")]
        #[cure("Compare the output of `identify` on the node with `spec.providerID` of the Machine.")]
        MachineMissing => "no machine matched the request within 20 minutes",
        /// The request was approved, but could not be verified within 10 minutes. An approved request must not remain
        /// open. By then, the node has sent another request.
        #[error("the request was approved, but could not be verified in time: {0}")]
        #[cure("Find the cause in the log, and correct it. The node sends another request.")]
        UndecidedTooLong(String) => "the request was approved but could not be verified within 10 minutes",
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
