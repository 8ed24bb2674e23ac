//! Reasons and durations on which nodes and the controller must agree.
//!
//! The controller derives the name of a reason from a variant of an enum. A test of the controller compares its reasons
//! with [`DENIALS`] and [`FAILURES`], because a node does not recognize a renamed reason.

use std::time::Duration;

/// A failed request: the controller does not accept the version of the evidence. The node sends one request with
/// another version.
pub const UNSUPPORTED_ATTESTATION_VERSION: &str = "UnsupportedAttestationVersion";

/// A failed request: the controller answered it with a challenge. The node sends the response in another request.
pub const CHALLENGE_ISSUED: &str = "ChallengeIssued";

/// A failed request: its evidence, or its response to a challenge, arrived too late. The node requests another
/// challenge.
pub const EVIDENCE_EXPIRED: &str = "EvidenceExpired";

/// A denied request: the requester's certificate belongs to an earlier generation of the node's record. The node
/// requests with its bootstrap credential.
pub const FORMER_CERTIFICATE: &str = "FormerCertificate";

/// A denied request: the requester's node has no record. The node requests with its bootstrap credential.
pub const RECORD_MISSING: &str = "RecordMissing";

/// A denied request: the requester's certificate has no UID. The node requests with its bootstrap credential.
pub const REQUESTER_UID_MISSING: &str = "RequesterUidMissing";

/// A denied request: the certificates with this key were revoked. The node creates another key.
pub const IDENTITY_REVOKED: &str = "IdentityRevoked";

/// A denied request: another machine has this key. The node creates another key.
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

/// The time by which the controller backdates certificates. A node whose clock is slow by at most this time then
/// accepts a new certificate. kube-controller-manager backdates by the same time.
///
/// A node adds this time to the start of its certificate, and measures the age for a renewal from the result.
pub const CERTIFICATE_BACKDATING: Duration = Duration::from_mins(5);

/// The age at which a node without a certificate abandons an undecided request and creates another one. The controller
/// then fails the abandoned request.
pub const REQUEST_ABANDONED_AFTER: Duration = Duration::from_mins(10);

/// The age at which verifiers refuse evidence. STS accepts a signature for 15 minutes; the last minute is for the call.
///
/// It is longer than [`REQUEST_ABANDONED_AFTER`], so that evidence does not expire before its request is abandoned.
pub const MAX_EVIDENCE_AGE: Duration = Duration::from_mins(14);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_abandoned_before_its_evidence_expires() {
        assert!(REQUEST_ABANDONED_AFTER < MAX_EVIDENCE_AGE);
    }
}
