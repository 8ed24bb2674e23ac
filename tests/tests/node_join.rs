//! Tests in which a node joins and renews: its requests, their number, and its output.

use std::fs;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::names::{Audience, Provider};
use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Issuance, Signer, Times, exec_info,
};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents, Subject};
use kubelet_authenticator_tests::node::{BOOTSTRAP_USER, INSECURE, NODE, NULL, Node, Run, is_pair};
use kubelet_authenticator_tests::program;
use serde_json::Value;

const HOUR: Duration = Duration::from_secs(3600);

fn issuing() -> ApiServer {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    server
}

/// Issues certificates that are immediately due for renewal: 3 of their 4 hours have passed.
fn old_certificates() -> Signer {
    Signer::Issue(Issuance {
        lifetime: Some(HOUR),
        backdate: 3 * HOUR,
        ..Issuance::default()
    })
}

fn users(server: &ApiServer) -> Vec<String> {
    let requests = server.requests().into_iter();
    let mut users: Vec<_> = requests.filter_map(|request| request.user).collect();
    users.dedup();
    users
}

fn created(server: &ApiServer) -> (Value, Vec<u8>) {
    let body: Value = serde_json::from_slice(server.created_bodies().last().unwrap()).unwrap();
    let request = body["spec"]["request"].as_str().unwrap().to_owned();
    (body, STANDARD.decode(request).unwrap())
}

#[test]
fn a_join_costs_one_create_and_at_most_one_watch() {
    for plugin in [INSECURE, NULL] {
        let server = issuing();
        let node = Node::new(plugin, &server);

        let run = node.run().succeeded();

        assert_eq!(run.stderr, "");
        assert_eq!((server.creates(), server.lists()), (1, 0));
        assert!(server.watches() + server.gets() <= 1);
        assert!(is_pair(&node.file("kubelet-client.pem")));
        let files = ["kubelet-client.pem", "last-check", "lock", "origin.json"];
        assert_eq!(node.files(), files);
        let asked_again = run.expires_in(now());
        assert!(asked_again > HOUR - Duration::from_secs(60) && asked_again <= HOUR);
    }
}

#[test]
fn a_request_that_is_decided_later_costs_one_create_and_one_watch() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);
    let run = node.start(&[]);
    let watch = kubelet_authenticator_test_support::api_server::Verb::Watch;
    server.wait_for_request(watch, 1, Duration::from_secs(20));

    let name = server.csrs()[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    server.approve_and_issue(&name);

    run.finish().succeeded();
    assert_eq!(
        (
            server.creates(),
            server.watches(),
            server.gets(),
            server.lists()
        ),
        (1, 1, 0, 0)
    );
}

#[test]
fn the_insecure_plugin_requests_one_year_without_evidence() {
    let server = issuing();
    Node::new(INSECURE, &server).run().succeeded();

    let (body, request) = created(&server);

    let spec = &body["spec"];
    assert_eq!(spec["signerName"], Provider::INSECURE.client_signer());
    assert_eq!(spec["expirationSeconds"], 31_536_000);
    assert_eq!(
        spec["usages"],
        serde_json::json!(["digital signature", "client auth"])
    );
    let envelope = Envelope::parse(&request).unwrap();
    assert_eq!(envelope.provider, Some(Provider::INSECURE));
    assert_eq!(envelope.evidence, None);
}

#[test]
fn a_join_and_a_renewal_request_only_client_certificates() {
    let server = ApiServer::start();
    server.set_signer(old_certificates());
    let node = Node::new(NULL, &server);
    node.run().succeeded();
    node.run().succeeded();

    let requests = server.csrs();

    assert_eq!(requests.len(), 2);
    for request in requests {
        let spec = &request["spec"];
        assert_eq!(spec["signerName"], Provider::NULL.client_signer());
        let usages = serde_json::json!(["digital signature", "client auth"]);
        assert_eq!(spec["usages"], usages);
    }
}

