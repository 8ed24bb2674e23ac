//! Reasons and durations on which nodes and the controller must agree.
//!
//! The controller derives the name of a reason from a variant of an enum. A test of the controller compares its reasons
//! with [`DENIALS`] and [`FAILURES`], because a node does not recognize a renamed reason.

use std::time::Duration;

/// A reason for a failure: the controller does not accept the evidence version. The node sends another request with a
/// different version.
pub const UNSUPPORTED_ATTESTATION_VERSION: &str = "UnsupportedAttestationVersion";

/// A reason for a failure: the controller answered the request with a challenge. The node sends the response in another
/// request.
pub const CHALLENGE_ISSUED: &str = "ChallengeIssued";

/// A reason for a failure: the evidence, or the response to a challenge, arrived too late. The node requests another
/// challenge.
pub const EVIDENCE_EXPIRED: &str = "EvidenceExpired";

/// A reason for a denial: the requester's certificate belongs to an earlier generation of the node identity. The node
/// sends its next request with its bootstrap credential.
pub const FORMER_CERTIFICATE: &str = "FormerCertificate";

/// A reason for a denial: the requester's node has no node identity. The node sends its next request with its bootstrap
/// credential.
pub const RECORD_MISSING: &str = "RecordMissing";

/// A reason for a denial: the requester's certificate has no UID. The node sends its next request with its bootstrap
/// credential.
pub const REQUESTER_UID_MISSING: &str = "RequesterUidMissing";

/// A reason for a denial: the certificates with this key were revoked. The node creates a new key.
pub const IDENTITY_REVOKED: &str = "IdentityRevoked";

/// A reason for a denial: a different machine has this key. The node creates a new key.
pub const KEY_OF_ANOTHER_MACHINE: &str = "KeyOfAnotherMachine";

/// The reasons for a denial that change the node's next request.
pub const DENIALS: [&str; 5] = [
    FORMER_CERTIFICATE,
    RECORD_MISSING,
    REQUESTER_UID_MISSING,
    IDENTITY_REVOKED,
    KEY_OF_ANOTHER_MACHINE,
];

/// The reasons for a failure that change the node's next request.
pub const FAILURES: [&str; 3] = [
    UNSUPPORTED_ATTESTATION_VERSION,
    CHALLENGE_ISSUED,
    EVIDENCE_EXPIRED,
];

/// The controller backdates certificates by this time. A node then accepts a new certificate even if its clock is slow
/// by up to this time. kube-controller-manager backdates certificates by the same time.
///
/// A node adds this time to the start of its certificate's validity. To determine whether a renewal is due, the node
/// measures the certificate's age from this sum.
pub const CERTIFICATE_BACKDATING: Duration = Duration::from_mins(5);

/// The age at which a node without a certificate abandons an undecided request and creates another request. The
/// controller then fails the abandoned request.
pub const REQUEST_ABANDONED_AFTER: Duration = Duration::from_mins(10);

/// The age at which verifiers reject evidence. STS accepts a signature for 15 minutes; the remaining minute is for the
/// STS call.
///
/// The age is greater than [`REQUEST_ABANDONED_AFTER`], so evidence does not expire before its request is abandoned.
pub const MAX_EVIDENCE_AGE: Duration = Duration::from_mins(14);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_abandoned_before_its_evidence_expires() {
        assert!(REQUEST_ABANDONED_AFTER < MAX_EVIDENCE_AGE);
    }
}
