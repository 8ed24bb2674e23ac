//! Tests of the output formats of commands, and of the last line of a failed run.

use kubelet_authenticator_test_support::api_server::Signer;
use kubelet_authenticator_tests::node::NULL;
use kubelet_authenticator_tests::program;
use serde_json::Value;

use crate::nodes::{joined, node};

#[test]
fn yaml_output_has_the_content_of_json_output() {
    let (_server, mut node) = joined();
    node.set_env("PATH", node.scratch().directory("bin"));
    for command in [
        &["status"][..],
        &["doctor", "--kubelet-kubeconfig", "/missing"],
        &["identify"],
        &["inspect", "store"],
        &["config", "check"],
        &["version"],
    ] {
        let output = |format| node.command(&[command, &["-o", format]].concat()).stdout;
        let json: Value = serde_json::from_str(&output("json")).unwrap();
        let yaml: Value = serde_saphyr::from_str(&output("yaml")).unwrap();
        assert_eq!(yaml, json, "{command:?}");
    }
    let run = node
        .command(&["csr", "--dry-run", "-o", "json"])
        .succeeded();
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["kind"], "CertificateSigningRequest");
}

#[test]
fn only_the_first_failure_of_a_series_suggests_doctor() {
    let (server, node) = node();
    server.set_signer(Signer::deny("AnotherMachine", "not you"));
    let hint = &format!("{} doctor", program(NULL).display());

    let run = node.run().failed(12);

    assert!(
        run.stderr
            .ends_with(&format!("hint: to find the cause, run: {hint}\n")),
        "{run:#?}"
    );
    assert_eq!(run.stderr.matches(hint).count(), 1);
    assert_eq!(run.stderr.lines().count(), 3);
    let again = node.run().failed(17);
    assert!(!again.stderr.contains(hint), "{again:#?}");
    let by_hand = node.command(&["credential"]).failed(12);
    assert!(!by_hand.stderr.contains(hint), "{by_hand:#?}");
}
