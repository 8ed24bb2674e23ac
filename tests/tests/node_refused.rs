//! Tests of a node whose valid certificate is refused, because it was revoked, belongs to an earlier generation, or has
//! no node identity. The node sends one request with its bootstrap credential.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Fault, Issuance, Request, Route, Signer, Times, Verb,
};
use kubelet_authenticator_test_support::clock::{now, since_epoch};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::node::{
    BOOTSTRAP_USER, INSECURE, NODE, NULL, Node, PATIENCE, Run, UNDER_TEST, requesters,
};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);

/// A node whose certificate is due for renewal, and the certificate and key that the plugin printed.
fn due() -> (ApiServer, Node, (String, String)) {
    let server = ApiServer::start();
    server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(HOUR),
        backdate: 3 * HOUR,
        ..Issuance::default()
    }));
    let node = Node::new(NULL, &server);
    let pair = node.run().succeeded().pair();
    server.set_signer(Signer::issue());
    (server, node, pair)
}

/// A time that exceeds the minimum interval between two checks of a certificate.
const TWO_MINUTES: Duration = Duration::from_secs(120);

/// A node with a fresh certificate, which the plugin last checked 2 minutes ago.
fn fresh(plugin: &str) -> (ApiServer, Node, (String, String)) {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = Node::new(plugin, &server);
    let pair = node.run().succeeded().pair();
    two_minutes_pass(&node);
    (server, node, pair)
}

/// Moves the time of the last check 2 minutes into the past.
fn two_minutes_pass(node: &Node) {
    let link = node.file("last-check");
    let before = since_epoch(now() - TWO_MINUTES).as_secs();
    // After a failed renewal, the link does not exist.
    drop(fs::remove_file(&link));
    symlink(before.to_string(), &link).unwrap();
}

/// Runs the plugin as if 2 minutes had passed, until its output contains this text. On a machine under load, the API
/// server's first response can be too late.
#[track_caller]
fn run_until_it_says(node: &Node, text: &str) -> Run {
    let said = poll(PATIENCE, || {
        two_minutes_pass(node);
        let run = node.run().succeeded();
        run.stderr.contains(text).then_some(run)
    });
    said.unwrap_or_else(|| panic!("never {text:?}: {:#?}", node.run()))
}

fn lease() -> Route {
    Route::new(Verb::Patch, "leases")
}

/// The response to a revoked certificate, or to an unknown certificate.
fn refused(code: u16) -> Fault {
    let message = format!("the credential 1 of {} is revoked", node_user());
    let body = json!({"kind": "Status", "code": code, "message": message}).to_string();
    Fault::Answer {
        code,
        content_type: "application/json".into(),
        body: body.into_bytes(),
    }
}

/// The answer to a request, as if a controller had immediately denied it.
fn denied(reason: &str) -> Fault {
    let condition = json!({
        "type": "Denied", "status": "True", "reason": reason, "message": "the record says so",
    });
    let status = json!({"certificate": null, "conditions": [condition]});
    Fault::Merge {
        patch: json!({"status": status}),
    }
}

/// The API calls that check a certificate.
fn tries(server: &ApiServer) -> Vec<Request> {
    let mut tries = server.requests();
    tries.retain(|request| request.verb == Verb::Patch);
    tries
}

fn creates(server: &ApiServer) -> Vec<Request> {
    let mut requests = server.requests();
    requests.retain(|request| request.verb == Verb::Create);
    requests
}

/// The key in each certificate signing request since the join.
fn keys(server: &ApiServer) -> Vec<Vec<u8>> {
    use base64::Engine as _;
    use kubelet_attestation::csr::envelope::Envelope;
    use kubelet_attestation::csr::parse::CertificationRequest;
    let key = |request: Request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let bytes = body["spec"]["request"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(bytes);
        let envelope = Envelope::parse(&bytes.unwrap()).unwrap();
        let request = CertificationRequest::from_der(&envelope.csr).unwrap();
        request.spki_der().to_vec()
    };
    creates(server).into_iter().skip(1).map(key).collect()
}

fn node_user() -> String {
    format!("system:node:{NODE}")
}

