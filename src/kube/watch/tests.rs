use std::time::Instant;

use kubelet_authenticator_test_support::api_server::{
    ApiServer, Fault, Route, Signer, TOKEN, Times, Verb,
};
use kubelet_authenticator_test_support::pki::{self, Subject};

use super::*;
use crate::kube::error::ApiErrorKind;
use crate::kube::kubeconfig::{ClusterEndpoint, EndpointFields, Login};
use crate::kube::types::NewCsr;
use crate::secret::Secret;

const NAME: &str = "kubelet-authenticator-test";
const LONG: Duration = Duration::from_secs(20);

fn soon() -> Deadline {
    Deadline::after(LONG)
}

/// A deadline for operations that take until their deadline. It is long enough to connect on a busy machine.
fn a_while() -> Deadline {
    Deadline::after(Duration::from_secs(2))
}

/// A server that contains a pending request.
fn pending() -> (ApiServer, ApiClient, CsrObject) {
    let server = ApiServer::start();
    let fields = EndpointFields {
        server: server.url(),
        ca_pem: server.ca_pem().to_owned(),
        tls_server_name: None,
        proxy_url: None,
    };
    let endpoint = ClusterEndpoint::from_fields(fields, "a test").unwrap();
    let login = Login::Token(Secret::new(TOKEN.to_owned()));
    let client = ApiClient::connect(&endpoint, &login, &|_| None).unwrap();
    let (request, _) = pki::certificate_request(&Subject::node("n1"), None);
    let csr = NewCsr {
        name: NAME,
        signer_name: "cluster.x-k8s.io/kube-apiserver-client-kubelet-null",
        usages: &["digital signature", "client auth"],
        expiration_seconds: 604_800,
        request: request.as_bytes(),
    };
    let Some(created) = client.create(csr, soon()).unwrap() else {
        panic!("the request existed before");
    };
    (server, client, created)
}

/// Waits for the decision. Calls `happening` after the server has received this number (`watches`) of watch requests.
fn wait_while(
    (server, client, csr): &(ApiServer, ApiClient, CsrObject),
    watches: usize,
    happening: impl FnOnce(&ApiServer) + Send,
) -> Result<Option<CsrObject>, ApiError> {
    thread::scope(|scope| {
        scope.spawn(|| {
            server.wait_for_request(Verb::Watch, watches, LONG);
            happening(server);
        });
        client.wait(csr, soon())
    })
}

fn state(waited: Result<Option<CsrObject>, ApiError>) -> CsrState {
    let state = waited.unwrap().unwrap().state;
    assert_ne!(state, CsrState::Pending);
    state
}

fn is_issued(waited: Result<Option<CsrObject>, ApiError>) -> bool {
    matches!(state(waited), CsrState::Issued { chain_pem } if chain_pem.contains("BEGIN CERTIFICATE"))
}

#[test]
fn an_enrollment_costs_one_create_and_one_watch() {
    let setting = pending();

    assert!(is_issued(
        wait_while(&setting, 1, |server| server.approve_and_issue(NAME))
    ));
    let (server, ..) = &setting;
    assert_eq!(
        (server.creates(), server.watches(), server.requests().len()),
        (1, 1, 2)
    );
}

#[test]
fn a_decided_request_is_not_watched() {
    let (server, client, _) = pending();
    server.approve_and_issue(NAME);
    let decided = client.get(NAME, soon()).unwrap().unwrap();

    assert!(is_issued(client.wait(&decided, soon())));
    assert_eq!(server.watches(), 0);
}

#[test]
fn a_decision_made_before_the_watch_starts_is_noticed() {
    let (server, client, csr) = pending();
    server.approve_and_issue(NAME);

    assert!(is_issued(client.wait(&csr, soon())));
    assert_eq!((server.watches(), server.gets()), (1, 0));
}

#[test]
fn a_denial_and_a_failure_contain_their_messages() {
    let denied = wait_while(&pending(), 1, |server| {
        server.decide(NAME, &Signer::deny("AnotherMachine", "no"));
    });
    let (reason, message) = ("AnotherMachine".to_owned(), "no".to_owned());
    assert_eq!(state(denied), CsrState::Denied { reason, message });

    let failed = wait_while(&pending(), 1, |server| {
        server.decide(NAME, &Signer::fail("EvidenceExpired", "too old"));
    });
    let (reason, message) = ("EvidenceExpired".to_owned(), "too old".to_owned());
    assert_eq!(
        state(failed),
        CsrState::Failed {
            reason,
            message,
            supported_versions: vec![],
            challenge: None,
        }
    );
}

#[test]
fn an_approval_without_a_certificate_does_not_end_the_wait() {
    let setting = pending();
    let waited = wait_while(&setting, 1, |server| {
        server.add_condition(NAME, "Approved", "Attested", "");
        server.decide(NAME, &Signer::fail("SignerValidationFailure", ""));
    });

    assert!(matches!(state(waited), CsrState::Failed { .. }));
}

#[test]
fn a_certificate_without_approval_does_not_end_the_wait() {
    let (server, client, csr) = pending();
    server.set_certificate(NAME, server.ca_pem());

    let seen = client.wait(&csr, a_while()).unwrap().unwrap();
    assert_eq!(seen.state, CsrState::Pending);
    assert_ne!(seen.resource_version, csr.resource_version);
}

