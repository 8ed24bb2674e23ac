//! Tests that each failure has its own exit status and message, and leaves standard output empty.
//!
//! Exit codes 1 (a bug), 5, 6 and 7 cannot occur with providers without evidence.

use std::fs;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Fault, Flaw, Issuance, Route, Signer, Step, Times, Verb,
};
use kubelet_authenticator_tests::node::{INSECURE, NULL, Node};
use serde_json::json;

/// A time limit that is longer than any step of a successful run.
const SOON: Duration = Duration::from_secs(20);

fn node(signer: Signer) -> (ApiServer, Node) {
    let server = ApiServer::start();
    server.set_signer(signer);
    let node = Node::new(NULL, &server);
    (server, node)
}

#[test]
fn invalid_usage_exits_with_2_without_a_connection() {
    let (server, node) = node(Signer::Off);

    node.command(&["nonsense"]).failed(2);
    node.command(&[]).failed(2).saying("KUBERNETES_EXEC_INFO");
    node.command(&["renew", "--expiration-seconds", "soon"])
        .failed(2);
    assert_eq!(server.connections(), 0);
}

#[test]
fn an_invalid_configuration_exits_with_3() {
    let (server, mut node) = node(Signer::issue());
    let config = node.scratch().write("config.yaml", "nodeNam: x\n");

    node.set("config", &config);
    node.run()
        .failed(3)
        .saying("nodeNam")
        .saying(config.to_str().unwrap());
    node.unset("config");

    node.unset("providerID");
    node.run()
        .failed(3)
        .saying("provider ID")
        .saying("providerID");
    node.set("providerID", "test:///machine-1");

    for info in [
        "",
        "{",
        "[]",
        "\u{1}",
        r#"{"kind":"Pod","apiVersion":"v1"}"#,
    ] {
        node.set_env("KUBERNETES_EXEC_INFO", info);
        node.run().failed(3).saying("KUBERNETES_EXEC_INFO");
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn an_unsafe_bootstrap_kubeconfig_exits_with_3() {
    let (server, node) = node(Signer::issue());
    let path = node.scratch().join("bootstrap.kubeconfig");

    server.kubeconfig().insecure_skip_tls_verify().write(&path);

    node.run().failed(3).saying("insecure-skip-tls-verify");
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_held_lock_exits_with_4_and_names_the_holder() {
    let (server, mut node) = node(Signer::issue());
    let gate = server.hold(Route::create(), Step::Received);
    let holder = node.start(&[]);
    gate.wait(1, SOON);
    node.set("timeLimit", "1");

    node.run().failed(4).saying("was held").saying(NULL);

    gate.open();
    holder.finish().succeeded();
}

#[test]
fn an_unreachable_api_server_exits_with_8() {
    for (fault, words) in [
        (ConnectionFault::Close, "cannot reach"),
        (
            ConnectionFault::AnotherAuthority,
            "is not signed by the cluster's CA",
        ),
        (
            ConnectionFault::AnotherName,
            "certificate is not for \"127.0.0.1\"",
        ),
        (
            ConnectionFault::ExpiredCertificate,
            "the server's certificate expired at ",
        ),
        (
            ConnectionFault::NotYetValidCertificate,
            "hint: set the clock of this machine with NTP",
        ),
    ] {
        let (server, mut node) = node(Signer::issue());
        node.set("timeLimit", "3");
        server.inject_connection(Times::always(), fault);

        node.run().failed(8).saying(words);

        assert_eq!(server.creates(), 0);
    }
}

#[test]
fn an_invalid_or_missing_credential_exits_with_9() {
    let (server, node) = node(Signer::issue());
    server.revoke_token("abcdef");
    node.run().failed(9).saying("401").saying("bootstrap token");

    fs::remove_file(node.scratch().join("bootstrap.kubeconfig")).unwrap();
    node.command(&["credential"])
        .failed(9)
        .saying("bootstrap.kubeconfig");
}

#[test]
fn a_request_refused_by_the_api_server_exits_with_10() {
    for code in [403, 422] {
        let (server, node) = node(Signer::issue());
        server.inject(Route::create(), Times::always(), Fault::status(code));

        node.run().failed(10).saying(&code.to_string());
    }
}

#[test]
fn a_taken_request_name_exits_with_10_and_the_next_run_uses_another() {
    let (server, node) = node(Signer::issue());
    let spec = json!({"expirationSeconds": 600});
    server.inject(Route::create(), Times::once(), Fault::Squat { spec });

    node.run()
        .failed(10)
        .saying("this machine did not create it");
    let key = node.json("pending.json")["key"]
        .as_str()
        .unwrap()
        .to_owned();
    let run = node.command(&["credential"]).succeeded();

    assert_eq!(run.pair().1, key);
    assert_eq!(server.creates(), 2);
    assert_ne!(server.created_bodies()[0], server.created_bodies()[1]);
}

#[test]
fn an_undecided_request_exits_with_11_and_the_next_run_waits_for_it() {
    let (server, mut node) = node(Signer::Off);
    node.set("timeLimit", "5");

    node.run().failed(11).saying("still pending");
    let name = node.json("pending.json")["request"]["name"].clone();
    server.approve_and_issue(name.as_str().unwrap());
    node.run().succeeded();

    assert_eq!(server.creates(), 1);
    assert!(server.gets() + server.watches() <= 3);
}

#[test]
fn a_denial_exits_with_12_and_then_with_17_and_the_first_failure() {
    let (server, node) = node(Signer::deny("AnotherMachine", "not you"));

    node.run()
        .failed(12)
        .saying("AnotherMachine")
        .saying("not you");
    let held = node
        .run()
        .failed(17)
        .saying("AnotherMachine")
        .saying("not you");
    held.within(Duration::from_secs(1));

    assert_eq!(server.creates(), 1);
    let failure = &node.status()["lastFailure"];
    assert_eq!(
        (&failure["exitCode"], &failure["count"]),
        (&json!(12), &json!(1))
    );
}

#[test]
fn manual_runs_reboots_and_new_settings_skip_the_backoff() {
    let (server, mut node) = node(Signer::deny("AnotherMachine", "not you"));
    node.run().failed(12);

    node.command(&["credential"]).failed(12);
    node.command(&["renew"]).failed(12);
    node.change("failure.json", |failure| {
        failure["bootId"] = "before".into()
    });
    node.run().failed(12);
    node.run().failed(17);
    node.set("expirationSeconds", "3600");
    node.run().failed(12);

    assert_eq!(server.creates(), 5);
}

#[test]
fn a_failed_request_exits_with_13_and_the_next_run_keeps_the_key() {
    let (server, node) = node(Signer::fail("EvidenceExpired", "too old"));

    node.run()
        .failed(13)
        .saying("EvidenceExpired")
        .saying("too old");
    let key = node.json("pending.json")["key"]
        .as_str()
        .unwrap()
        .to_owned();
    server.set_signer(Signer::issue());

    let run = node.command(&["credential"]).succeeded();
    assert_eq!(run.pair().1, key);
    assert_eq!(server.creates(), 2);
}

#[test]
fn an_unexpected_certificate_exits_with_13_and_is_not_stored() {
    for (flaw, words) in [
        (Flaw::AnotherKey, "a different key"),
        (Flaw::AnotherName, "system:node:another"),
        (Flaw::AnotherUsage, "client auth"),
        (Flaw::Expired, "expired"),
        (Flaw::NotYetValid, "not valid before"),
        (Flaw::Garbage, "it is not an X.509 certificate in DER"),
        (Flaw::NoPem, "CERTIFICATE"),
    ] {
        let (_server, node) = node(Signer::flawed(flaw));

        node.run().failed(13).saying(words);

        assert!(!node.file("kubelet-client.pem").exists(), "{flaw:?}");
    }
}

#[test]
fn a_certificate_that_is_not_valid_yet_is_fetched_again() {
    let (server, node) = node(Signer::flawed(Flaw::NotYetValid));

    node.run().failed(13).saying("not valid before");
    // The kubelet's next run is during the back-off, and does not send requests.
    node.change("failure.json", |failure| {
        let in_an_hour = failure["at"].as_u64().unwrap() + 3600;
        failure["notBefore"] = in_an_hour.into();
    });
    let asked = server.connections();
    node.run().failed(17).saying("not valid before");
    assert_eq!(server.connections(), asked);

    node.command(&["credential"])
        .failed(13)
        .saying("not valid before");

    assert!(server.connections() > asked);
    assert_eq!(server.creates(), 1);
}

#[test]
fn a_node_name_that_does_not_match_the_store_exits_with_15() {
    let (server, mut node) = node(Signer::issue());
    node.run().succeeded();
    node.set("nodeName", "n2");

    node.run()
        .failed(15)
        .saying("n1")
        .saying("n2")
        .saying("reset");
    node.command(&["reset", "--yes"]).succeeded();
    node.run().succeeded();

    assert_eq!(server.creates(), 2);
}

#[test]
fn an_unsupported_evidence_version_exits_with_16() {
    let (server, node) = node(Signer::fail("UnsupportedAttestationVersion", "v2 only"));

    node.run().failed(16).saying("v1").saying("v2 only");

    assert_eq!(server.creates(), 1);
}

#[test]
fn a_deleted_request_exits_with_13() {
    let (server, node) = node(Signer::Off);
    let run = node.start(&[]);
    server.wait_for_request(Verb::Watch, 1, SOON);

    let name = server.csrs()[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    server.delete_csr(&name);

    run.finish().failed(13).saying("deleted");
}

#[test]
fn a_lost_response_causes_no_second_request() {
    let (server, node) = node(Signer::issue());
    server.inject(Route::create(), Times::once(), Fault::LoseAnswer);

    node.run().succeeded();

    // The same run recreates the request, gets a conflict, and finds its own request.
    assert_eq!((server.creates(), server.csrs().len()), (2, 1));
}

#[test]
fn a_connection_reset_an_overload_or_a_restart_does_not_end_a_run() {
    let gateway = |code| Fault::Answer {
        code,
        content_type: "text/html".to_owned(),
        body: b"<html>".to_vec(),
    };
    let leader_changed = Fault::Status {
        code: 500,
        retry_after: Some(1),
    };
    for (times, fault) in [
        (1, Fault::Cut),
        (3, gateway(502)),
        (1, gateway(504)),
        (1, leader_changed),
        (4, Fault::too_many_requests(1)),
    ] {
        let (server, node) = node(Signer::issue());
        server.inject(Route::create(), Times::first(times), fault.clone());

        node.run().succeeded();

        assert_eq!(server.creates(), times + 1, "{fault:?}");
    }
    let (server, node) = node(Signer::issue());
    server.inject_connection(Times::first(2), ConnectionFault::Close);

    node.run().succeeded();
}

#[test]
fn a_refusal_by_the_api_server_is_not_retried() {
    for (code, exit) in [(401, 9), (403, 10), (400, 10), (422, 10)] {
        let (server, node) = node(Signer::issue());
        server.inject(Route::create(), Times::always(), Fault::status(code));

        node.run().failed(exit);

        assert_eq!(server.creates(), 1, "{code}");
    }
}

#[test]
fn a_request_that_is_ten_minutes_old_is_dropped_and_its_key_kept() {
    let (server, mut node) = node(Signer::Off);
    node.set("timeLimit", "5");
    node.run().failed(11);
    node.change("pending.json", |pending| {
        let created = pending["request"]["created"].as_u64().unwrap();
        pending["request"]["created"] = (created - 600).into();
    });
    let key = node.json("pending.json")["key"]
        .as_str()
        .unwrap()
        .to_owned();
    server.set_signer(Signer::issue());

    let run = node.run().succeeded();

    assert_eq!(run.pair().1, key);
    assert_eq!(server.csrs().len(), 2);
}

#[test]
fn an_undecided_request_is_kept_while_the_certificate_is_valid() {
    // 3 of the 4 hours have passed, so the renewal is due.
    const HOUR: Duration = Duration::from_secs(3600);
    let (server, node) = node(Signer::Issue(Issuance {
        lifetime: Some(HOUR),
        backdate: 3 * HOUR,
        ..Issuance::default()
    }));
    node.run().succeeded();
    server.set_signer(Signer::Off);
    node.run().succeeded();
    let ages = |seconds: u64| {
        node.change("pending.json", |pending| {
            let created = pending["request"]["created"].as_u64().unwrap();
            pending["request"]["created"] = (created - seconds).into();
        });
    };

    ages(600);
    node.run().succeeded();
    assert_eq!(server.csrs().len(), 2);
    ages(3600);
    node.run().succeeded();
    assert_eq!(server.csrs().len(), 3);
}

#[test]
fn a_garbage_collected_request_is_recreated() {
    let (server, mut node) = node(Signer::Off);
    node.set("timeLimit", "5");
    node.run().failed(11);
    let name = node.json("pending.json")["request"]["name"].clone();
    server.delete_csr(name.as_str().unwrap());
    server.set_signer(Signer::issue());

    node.run().succeeded();

    assert_eq!(server.csrs()[0]["metadata"]["name"], name);
}

#[test]
fn a_held_lock_exits_with_4_and_shows_the_last_failure_of_the_holder() {
    let (server, mut node) = node(Signer::deny("AnotherMachine", "not you"));
    node.run().failed(12);
    let gate = server.hold(Route::create(), Step::Received);
    let mut holder = node.start(&["renew"]);
    gate.wait(1, SOON);
    node.set("timeLimit", "1");

    node.command(&["credential"])
        .failed(4)
        .saying("AnotherMachine");

    holder.kill();
}

#[test]
fn json_log_lines_contain_code_and_remedy() {
    let (server, node) = node(Signer::issue());
    server.revoke_token("abcdef");

    let run = node.run_with(&["--log-format", "json"]).failed(9);

    let line: serde_json::Value = serde_json::from_str(run.stderr.trim()).unwrap();
    assert_eq!(
        (&line["level"], &line["code"]),
        (&json!("error"), &json!(9))
    );
    assert!(line["remedy"].as_str().unwrap().contains("token"));
}

#[test]
fn failures_do_not_show_the_token_or_a_key() {
    let server = ApiServer::start();
    let node = Node::new(INSECURE, &server);
    server.revoke_token("abcdef");

    let run = node.run_with(&["-v"]).failed(9);

    assert!(!run.stderr.contains("0123456789abcdef"));
    assert!(!run.stderr.contains("PRIVATE"));
}
