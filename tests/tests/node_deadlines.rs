//! The plugin ends in time, whatever the API server does.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Fault, Issuance, Route, Signer, Times,
};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_tests::node::{NULL, Node, Run, UNDER_TEST};

/// The time limit of a join for these nodes; a busy machine would leave too little of a shorter one to report the
/// reason for the wait.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The time limit of a run of a node with a credential.
const LIMIT: Duration = Duration::from_secs(5);

/// The time limit of a run that waits for nothing.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Settings without any values.
const SETTINGS: &str = "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
                        kind: KubeletAuthenticatorConfiguration\n";

const EVERY_SECOND: Duration = Duration::from_secs(1);

/// Faults of requests, with the exit code of a node without a credential.
fn faults() -> Vec<(Route, Fault, i32)> {
    let every = EVERY_SECOND;
    let to = "https://127.0.0.1:1".to_owned();
    let mut faults = Vec::new();
    // A watch that has started to answer leaves the request pending.
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

/// Injects `fault` into every request of the server.
fn inject(server: &ApiServer, route: &Route, fault: &Fault) {
    server.set_signer(Signer::Off);
    server.inject(route.clone(), Times::always(), fault.clone());
}

#[test]
fn without_a_credential_no_request_holds_it_longer_than_its_timeout() {
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
    // In parallel: most of them take all their time.
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
fn without_a_credential_no_connection_holds_it_longer_than_its_timeout() {
    let nodes = CONNECTIONS.map(|fault| {
        let server = ApiServer::start();
        server.inject_connection(Times::always(), fault);
        let mut node = Node::new(NULL, &server);
        node.set("timeLimit", TIMEOUT.as_secs().to_string());
        (server, node)
    });
    // In parallel: each takes all its time.
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
fn with_a_credential_it_is_printed_within_five_seconds_whatever_hangs() {
    let joined: Vec<_> = faults()
        .into_iter()
        .map(|fault| (fault, node_with_credential()))
        .collect();
    // In parallel: most of them take their five seconds.
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
fn with_a_credential_it_is_printed_within_five_seconds_whatever_the_connection_does() {
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
fn a_file_that_never_opens_does_not_hold_it_longer_than_its_timeout() {
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
fn a_pipe_in_the_place_of_settings_is_refused_at_once() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let mut node = Node::new(NULL, &server);
    let pipe = node.scratch().join("pipe.yaml");
    make_pipe(&pipe);
    let refused = |run: Run, path: &Path| {
        let words = format!("{} is no regular file", path.display());
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
    // The stored certificate is valid, and so the run ends with it.
    let words = format!("{} is no regular file", drop_in.display());
    let run = node.run().succeeded().saying(&words);
    run.within(AT_ONCE);
}

#[test]
fn a_slow_attestation_has_25_seconds_once_an_hour_near_expiry() {
    let server = ApiServer::start();
    server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(Duration::from_secs(3600)),
        backdate: Duration::from_secs(9 * 3600),
        ..Issuance::default()
    }));
    let mut node = Node::new(UNDER_TEST, &server);
    let old = node.run().succeeded().pair();
    let mut hangs = node_of_same_store(&node, &server);
    hangs.set_env("HANG_FOR", "600");
    let in_vain = hangs.run().succeeded();
    hangs.set("timeLimit", "30");
    let briefly = hangs.run().succeeded();
    node.change("failure.json", |failure| {
        let an_hour_ago = failure["inFull"].as_u64().unwrap() - 3600;
        failure["inFull"] = an_hour_ago.into();
        failure["notBefore"] = 0.into();
    });
    server.set_signer(Signer::issue());
    node.set("timeLimit", "30");
    node.set_env("HANG_FOR", "6");
    let renewed = node.run().succeeded();

    assert_eq!((in_vain.pair(), briefly.pair()), (old.clone(), old.clone()));
    assert!(in_vain.took > Duration::from_secs(5), "{in_vain:#?}");
    // The grace period of a Node is 50 seconds.
    assert!(in_vain.took < Duration::from_secs(30), "{in_vain:#?}");
    briefly.within(LIMIT);
    assert_ne!(renewed.pair(), old);
}

/// The same node, with a plugin of another configuration.
fn node_of_same_store(node: &Node, server: &ApiServer) -> Node {
    let mut same = Node::new(UNDER_TEST, server);
    same.set("stateDirectory", node.state());
    same
}

#[test]
fn evidence_that_never_comes_is_remembered() {
    let server = ApiServer::start();
    let mut node = Node::new(UNDER_TEST, &server);
    node.set("timeLimit", "3");
    node.set_env("HANG_FOR", "600");

    node.run().failed(5).saying("not there in time");
    let next = node.run().failed(17).saying("not there in time");

    next.within(AT_ONCE);
    assert_eq!(node.json("failure.json")["code"], 5);
}