#[test]
fn a_revoked_node_requests_with_its_bootstrap_credential() {
    // The plugin treats a certificate that the API server no longer authenticates as a revoked certificate.
    for code in [403, 401] {
        let (server, node, old) = due();
        server.inject(Route::create(), Times::once(), Fault::status(code));

        let run = node
            .run()
            .succeeded()
            .saying("the API server refuses the certificate");

        assert_ne!(run.pair().1, old.1, "{code}");
        assert_eq!(requesters(&server), [BOOTSTRAP_USER]);
        let bodies = server.created_bodies();
        assert_eq!(bodies.len(), 3);
        assert_eq!(bodies.get(1), bodies.get(2), "the same request");
    }
}

#[test]
fn a_superseded_certificate_is_replaced_with_the_bootstrap_credential() {
    for reason in ["FormerCertificate", "RecordMissing", "RequesterUidMissing"] {
        let (server, node, old) = due();
        server.inject(Route::create(), Times::once(), denied(reason));

        let run = node.run().succeeded().saying(reason);

        assert_ne!(run.pair().1, old.1, "{reason}");
        assert_eq!(
            requesters(&server),
            [node_user(), BOOTSTRAP_USER.to_owned()]
        );
        let keys = keys(&server);
        assert_eq!(keys.first(), keys.last(), "{reason}");
        let bodies = server.created_bodies();
        assert_ne!(bodies.get(1), bodies.get(2), "another request");
    }
}

#[test]
fn other_denials_do_not_select_the_bootstrap_credential() {
    let (server, node, old) = due();
    server.inject(Route::create(), Times::once(), denied("AnotherMachine"));

    let run = node.run().succeeded().saying("AnotherMachine");

    assert_eq!(run.pair(), old);
    assert_eq!(requesters(&server), [node_user()]);
}

#[test]
fn the_bootstrap_credential_is_tried_once() {
    for faults in [
        vec![Fault::status(403), Fault::status(403)],
        vec![Fault::status(401), Fault::status(403)],
        vec![Fault::status(403), denied("FormerCertificate")],
        vec![denied("FormerCertificate"), Fault::status(403)],
        vec![denied("FormerCertificate"), denied("FormerCertificate")],
    ] {
        let (server, node, old) = due();
        for fault in faults {
            server.inject(Route::create(), Times::once(), fault);
        }

        let run = node.run().succeeded().saying("cannot renew the credential");

        assert_eq!(run.pair(), old);
        assert_eq!(server.creates(), 3);
    }
}

#[test]
fn a_refused_certificate_without_bootstrap_credential_gets_a_remedy() {
    for fault in [Fault::status(403), denied("FormerCertificate")] {
        let (server, node, old) = due();
        fs::remove_file(node.scratch().join("bootstrap.kubeconfig")).unwrap();
        server.inject(Route::create(), Times::once(), fault);

        let run = node.run().succeeded().saying("identities reset");

        assert_eq!(run.pair(), old);
        assert!(!run.stderr.contains("node-bootstrapper"), "{run:#?}");
        assert_eq!(server.creates(), 2);
    }
}

#[test]
fn a_refused_bootstrap_credential_names_the_missing_role() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);
    server.inject(Route::create(), Times::once(), Fault::status(403));

    node.run().failed(10).saying("system:node-bootstrapper");
}

#[test]
fn the_check_of_a_fresh_certificate_runs_once_in_two_minutes() {
    for plugin in [NULL, INSECURE] {
        let (server, node, pair) = fresh(plugin);

        let run = node.run().succeeded();
        let again = node.run().succeeded();

        assert_eq!((run.pair(), again.pair()), (pair.clone(), pair));
        assert_eq!(run.stderr, "");
        assert!(run.expires_in(now()) > HOUR - Duration::from_secs(60));
        let tries = tries(&server);
        assert_eq!(tries.len(), 1);
        assert_eq!(tries[0].user, Some(node_user()));
        assert_eq!(
            (tries[0].name.as_str(), tries[0].query.as_str()),
            (NODE, "dryRun=All&fieldManager=kubelet-authenticator")
        );
        assert_eq!(server.creates(), 1);
    }
}

