//! The demo tells the story that it promises.

use std::process::Command;

use kubelet_authenticator_tests::program;

#[test]
fn the_embedded_demo_ends_as_told() {
    let output = Command::new(program("demo")).output().unwrap();

    let story = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{story}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for refused in [
        "ProviderIdOfAnotherMachine",
        "NodeNameMismatch",
        "SubjectAltNameRequested",
        "SubjectOrganization",
    ] {
        assert!(
            story.contains(&format!("Denied: {refused}")),
            "{refused} is missing:\n{story}"
        );
    }
    assert!(story.contains("requests of worker-3 in all: 1"), "{story}");
}
