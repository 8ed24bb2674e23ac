//! Tests that the plugin ends within its time limit, regardless of the API server.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Fault, Issuance, Route, Signer, Times,
};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_tests::node::{NULL, Node, Run, UNDER_TEST};

/// The time limit for a join on these nodes. With a shorter limit, a busy machine would not have enough time to report
/// the reason for the wait.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The time limit for a run on a node with a credential.
const LIMIT: Duration = Duration::from_secs(5);

/// The time limit for a run without a credential, and for a run with a slow device.
const IN_FULL: Duration = Duration::from_secs(25);

/// The time limit for a run that does not wait.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Settings without any values.
const SETTINGS: &str = "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
                        kind: KubeletAuthenticatorConfiguration\n";

const EVERY_SECOND: Duration = Duration::from_secs(1);

/// Faults in responses to requests, each with the exit code on a node without a credential.
fn faults() -> Vec<(Route, Fault, i32)> {
    let every = EVERY_SECOND;
    let to = "https://127.0.0.1:1".to_owned();
    let mut faults = Vec::new();
    // If the fault occurs after a watch has started to respond, the request is pending.
    for (fault, at_watch) in [
        (Fault::Hang, 8),
        (Fault::HangAfterStore, 8),
        (Fault::TrickleHead { every }, 8),
        (Fault::TrickleBody { every }, 11),
        (Fault::HugeBody { size: 100_000_000 }, 8),
        (Fault::Redirect { to }, 8),
        (Fault::status(503), 8),
        (Fault::too_many_requests(3600), 8),
        (Fault::LoseAnswer, 8),
        (Fault::not_json(), 11),
    ] {
        faults.push((Route::create(), fault.clone(), 8));
        faults.push((Route::watch(), fault, at_watch));
    }
    faults.push((Route::watch(), Fault::WatchBookmarkOnly, 11));
    faults.push((Route::watch(), Fault::WatchGarbage, 11));
    faults.push((Route::watch(), Fault::WatchGone, 11));
    faults
}

const CONNECTIONS: [ConnectionFault; 3] = [
    ConnectionFault::SilentAtTcp,
    ConnectionFault::SilentAtTls,
    ConnectionFault::Close,
];

/// Injects `fault` into every request to the server.
fn inject(server: &ApiServer, route: &Route, fault: &Fault) {
    server.set_signer(Signer::Off);
    server.inject(route.clone(), Times::always(), fault.clone());
}

#[test]
fn without_a_credential_a_hanging_request_times_out() {
    let nodes: Vec<_> = faults()
        .into_iter()
        .map(|(route, fault, code)| {
            let server = ApiServer::start();
            inject(&server, &route, &fault);
            let mut node = Node::new(NULL, &server);
            node.set("timeLimit", TIMEOUT.as_secs().to_string());
            (route, fault, code, server, node)
        })
        .collect();
    // The runs are parallel, because most of them use their full time limit.
    let runs: Vec<_> = nodes
        .iter()
        .map(|(route, fault, code, _, node)| (route, fault, code, node.start(&[])))
        .collect();
    for (route, fault, code, run) in runs {
        let run = run.finish().within(TIMEOUT);
        assert_eq!(run.code, Some(*code), "{route:?}, {fault:?}: {run:#?}");
        assert_eq!(run.stdout, "", "{route:?}, {fault:?}");
    }
}

#[test]
fn without_a_credential_a_hanging_connection_times_out() {
    let nodes = CONNECTIONS.map(|fault| {
        let server = ApiServer::start();
        server.inject_connection(Times::always(), fault);
        let mut node = Node::new(NULL, &server);
        node.set("timeLimit", TIMEOUT.as_secs().to_string());
        (server, node)
    });
    // The runs are parallel, because each of them uses its full time limit.
    let runs = nodes.each_ref().map(|(_, node)| node.start(&[]));
    for run in runs {
        run.finish().failed(8).within(TIMEOUT);
    }
}

/// A node with a credential that is due for renewal.
fn node_with_credential() -> (ApiServer, Node, (String, String)) {
    let server = ApiServer::start();
    server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(Duration::from_secs(3600)),
        backdate: Duration::from_secs(3 * 3600),
        ..Issuance::default()
    }));
    let node = Node::new(NULL, &server);
    let pair = node.run().succeeded().pair();
    (server, node, pair)
}

#[test]
fn a_stored_credential_is_printed_in_5_seconds_despite_hangs() {
    let joined: Vec<_> = faults()
        .into_iter()
        .map(|fault| (fault, node_with_credential()))
        .collect();
    // The runs are parallel, because most of them use the full 5 seconds.
    let started: Vec<_> = joined
        .iter()
        .map(|((route, fault, _), (server, node, pair))| {
            inject(server, route, fault);
            (fault, pair, node.start(&[]))
        })
        .collect();
    for (fault, pair, run) in started {
        let run = run.finish().succeeded().within(LIMIT);

        assert_eq!(run.pair(), *pair, "{fault:?}");
        assert!(
            run.expires_in(now()) <= Duration::from_secs(30),
            "{fault:?}"
        );
    }
}

#[test]
fn a_stored_credential_is_printed_in_5_seconds_despite_network_faults() {
    for fault in CONNECTIONS {
        let (server, node, pair) = node_with_credential();
        server.inject_connection(Times::always(), fault);

        let run = node.run().succeeded().within(LIMIT);

        assert_eq!(run.pair(), pair, "{fault:?}");
    }
}

fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

#[test]
fn a_file_that_hangs_when_opened_does_not_exceed_the_timeout() {
    let server = ApiServer::start();
    let mut node = Node::new(NULL, &server);
    node.set("timeLimit", TIMEOUT.as_secs().to_string());
    let bootstrap = node.scratch().join("bootstrap.kubeconfig");
    fs::remove_file(&bootstrap).unwrap();
    make_pipe(&bootstrap);

    let run = node.run().failed(4).saying("file system");

    run.within(TIMEOUT);
}