/// The run also writes the boot ID to the store, for which it takes the lock.
#[test]
fn a_fresh_certificate_is_tried_in_the_first_run_after_a_reboot() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let mut node = Node::new(UNDER_TEST, &server);
    let root = node.scratch().join("machine");
    node.set_env("MACHINE_ROOT", &root);
    let boot = |id: &str| {
        let file = root.join("proc/sys/kernel/random/boot_id");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, id).unwrap();
    };
    boot("first");
    node.run().succeeded();
    boot("second");
    two_minutes_pass(&node);

    node.run().succeeded();

    assert_eq!(tries(&server).len(), 1);
    assert_eq!(node.json("origin.json")["bootId"], "second");
}

#[test]
fn a_fresh_certificate_that_is_refused_is_replaced_within_two_minutes() {
    for (plugin, code) in [(NULL, 403), (NULL, 401), (INSECURE, 403)] {
        let (server, node, old) = fresh(plugin);
        server.inject(lease(), Times::always(), refused(code));
        if plugin == NULL {
            server.inject(Route::create(), Times::once(), Fault::status(code));
        }

        let first = run_until_it_says(&node, &code.to_string());

        assert_ne!(first.pair().1, old.1);
        assert_eq!(requesters(&server).last().unwrap(), BOOTSTRAP_USER);
        assert_eq!(node.run().succeeded().pair(), first.pair());
    }
}

#[test]
fn a_manual_renewal_replaces_a_refused_certificate() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = Node::new(NULL, &server);
    let old = node.run().succeeded().pair();
    let nothing = node.command(&["renew"]).succeeded();
    server.inject(lease(), Times::always(), Fault::status(403));
    server.inject(Route::create(), Times::once(), Fault::status(403));

    let renewed = poll(PATIENCE, || {
        let run = node.command(&["renew"]).succeeded();
        run.stderr.contains("403").then_some(run)
    });
    let renewed = renewed.expect("the certificate is refused");

    assert!(
        nothing.stdout.contains("renewal is not due"),
        "{nothing:#?}"
    );
    assert!(renewed.stdout.contains("a new credential"), "{renewed:#?}");
    assert_ne!(node.run().succeeded().pair(), old);
}

#[test]
fn a_manual_renewal_reports_an_unknown_certificate_state() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = Node::new(NULL, &server);
    node.run().succeeded();
    let known = node.command(&["renew"]).succeeded();
    server.inject(lease(), Times::always(), Fault::status(500));

    let unknown = node.command(&["renew"]).succeeded();

    for run in [&known, &unknown] {
        assert!(run.stdout.contains("renewal is not due"), "{run:#?}");
    }
    let unknown_to_it = "cannot check whether the API server accepts the certificate";
    assert!(!known.stderr.contains(unknown_to_it), "{known:#?}");
    assert!(unknown.stderr.contains(unknown_to_it), "{unknown:#?}");
}

#[test]
fn a_refused_certificate_is_retried_in_each_run_until_replaced() {
    let (server, node, old) = fresh(NULL);
    server.set_signer(Signer::Off);
    server.inject(lease(), Times::always(), Fault::status(403));
    server.inject(Route::create(), Times::once(), Fault::status(403));

    let waiting = run_until_it_says(&node, "403");
    let name = node.json("pending.json")["request"]["name"].clone();
    server.approve_and_issue(name.as_str().unwrap());
    let replaced = poll(PATIENCE, || {
        Some(node.run().succeeded().pair()).filter(|pair| *pair != old)
    });

    assert_eq!(waiting.pair(), old);
    assert!(waiting.expires_in(now()) <= Duration::from_secs(30));
    assert!(replaced.is_some());
    assert_eq!(requesters(&server), [BOOTSTRAP_USER]);
}

#[test]
fn a_certificate_that_cannot_be_tried_is_printed_within_two_seconds() {
    for fault in [ConnectionFault::SilentAtTcp, ConnectionFault::Close] {
        let (server, node, pair) = fresh(NULL);
        server.inject_connection(Times::always(), fault);

        let run = node.run().succeeded().within(Duration::from_secs(2));

        assert_eq!((run.pair(), run.stderr.as_str()), (pair, ""));
        assert!(run.expires_in(now()) > HOUR - Duration::from_secs(60));
    }
    for code in [404, 429, 500] {
        let (server, node, pair) = fresh(NULL);
        server.inject(lease(), Times::always(), Fault::status(code));

        assert_eq!(node.run().succeeded().pair(), pair, "{code}");
        assert_eq!(server.creates(), 1);
    }
}
