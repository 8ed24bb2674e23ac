//! The demo tells the same story on real Kubernetes.

use std::process::Command;

use kubelet_authenticator_tests::program;

#[test]
fn the_demo_on_real_kubernetes_ends_as_told() {
    let output = Command::new(program("demo"))
        .args(["--control-plane", "real"])
        .output()
        .unwrap();

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
    assert!(
        story.contains("the first one is the attacker's now"),
        "{story}"
    );
    assert!(story.contains("node/control-plane-1   Ready"), "{story}");
    assert!(story.contains("requests of worker-3 in all: 1"), "{story}");
}
