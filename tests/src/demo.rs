//! The demo under test.

use std::process::Command;

use crate::program;

/// Runs the demo, and gives its story.
///
/// # Panics
///
/// If it did not go as told: an attack that was not refused by the check that is meant for it, or a
/// second request of the machine that was killed.
#[track_caller]
pub fn tell(arguments: &[&str]) -> String {
    let output = Command::new(program("demo")).args(arguments).output();
    let output = output.expect("the demo can be started");
    let story = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{story}{complaint}");
    for refused in [
        "ProviderIdOfAnotherMachine",
        "NodeNameMismatch",
        "SubjectAltNameRequested",
        "SubjectOrganization",
    ] {
        assert!(
            story.contains(&format!("Denied: {refused}")),
            "no {refused}: {story}"
        );
    }
    assert!(story.contains("waits: IdentityLive"), "{story}");
    assert!(story.contains("requests of worker-3 in all: 1"), "{story}");
    story
}
