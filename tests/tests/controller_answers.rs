//! Tests of the controller's answers to requests, with an API server in this process.

use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::{Application, Bed, Machine, is_issued, reason_of};
use serde_json::Value;

const ONE: Machine = Machine::new("worker-1", "token1");
const TWO: Machine = Machine::new("worker-2", "token2");

#[test]
fn the_log_shows_each_step_of_a_join_with_a_machine_token() {
    let bed = Bed::insecure(&[ONE, TWO]);
    let mut controller = bed.setup.start();
    let name = Application::insecure(ONE).put(&bed.server);

    let csr = bed.wait_for_answer(&name);

    assert_eq!(reason_of(&csr, "Approved"), Some("NodeNameClaimed"));
    assert!(is_issued(&csr), "{csr:#}");
    let line = controller.wait_for_decision(&name);
    for (field, expected) in [
        ("outcome", "issued"),
        ("reason", "FirstJoin"),
        ("node", "worker-1"),
        ("provider", "insecure"),
        ("check", "signature"),
        ("requester", "system:bootstrap:token1"),
    ] {
        assert_eq!(line[field], expected, "{field}");
    }
    assert!(
        line["millis"].as_f64().is_some_and(|millis| millis > 0.0),
        "{line}"
    );
    let checks: Vec<Value> = controller
        .lines()
        .into_iter()
        .map(|mut line| line["fields"].take())
        .filter(|fields| fields["message"] == "checked" && fields["csr"] == *name)
        .map(|mut fields| fields["check"].take())
        .collect();
    let all = [
        "scope",
        "encoding",
        "request-format",
        "machine",
        "evidence",
        "node-name",
        "claim",
        "signature",
    ];
    assert_eq!(checks, all);
    let event = bed.wait_for_event(&name, "FirstJoin");
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!(event["type"], "Normal");
    assert_eq!(controller.stop(), Some(0));
}

/// Without Cluster API, the inventory assigns each token to a machine. The token cannot be assigned to a different
/// machine.
#[test]
fn an_insecure_machine_with_an_unlisted_token_waits_without_cluster_api() {
    const LISTED_WITHOUT: Machine = Machine::new("worker-3", "");
    for claimed in [ONE, LISTED_WITHOUT] {
        let bed = Bed::insecure(&[ONE, TWO, LISTED_WITHOUT]);
        let mut controller = bed.setup.start();
        let unlisted = Machine::new(claimed.name, "nobody");
        let name = Application::insecure(unlisted).put(&bed.server);

        let decision = controller.wait_for_decision(&name);

        assert_eq!(decision["outcome"], "deferred");
        assert_eq!(decision["reason"], "MachineNotFound");
        let later = bed.wait_for_answer(&Application::insecure(TWO).put(&bed.server));
        assert!(is_issued(&later), "{later:#}");
        assert_unanswered(Later::answer(&later), || bed.server.csr(&name).unwrap());
    }
}

#[test]
fn a_join_costs_two_writes_and_no_read() {
    let bed = Bed::null(&[ONE, TWO]);
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();

    let name = bed.stamped(ONE);
    bed.wait_for_answer(&name);
    controller.wait_for_decision(&name);

    assert_eq!(bed.calls(&name, "approval"), 1);
    assert_eq!(bed.calls(&name, "status"), 1);
    assert_eq!(bed.calls(&name, ""), 0, "reads of the request");
    for request in bed.server.requests() {
        let agent = request.user_agent;
        assert!(
            agent.starts_with("node-attestation-controller/"),
            "{agent:?}"
        );
    }
}

#[test]
fn a_verifier_can_deny_with_a_provider_specific_reason() {
    let bed = Bed::null(&[ONE, TWO]);
    let mut controller = bed.setup.start_with(&["--deny-for", ONE.name]);
    let name = bed.stamped(ONE);

    let csr = bed.wait_for_answer(&name);

    assert_eq!(reason_of(&csr, "Denied"), Some("StampWithheld"));
    let conditions = csr["status"]["conditions"].as_array().unwrap();
    let denied = conditions.iter().find(|it| it["type"] == "Denied").unwrap();
    assert_eq!(denied["message"], "the stamp is withheld from this node");
    let line = controller.wait_for_decision(&name);
    assert_eq!(line["reason"], "StampWithheld");
    assert_eq!(line["detail"], "the stamp is withheld from node worker-1");
    let event = bed.wait_for_event(&name, "StampWithheld");
    assert_eq!(event["type"], "Warning");
    assert!(is_issued(&bed.wait_for_answer(&bed.stamped(TWO))));
}

#[test]
fn the_log_contains_no_key_request_or_evidence() {
    let bed = Bed::null(&[ONE, TWO]);
    let mut controller = bed.setup.start();
    let good = Application::null(ONE, bed.server.ca_pem());
    let bad = Application::null(ONE, bed.server.ca_pem()).with_token_of(TWO);
    for application in [&good, &bad] {
        application.put(&bed.server);
        bed.wait_for_answer(&application.name());
        controller.wait_for_decision(&application.name());
    }

    let log = controller.process.log().text();

    for application in [good, bad] {
        let object = application.to_json();
        let request = object["spec"]["request"].as_str().unwrap();
        assert!(!log.contains(&request[100..140]), "the request");
    }
    let key = bed.server.client_ca().key_pem.clone();
    for line in key.lines() {
        assert!(!log.contains(line), "the CA's key");
    }
    for word in ["PRIVATE KEY", "BEGIN CERTIFICATE", "\"version\""] {
        assert!(!log.contains(word), "{word}");
    }
}