#[test]
fn a_named_pipe_as_settings_file_is_refused_immediately() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let mut node = Node::new(NULL, &server);
    let pipe = node.scratch().join("pipe.yaml");
    make_pipe(&pipe);
    let refused = |run: Run, path: &Path| {
        let words = format!("{} is not a regular file", path.display());
        run.failed(3).saying(&words).within(AT_ONCE);
    };

    node.set("config", &pipe);
    refused(node.run(), &pipe);
    node.unset("config");
    refused(node.run_with(&["--config", pipe.to_str().unwrap()]), &pipe);

    let config = node.scratch().write("config.yaml", SETTINGS);
    node.set("config", &config);
    node.run().succeeded();
    let drop_in = node.scratch().join("config.d/10.yaml");
    fs::create_dir(drop_in.parent().unwrap()).unwrap();
    make_pipe(&drop_in);
    // The stored certificate is valid, so the run prints it.
    let words = format!("{} is not a regular file", drop_in.display());
    let run = node.run().succeeded().saying(&words);
    run.within(AT_ONCE);
}

/// Issues the certificate of the node's pending request.
fn issue_pending(server: &ApiServer, node: &Node) {
    let pending = node.json("pending.json");
    server.approve_and_issue(pending["request"]["name"].as_str().unwrap());
}

/// Ends the back-off of the last failure.
fn end_backoff(node: &Node) {
    node.change("failure.json", |failure| failure["notBefore"] = 0.into());
}

/// Simulates that one hour has passed since the last run with the full time limit.
fn pass_an_hour(node: &Node) {
    node.change("failure.json", |failure| {
        let an_hour_ago = failure["inFull"].as_u64().unwrap() - 3600;
        failure["inFull"] = an_hour_ago.into();
        failure["notBefore"] = 0.into();
    });
}

/// A node with a credential that has less than a fifth of its lifetime left.
fn node_near_expiry() -> (ApiServer, Node, (String, String)) {
    let server = ApiServer::start();
    server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(Duration::from_secs(3600)),
        backdate: Duration::from_secs(9 * 3600),
        ..Issuance::default()
    }));
    let node = Node::new(UNDER_TEST, &server);
    let pair = node.run().succeeded().pair();
    (server, node, pair)
}

#[test]
fn near_expiry_a_slow_device_gets_25_seconds_once_an_hour() {
    let (server, mut node, old) = node_near_expiry();
    node.set_env("SLOW_FOR", "600");
    let first = node.run().succeeded().within(LIMIT);
    end_backoff(&node);
    let in_full = node.run().succeeded();
    end_backoff(&node);
    let briefly = node.run().succeeded().within(LIMIT);
    pass_an_hour(&node);
    // The controller is unavailable. Even if a run can take longer, it waits for the controller for at most five
    // seconds.
    server.set_signer(Signer::Off);
    node.set_env("SLOW_FOR", "6");
    let undecided = node.run().succeeded();
    issue_pending(&server, &node);
    let renewed = node.run().succeeded().within(LIMIT);

    for run in [&first, &in_full, &briefly, &undecided] {
        assert_eq!(run.pair(), old, "{run:#?}");
    }
    assert!(in_full.took > Duration::from_secs(5), "{in_full:#?}");
    assert!(undecided.took > Duration::from_secs(10), "{undecided:#?}");
    // The grace period for a Node is 50 seconds.
    in_full.within(IN_FULL);
    // The device takes 6 seconds, and the run then waits for the controller for 5 seconds.
    undecided.within(Duration::from_secs(11));
    assert_ne!(renewed.pair(), old);
    assert_eq!(server.creates(), 2);
}

#[test]
fn near_expiry_only_a_device_gets_more_than_five_seconds() {
    let (server, node, old) = node_near_expiry();
    server.set_signer(Signer::Off);
    for _ in 0..2 {
        let run = node.run().succeeded().within(LIMIT);
        assert_eq!(run.pair(), old);
        assert_eq!(node.json("failure.json")["inFull"], 0);
    }

    let mut hangs = node_of_same_store(&node, &server);
    hangs.set_env("HANG_FOR", "600");
    node.change("pending.json", |pending| {
        pending["request"] = serde_json::Value::Null;
    });
    for _ in 0..2 {
        let run = hangs.run().succeeded().within(LIMIT);
        assert_eq!(run.pair(), old);
        assert_eq!(node.json("failure.json")["inFull"], 0);
        end_backoff(&node);
    }
}

/// The same node with a different plugin configuration.
fn node_of_same_store(node: &Node, server: &ApiServer) -> Node {
    let mut same = Node::new(UNDER_TEST, server);
    same.set("stateDirectory", node.state());
    same
}

#[test]
fn a_first_credential_is_awaited_for_25_seconds() {
    let server = ApiServer::start();
    server.set_signer(Signer::Off);
    let node = Node::new(NULL, &server);

    let run = node.run().failed(11);

    run.within(IN_FULL);
    issue_pending(&server, &node);
    node.run().succeeded();
    assert_eq!(server.creates(), 1);
}

#[test]
fn missing_evidence_is_stored_as_a_failure() {
    let server = ApiServer::start();
    let mut node = Node::new(UNDER_TEST, &server);
    node.set("timeLimit", "3");
    node.set_env("HANG_FOR", "600");

    node.run().failed(5).saying("in time");
    let next = node.run().failed(17).saying("in time");

    next.within(AT_ONCE);
    assert_eq!(node.json("failure.json")["code"], 5);
}
