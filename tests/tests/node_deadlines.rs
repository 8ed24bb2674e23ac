//! Whatever the API server does, the plugin ends in its time.

use std::process::Command;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Fault, Issuance, Route, Signer, Times,
};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_tests::node::{NULL, Node};

/// The time that the nodes here are given to join.
const TIMEOUT: &str = "2";

/// What a machine under load may take to start a process, beyond what the process itself takes.
const STARTING: Duration = Duration::from_millis(1500);

const EVERY_SECOND: Duration = Duration::from_secs(1);

fn faults() -> Vec<(Route, Fault)> {
    let every = EVERY_SECOND;
    let to = "https://127.0.0.1:1".to_owned();
    let mut faults = Vec::new();
    for fault in [
        Fault::Hang,
        Fault::HangAfterStore,
        Fault::TrickleHead { every },
        Fault::TrickleBody { every },
        Fault::HugeBody { size: 100_000_000 },
        Fault::Redirect { to },
        Fault::status(503),
        Fault::too_many_requests(3600),
        Fault::LoseAnswer,
        Fault::not_json(),
    ] {
        faults.push((Route::create(), fault.clone()));
        faults.push((Route::watch(), fault));
    }
    faults.push((Route::watch(), Fault::WatchBookmarkOnly));
    faults.push((Route::watch(), Fault::WatchGarbage));
    faults.push((Route::watch(), Fault::WatchGone));
    faults
}

const CONNECTIONS: [ConnectionFault; 3] = [
    ConnectionFault::SilentAtTcp,
    ConnectionFault::SilentAtTls,
    ConnectionFault::Close,
];

/// A server on which `fault` happens to every request.
fn inject(server: &ApiServer, route: &Route, fault: &Fault) {
    server.set_signer(Signer::Off);
    server.inject(route.clone(), Times::always(), fault.clone());
}

#[test]
fn without_a_credential_no_request_holds_it_longer_than_its_timeout() {
    let nodes: Vec<_> = faults()
        .into_iter()
        .map(|(route, fault)| {
            let server = ApiServer::start();
            inject(&server, &route, &fault);
            let mut node = Node::new(NULL, &server);
            node.set("TIMEOUT_SECONDS", TIMEOUT);
            (fault, server, node)
        })
        .collect();
    // All at once: most of them take all their time.
    let runs: Vec<_> = nodes
        .iter()
        .map(|(fault, _, node)| (fault, node.start(&[])))
        .collect();
    for (fault, run) in runs {
        let run = run.finish();
        assert!(matches!(run.code, Some(8 | 11)), "{fault:?}: {run:#?}");
        assert_eq!(run.stdout, "", "{fault:?}");
        assert!(
            run.took < Duration::from_secs(2) + STARTING,
            "{fault:?}: {run:#?}"
        );
    }
}

#[test]
fn without_a_credential_no_connection_holds_it_longer_than_its_timeout() {
    for fault in CONNECTIONS {
        let server = ApiServer::start();
        server.inject_connection(Times::always(), fault);
        let mut node = Node::new(NULL, &server);
        node.set("TIMEOUT_SECONDS", TIMEOUT);

        let run = node.run().failed(8);

        assert!(
            run.took < Duration::from_secs(2) + STARTING,
            "{fault:?}: {run:#?}"
        );
    }
}

/// A node that has a credential, whose renewal is due.
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
    // All at once: most of them take their five seconds.
    let started: Vec<_> = joined
        .iter()
        .map(|((route, fault), (server, node, pair))| {
            inject(server, route, fault);
            (fault, pair, node.start(&[]))
        })
        .collect();
    for (fault, pair, run) in started {
        let run = run.finish().succeeded();

        assert_eq!(run.pair(), *pair, "{fault:?}");
        assert!(
            run.took < Duration::from_secs(5) + STARTING,
            "{fault:?}: {run:#?}"
        );
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

        let run = node.run().succeeded();

        assert_eq!(run.pair(), pair, "{fault:?}");
        assert!(run.took < Duration::from_secs(5), "{fault:?}: {run:#?}");
    }
}

#[test]
fn a_file_that_never_opens_does_not_hold_it_longer_than_its_timeout() {
    let server = ApiServer::start();
    let mut node = Node::new(NULL, &server);
    node.set("TIMEOUT_SECONDS", TIMEOUT);
    let bootstrap = node.scratch().join("bootstrap.kubeconfig");
    std::fs::remove_file(&bootstrap).unwrap();
    let made = Command::new("mkfifo").arg(&bootstrap).status().unwrap();
    assert!(made.success());

    let run = node.run().failed(4).saying("file system");

    assert!(run.took < Duration::from_secs(2) + STARTING, "{run:#?}");
}

#[test]
fn a_redirect_is_not_followed() {
    let (server, elsewhere) = (ApiServer::start(), ApiServer::start());
    let to = elsewhere.url();
    server.inject(Route::create(), Times::always(), Fault::Redirect { to });

    Node::new(NULL, &server).run().failed(8).saying("302");

    assert_eq!(elsewhere.connections(), 0);
}