#[test]
fn the_null_plugin_requests_one_week_with_evidence_for_the_cluster() {
    let server = issuing();
    Node::new(NULL, &server).run().succeeded();

    let (body, request) = created(&server);

    assert_eq!(body["spec"]["signerName"], Provider::NULL.client_signer());
    assert_eq!(body["spec"]["expirationSeconds"], 604_800);
    let envelope = Envelope::parse(&request).unwrap();
    assert_eq!(envelope.provider, Some(Provider::NULL));
    let header = Header::parse(&envelope.evidence.unwrap()).unwrap();
    assert_eq!(
        header.audience,
        Audience::of_ca(&server.authority().certificate_der())
    );
}

#[test]
fn a_fresh_credential_is_printed_unchanged_without_a_connection() {
    let server = issuing();
    let node = Node::new(NULL, &server);
    let first = node.run().succeeded();
    let connections = server.connections();

    let second = node.run().succeeded();

    assert_eq!(second.pair(), first.pair());
    assert_eq!(second.stderr, "");
    assert_eq!(server.connections(), connections);
}

#[test]
fn twenty_concurrent_processes_create_one_request_and_credential() {
    let server = issuing();
    let node = Node::new(NULL, &server);

    let started: Vec<_> = (0..20).map(|_| node.start(&[])).collect();
    let pairs: Vec<_> = started
        .into_iter()
        .map(|run| run.finish().succeeded().pair())
        .collect();

    assert_eq!(server.creates(), 1);
    assert!(pairs.iter().all(|pair| *pair == pairs[0]));
}

#[test]
fn twenty_concurrent_processes_renew_with_one_request() {
    let server = ApiServer::start();
    server.set_signer(old_certificates());
    let node = Node::new(NULL, &server);
    node.run().succeeded();
    server.set_signer(Signer::issue());

    let started: Vec<_> = (0..20).map(|_| node.start(&[])).collect();
    for run in started {
        run.finish().succeeded().within(Duration::from_secs(5));
    }

    assert_eq!(server.creates(), 2);
}

#[test]
fn both_exec_api_versions_are_answered_in_the_same_version() {
    let server = issuing();
    let mut node = Node::new(INSECURE, &server);
    for version in ["v1", "v1beta1"] {
        for with_cluster in [true, false] {
            node.set_env(
                "KUBERNETES_EXEC_INFO",
                server.exec_info(version, with_cluster),
            );

            let credential = node.run().succeeded().credential();

            let expected = format!("client.authentication.k8s.io/{version}");
            assert_eq!(credential["apiVersion"], expected);
        }
    }
    assert_eq!(server.creates(), 1);
}

#[test]
fn a_run_without_cluster_info_uses_the_kubeconfig_or_the_store() {
    let server = issuing();
    let mut node = Node::new(NULL, &server);
    node.set_env("KUBERNETES_EXEC_INFO", server.exec_info("v1", false));
    node.run().succeeded();
    fs::remove_file(node.scratch().join("bootstrap.kubeconfig")).unwrap();

    node.command(&["renew", "--force"]).succeeded();

    assert_eq!(server.creates(), 2);
}

#[test]
fn a_renewal_authenticates_with_the_certificate_and_a_new_key() {
    let server = ApiServer::start();
    server.set_signer(old_certificates());
    let node = Node::new(NULL, &server);
    let first = node.run().succeeded();
    server.set_signer(Signer::issue());

    let second = node.run().succeeded();
    let third = node.run().succeeded();

    assert_ne!(second.pair().1, first.pair().1);
    assert_eq!(third.pair(), second.pair());
    assert_eq!(server.creates(), 2);
    assert_eq!(
        users(&server),
        [BOOTSTRAP_USER.to_owned(), format!("system:node:{NODE}")]
    );
    assert!(is_pair(&node.file("kubelet-client.pem")));
}