#[test]
fn the_wait_for_an_undecided_request_ends_at_the_deadline() {
    let (server, client, csr) = pending();
    let began = Instant::now();
    let waited = client.wait(&csr, a_while()).unwrap();

    assert_eq!(waited, Some(csr));
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(server.watches(), 1);
}

#[test]
fn a_deleted_or_recreated_request_ends_the_wait() {
    let deleted = wait_while(&pending(), 1, |server| server.delete_csr(NAME));
    assert_eq!(deleted.unwrap(), None);

    let (server, client, csr) = pending();
    server.compact();
    server.delete_csr(NAME);
    server.compact();
    assert_eq!(client.wait(&csr, soon()).unwrap(), None);

    let (server, client, csr) = pending();
    let mut another = server.csr(NAME).unwrap();
    another["metadata"]["uid"] = "another".into();
    server.put_csr(another);
    assert_eq!(client.wait(&csr, soon()).unwrap(), None);
}

#[test]
fn an_interrupted_watch_is_resumed() {
    for fault in [
        Fault::WatchEnd { after: 0 },
        Fault::WatchCut { after: 0 },
        Fault::WatchGarbage,
        Fault::Cut,
        Fault::status(500),
        Fault::too_many_requests(0),
    ] {
        let setting = pending();
        setting
            .0
            .inject(Route::watch(), Times::once(), fault.clone());

        let waited = wait_while(&setting, 2, |server| server.approve_and_issue(NAME));
        assert!(is_issued(waited), "{fault:?}");
        assert_eq!(
            (setting.0.creates(), setting.0.watches(), setting.0.gets()),
            (1, 2, 0)
        );
    }
}

#[test]
fn a_watch_respects_a_pause_that_the_server_requests() {
    let pending = pending();
    let (server, ..) = &pending;
    server.inject(Route::watch(), Times::once(), Fault::too_many_requests(2));
    let began = Instant::now();

    let waited = wait_while(&pending, 2, |server| server.approve_and_issue(NAME));

    assert!(is_issued(waited));
    assert!(began.elapsed() >= Duration::from_secs(2));
}

#[test]
fn a_watch_that_has_fallen_behind_costs_one_list() {
    for fault in [Fault::WatchGone, Fault::status(410)] {
        let setting = pending();
        setting
            .0
            .inject(Route::watch(), Times::once(), fault.clone());

        let waited = wait_while(&setting, 2, |server| server.approve_and_issue(NAME));
        assert!(is_issued(waited), "{fault:?}");
        assert_eq!(
            (setting.0.watches(), setting.0.lists(), setting.0.gets()),
            (2, 1, 0)
        );
    }
}

#[test]
fn a_compacted_version_is_replaced_with_the_version_of_a_list() {
    let setting = pending();
    setting.0.compact();

    assert!(is_issued(
        wait_while(&setting, 2, |server| server.approve_and_issue(NAME))
    ));
    assert_eq!(
        (setting.0.watches(), setting.0.lists(), setting.0.gets()),
        (2, 1, 0)
    );
}

#[test]
fn a_resumed_watch_continues_from_the_last_version() {
    let setting = pending();
    let (server, ..) = &setting;
    server.inject(Route::watch(), Times::once(), Fault::WatchEnd { after: 1 });
    server.add_condition(NAME, "Approved", "Attested", "");
    let version = server.csr(NAME).unwrap()["metadata"]["resourceVersion"].clone();

    assert!(is_issued(
        wait_while(&setting, 2, |server| server.approve_and_issue(NAME))
    ));
    let last = server.requests().pop().unwrap();
    let wanted = format!("resourceVersion={}", version.as_str().unwrap());
    assert!(last.query.contains(&wanted), "{}", last.query);
}

#[test]
fn a_forbidden_watch_fails_immediately() {
    for code in [401, 403] {
        let (server, client, csr) = pending();
        server.inject(Route::watch(), Times::always(), Fault::status(code));

        let error = client.wait(&csr, soon()).unwrap_err();
        assert!(error.is_about_the_requester(), "{error}");
        assert_eq!(server.watches(), 1);
    }
}

#[test]
fn a_watch_that_never_starts_is_an_error_at_the_deadline() {
    for fault in [Fault::status(500), Fault::Hang] {
        let (server, client, csr) = pending();
        server.inject(Route::watch(), Times::always(), fault.clone());

        let error = client.wait(&csr, a_while()).unwrap_err();
        assert!(
            error.kind == ApiErrorKind::Unavailable,
            "{fault:?}: {error:?}"
        );
    }
}

#[test]
fn resumed_watches_back_off() {
    let (server, client, csr) = pending();
    server.inject(
        Route::watch(),
        Times::always(),
        Fault::WatchEnd { after: 0 },
    );

    let waited = client.wait(&csr, a_while()).unwrap();
    assert_eq!(waited, Some(csr));
    // Watches start after 0, 0.1, 0.3, 0.7 and 1.5 seconds.
    assert!((2..=5).contains(&server.watches()), "{}", server.watches());
}

#[test]
fn an_oversized_watch_event_is_not_read() {
    let (server, client, csr) = pending();
    server.inject(
        Route::watch(),
        Times::once(),
        Fault::HugeBody { size: 100 << 20 },
    );

    let error = client.wait(&csr, soon()).unwrap_err();
    assert!(error.to_string().contains("is longer than"), "{error:?}");
}
