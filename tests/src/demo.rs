//! The demo under test.

use std::process::Command;

use crate::program;

/// The output that the demo must print for a provider, or for Cluster API.
const TOLD: [(&str, &[&str]); 5] = [
    (
        "aws",
        &[
            "Denied: EvidenceMissing",
            "Denied: AnotherMachine",
            "Denied: CallerIsAnotherInstance",
            "Denied: EvidenceReplayed",
            "Denied: CallerRefused",
            "Failed: EvidenceExpired",
            "Denied: CallerRoleNotAllowed",
            "Denied: NodeNameMismatch",
            "requests from worker-3 in total: 1",
            "8 of 8 attacks had the expected outcome",
        ],
    ),
    (
        "tpm",
        &[
            "Denied: EvidenceMissing",
            "Denied: EndorsementKeyOfAnotherMachine",
            "Denied: AttestationKeyAttributes",
            "Failed: ChallengeIssued",
            "Denied: QuoteOfAnotherRequest",
            "Failed: EvidenceExpired",
            "Denied: NodeNameMismatch",
            "Denied: RegisterNotAllowed",
            "register 4 is",
            "requests from worker-3 in total: 2, with one challenge and one answer",
            "9 of 9 attacks had the expected outcome",
        ],
    ),
    (
        "insecure",
        &[
            "Denied: ProviderIdOfAnotherMachine",
            "Denied: NodeNameMismatch",
            "Denied: SubjectAltNameRequested",
            "Denied: SubjectOrganization",
            "waits: IdentityLive",
            "requests from worker-3 in total: 1",
            "7 of 7 attacks had the expected outcome",
        ],
    ),
    (
        "aws-tenants",
        &[
            "by-key    Node ip-",
            "by-role   Node ip-",
            "by-token  Node ip-",
            "by-team   Node ip-",
            "UsageUnauthorized: allowedNamespaces of AWSClusterRoleIdentity/by-role does not permit",
        ],
    ),
    (
        "cluster-api",
        &[
            "failed: ChallengeIssued",
            "approved: ServingNamesCorroborated",
            "it runs on worker-",
            "HTTP 403",
            "EndorsementKeyOfAnotherMachine",
            "MachineGone",
            "== The rollout replaces",
        ],
    ),
];

/// Runs the demo for a provider, and returns its output.
///
/// # Panics
///
/// Panics if an outcome is unexpected. For example, the intended check did not refuse an attack, or the killed machine
/// has more requests than a join needs.
#[track_caller]
pub fn tell(provider: &str, control_plane: &str) -> String {
    let arguments = ["--provider", provider, "--control-plane", control_plane];
    let output = Command::new(program("demo")).args(arguments).output();
    let output = output.expect("the demo can be started");
    let story = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{story}{complaint}");
    let kind = match (provider, control_plane) {
        ("tpm", "cluster-api") => control_plane,
        _ => provider,
    };
    let (_, told) = TOLD
        .iter()
        .find(|(of, _)| *of == kind)
        .expect("the demo has this provider");
    for words in *told {
        assert!(story.contains(words), "no {words}: {story}");
    }
    assert!(story.contains("Next: "), "no next step: {story}");
    story
}