#[test]
fn a_failed_renewal_prints_the_old_credential_for_30_seconds() {
    let server = ApiServer::start();
    server.set_signer(old_certificates());
    let node = Node::new(NULL, &server);
    let first = node.run().succeeded();
    server.inject_connection(Times::always(), ConnectionFault::Close);

    let run = node.run().succeeded();
    let again = node.run().succeeded();

    let run = run.saying("cannot renew the credential");
    assert_eq!((run.pair(), again.pair()), (first.pair(), first.pair()));
    assert!(run.expires_in(now()) <= Duration::from_secs(30));
}

#[test]
fn the_next_run_completes_a_renewal_that_is_decided_late() {
    let server = ApiServer::start();
    server.set_signer(old_certificates());
    let node = Node::new(NULL, &server);
    let first = node.run().succeeded();
    server.set_signer(Signer::Off);

    let waiting = node.run().succeeded().within(Duration::from_secs(5));
    let pending = node.json("pending.json");
    server.approve_and_issue(pending["request"]["name"].as_str().unwrap());
    let reads = server.gets() + server.watches();
    let collected = node.run().succeeded();

    assert_eq!(waiting.pair(), first.pair());
    assert_ne!(collected.pair(), first.pair());
    assert_eq!(server.creates(), 2);
    assert_eq!(server.gets() + server.watches() - reads, 1);
}

#[test]
fn an_insecure_credential_is_used_until_it_expires_with_a_warning() {
    let server = ApiServer::start();
    server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(HOUR),
        backdate: 9 * HOUR,
        ..Issuance::default()
    }));
    let node = Node::new(INSECURE, &server);
    let first = node.run().succeeded();

    let second = node.run().succeeded().saying("cannot be renewed");

    assert_eq!(second.pair(), first.pair());
    assert_eq!(server.creates(), 1);
    let warning = node.status()["certificate"]["warning"].clone();
    assert!(warning.as_str().unwrap().contains("cannot be renewed"));
}

#[test]
fn an_expired_credential_is_replaced_with_the_bootstrap_credential() {
    for plugin in [INSECURE, NULL] {
        let server = issuing();
        let node = Node::new(plugin, &server);
        node.run().succeeded();
        let expired = Contents::client(Subject::node(NODE)).expired();
        let expired = server.authority().issue(&expired);
        fs::write(
            node.file("kubelet-client.pem"),
            expired.certificate_pem.clone() + &expired.key_pem,
        )
        .unwrap();

        let run = node.run().succeeded();

        assert_ne!(run.pair().0, expired.certificate_pem);
        assert_eq!(users(&server), [BOOTSTRAP_USER]);
        assert_eq!(server.creates(), 2);
    }
}

fn with_ca(server: &ApiServer, url: &str, ca_pem: &str) -> String {
    let mut cluster = server.cluster_info();
    cluster["certificate-authority-data"] = STANDARD.encode(ca_pem).into();
    cluster["server"] = url.into();
    exec_info("v1", Some(cluster))
}

#[test]
fn a_changed_ca_bundle_causes_a_renewal() {
    let other = CertificateAuthority::new("next");
    for (plugin, creates) in [(NULL, 2), (INSECURE, 1)] {
        let server = issuing();
        let mut node = Node::new(plugin, &server);
        node.run().succeeded();
        let bundle = format!("{}{}", server.ca_pem(), other.certificate_pem());
        node.set_env(
            "KUBERNETES_EXEC_INFO",
            with_ca(&server, &server.url(), &bundle),
        );

        node.run().succeeded();
        node.run().succeeded();

        assert_eq!(server.creates(), creates, "{plugin}");
    }
}

#[test]
fn another_address_of_the_same_cluster_has_no_effect() {
    let server = issuing();
    let mut node = Node::new(NULL, &server);
    let first = node.run().succeeded();
    let url = format!("https://localhost:{}", server.address().port());
    node.set_env(
        "KUBERNETES_EXEC_INFO",
        with_ca(&server, &url, server.ca_pem()),
    );

    assert_eq!(node.run().succeeded().pair(), first.pair());
    assert_eq!(server.creates(), 1);
}

