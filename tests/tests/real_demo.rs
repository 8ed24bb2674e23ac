//! The demo tells the same story on real Kubernetes.

use kubelet_authenticator_tests::demo;

#[test]
fn the_demo_on_real_kubernetes_ends_as_told() {
    let story = demo::tell(&["--control-plane", "real"]);

    assert!(story.contains("the attacker's now"), "{story}");
    assert!(story.contains("node/control-plane-1   Ready"), "{story}");
}
