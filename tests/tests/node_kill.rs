//! Tests of `kill -9` after every step: the next run completes the join. If a request exists, the run uses that
//! request.

use std::fs;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator::testing::Step;
use kubelet_authenticator_test_support::api_server::{
    self, ApiServer, Gate, Issuance, Route, Signer, exec_info,
};
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use kubelet_authenticator_tests::node::{NULL, Node, UNDER_TEST, is_pair};
use kubelet_authenticator_tests::steps;

const SOON: Duration = Duration::from_secs(20);

fn old_certificates() -> Signer {
    Signer::Issue(Issuance {
        lifetime: Some(Duration::from_secs(3600)),
        backdate: Duration::from_secs(3 * 3600),
        ..Issuance::default()
    })
}

/// Runs the plugin on `node` until it kills itself after `step`.
fn kill_after(step: Step, node: &Node) {
    let name = format!("{step:?}");
    let run = node.run_as(UNDER_TEST, &[("KILL_AT", &name)]);

    assert_eq!(run.code, None, "{step:?}: {run:#?}");
    assert_eq!(run.stdout, "", "{step:?}");
    let file = node.file("kubelet-client.pem");
    assert!(!file.exists() || is_pair(&file), "{step:?}");
}

#[test]
fn an_enrollment_killed_after_any_step_is_finished_with_the_same_request() {
    let mut with_key = Vec::new();
    for step in steps::RUN {
        let server = ApiServer::start();
        server.set_signer(Signer::issue());
        let node = Node::new(NULL, &server);

        kill_after(step, &node);
        let pending = fs::read_to_string(node.file("pending.json")).unwrap_or_default();
        let run = node.run().succeeded();

        assert_eq!(server.csrs().len(), 1, "{step:?}");
        assert!(is_pair(&node.file("kubelet-client.pem")), "{step:?}");
        assert_eq!(node.run().succeeded().pair(), run.pair(), "{step:?}");
        if !pending.is_empty() {
            let pending: serde_json::Value = serde_json::from_str(&pending).unwrap();
            assert_eq!(pending["key"], run.pair().1, "{step:?}");
            with_key.push(step);
        }
    }
    assert_eq!(
        with_key,
        [
            Step::KeySaved,
            Step::Attested,
            Step::RequestSaved,
            Step::Acknowledged,
            Step::Decided,
            Step::CredentialStored,
        ]
    );
}

#[test]
fn a_renewal_killed_after_any_step_is_finished_with_the_same_request() {
    for step in steps::RUN {
        let server = ApiServer::start();
        server.set_signer(old_certificates());
        let node = Node::new(NULL, &server);
        let old = node.run().succeeded().pair();
        server.set_signer(Signer::issue());

        kill_after(step, &node);
        let run = node.run().succeeded();

        assert_ne!(run.pair(), old, "{step:?}");
        assert_eq!(server.csrs().len(), 2, "{step:?}");
        assert!(is_pair(&node.file("kubelet-client.pem")), "{step:?}");
        assert_eq!(node.run().succeeded().pair(), run.pair(), "{step:?}");
    }
}

#[test]
fn a_killed_renewal_for_another_ca_continues_with_the_same_request() {
    let next = CertificateAuthority::new("next");
    for step in steps::RUN {
        let server = ApiServer::start();
        server.set_signer(Signer::issue());
        let mut node = Node::new(NULL, &server);
        let old = node.run().succeeded().pair();
        let mut cluster = server.cluster_info();
        let bundle = format!("{}{}", server.ca_pem(), next.certificate_pem());
        cluster["certificate-authority-data"] = STANDARD.encode(bundle).into();
        node.set_env("KUBERNETES_EXEC_INFO", exec_info("v1", Some(cluster)));

        kill_after(step, &node);
        let run = node.run().succeeded();

        assert_ne!(run.pair(), old, "{step:?}");
        assert_eq!(server.csrs().len(), 2, "{step:?}");
        assert_eq!(node.run().succeeded().pair(), run.pair(), "{step:?}");
    }
}

#[test]
fn a_plugin_killed_during_a_call_continues_with_the_same_request() {
    let gates: [fn(&ApiServer) -> Gate; 4] = [
        |server| server.hold(Route::create(), api_server::Step::Received),
        |server| server.hold(Route::create(), api_server::Step::Stored),
        |server| server.hold(Route::watch(), api_server::Step::Received),
        |server| server.hold(Route::watch(), api_server::Step::Stored),
    ];
    for (number, hold) in gates.into_iter().enumerate() {
        let server = ApiServer::start();
        let node = Node::new(NULL, &server);
        let gate = hold(&server);
        let mut first = node.start(&[]);
        gate.wait(1, SOON);
        first.kill();
        drop(first);
        let name = node.json("pending.json")["request"]["name"].clone();
        gate.cut();
        // At the first gate, the API server has not stored the request yet.
        assert_eq!(server.csrs().len(), usize::from(number > 0));
        if number > 0 {
            server.approve_and_issue(name.as_str().unwrap());
        }
        server.set_signer(Signer::issue());

        let run = node.run().succeeded();

        let csrs = server.csrs();
        assert_eq!(csrs.len(), 1, "gate {number}");
        assert_eq!(csrs[0]["metadata"]["name"], name, "gate {number}");
        assert_eq!(node.run().succeeded().pair(), run.pair());
    }
}

#[test]
fn a_key_left_by_a_killed_renewal_is_not_reused() {
    let server = ApiServer::start();
    server.set_signer(old_certificates());
    let node = Node::new(NULL, &server);
    node.run().succeeded();
    kill_after(Step::CredentialStored, &node);
    assert!(node.file("pending.json").exists());
    let second = fs::read_to_string(node.file("kubelet-client.pem")).unwrap();

    let third = node.run().succeeded();

    assert!(!second.ends_with(&third.pair().1));
}