#[test]
fn a_different_cluster_gets_no_request_and_the_credential_is_kept() {
    let (server, other) = (issuing(), issuing());
    let mut node = Node::new(NULL, &server);
    let first = node.run().succeeded();
    node.set_env("KUBERNETES_EXEC_INFO", other.exec_info("v1", true));

    let elsewhere: Run = node.run();

    assert_eq!(
        elsewhere
            .succeeded()
            .saying("credential for the cluster at")
            .pair(),
        first.pair()
    );
    assert_eq!((server.creates(), other.connections()), (1, 0));
}

/// Changes the stored address to an API server that does not exist.
fn store_another_address(node: &Node) {
    node.change("origin.json", |origin| {
        origin["endpoint"]["server"] = "https://127.0.0.1:1".into();
    });
}

#[test]
fn a_new_cluster_address_is_stored_without_a_renewal() {
    for plugin in [NULL, INSECURE] {
        let server = issuing();
        let node = Node::new(plugin, &server);
        let pair = node.run().succeeded().pair();
        store_another_address(&node);

        let run = node.run().succeeded();

        assert_eq!((run.pair(), run.stderr.as_str()), (pair, ""));
        let origin = node.json("origin.json");
        assert_eq!(origin["endpoint"]["server"], server.url());
        assert_eq!(server.creates(), 1);
    }
}

#[test]
fn a_manual_renewal_uses_the_cluster_in_the_kubelet_kubeconfig() {
    let server = issuing();
    let node = Node::new(NULL, &server);
    let plugin = program(NULL).display().to_string();
    let rendered = node.command(&["render", "kubeconfig", "--command", &plugin]);
    let rendered = rendered.succeeded().stdout;
    let kubelet = node.scratch().write("kubelet.conf", rendered);
    node.run().succeeded();
    store_another_address(&node);

    let renew = ["renew", "--force", "--kubelet-kubeconfig"];
    let run = node
        .command(&[&renew[..], &[kubelet.to_str().unwrap()]].concat())
        .succeeded();

    assert!(run.stdout.contains("a new credential"), "{run:#?}");
    let origin = node.json("origin.json");
    assert_eq!(origin["endpoint"]["server"], server.url());
}

#[test]
fn an_impostor_at_the_cluster_address_gets_no_request() {
    for plugin in [NULL, INSECURE] {
        let (server, impostor) = (issuing(), issuing());
        let mut node = Node::new(plugin, &server);
        node.run().succeeded();
        let ca = |node: &Node| node.json("origin.json")["endpoint"]["caPem"].clone();
        let stored = ca(&node);
        assert_eq!(stored.as_str().unwrap().trim(), server.ca_pem().trim());
        fs::remove_file(node.file("kubelet-client.pem")).unwrap();
        let info = with_ca(&server, &impostor.url(), server.ca_pem());
        node.set_env("KUBERNETES_EXEC_INFO", info);

        let run = node.run().failed(8);

        assert!(
            run.stderr.contains("is not signed by the cluster's CA"),
            "{run:#?}"
        );
        assert!(impostor.connections() > 0);
        assert_eq!((impostor.requests().len(), server.creates()), (0, 1));
        assert_eq!(ca(&node), stored);
    }
}

#[test]
fn a_bundle_with_both_cas_permits_a_new_address_and_a_new_ca() {
    for plugin in [NULL, INSECURE] {
        let (old, new) = (issuing(), issuing());
        let mut node = Node::new(plugin, &old);
        node.run().succeeded();
        let both = format!("{}{}", old.ca_pem(), new.ca_pem());

        for bundle in [&both, new.ca_pem()] {
            node.set_env("KUBERNETES_EXEC_INFO", with_ca(&new, &new.url(), bundle));
            node.run().succeeded();
        }

        let endpoint = &node.json("origin.json")["endpoint"];
        assert_eq!(endpoint["server"], new.url(), "{plugin}");
        assert_eq!(
            endpoint["caPem"].as_str().unwrap().trim(),
            new.ca_pem().trim()
        );
    }
}
