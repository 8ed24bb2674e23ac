mod network;
mod proxies;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Instant;

use kubelet_authenticator_test_support::api_server::{ApiServer, Fault, Route, TOKEN, Times};
use kubelet_authenticator_test_support::pki::{self, Subject};

use super::*;
use crate::kube::error::ApiErrorKind;
use crate::kube::kubeconfig::EndpointFields;
use crate::kube::types::CsrState;
use crate::secret::Secret;

const NAME: &str = "kubelet-authenticator-test";
const SIGNER: &str = "cluster.x-k8s.io/kube-apiserver-client-kubelet-null";

/// A deadline that is long enough for a server that responds.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// A deadline for servers that never respond. It is long enough to connect on a busy machine. If a test also expects
/// later responses, they must arrive long before [`soon`].
fn short() -> Deadline {
    Deadline::after(Duration::from_secs(2))
}

fn fields(server: &ApiServer) -> EndpointFields {
    let ca_pem = server.ca_pem().to_owned();
    EndpointFields {
        server: server.url(),
        ca_pem,
        tls_server_name: None,
        proxy_url: None,
    }
}

fn token() -> Login {
    Login::Token(Secret::new(TOKEN.to_owned()))
}

fn connect(fields: EndpointFields, login: &Login) -> Result<ApiClient, ApiError> {
    let endpoint = ClusterEndpoint::from_fields(fields, "a test").unwrap();
    ApiClient::connect(&endpoint, login, &|_| None)
}

/// Whether the error message contains this string.
fn is(error: &ApiError, words: &str) -> bool {
    error.to_string().contains(words)
}

fn client(server: &ApiServer) -> ApiClient {
    connect(fields(server), &token()).unwrap()
}

fn request() -> String {
    pki::certificate_request(&Subject::node("n1"), None).0
}

fn csr(request: &str) -> NewCsr<'_> {
    NewCsr {
        name: NAME,
        signer_name: SIGNER,
        usages: &["digital signature", "client auth"],
        expiration_seconds: 604_800,
        request: request.as_bytes(),
    }
}

/// Starts a server without TLS that sends this response to every request.
fn answering(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            drop(client.read(&mut [0; 4096]));
            drop(client.write_all(answer.as_bytes()));
        }
    });
    address
}

/// Returns the error of a read during which this fault occurs.
fn read_with(fault: Fault, deadline: Deadline) -> ApiError {
    let server = ApiServer::start();
    server.inject(Route::get(), Times::always(), fault);
    let error = client(&server).get(NAME, deadline).unwrap_err();
    let words = format!("{error} {error:?}");
    assert!(words.contains(&server.url()), "{words}");
    assert!(!words.contains(TOKEN), "{words}");
    error
}

#[test]
fn a_created_request_is_read_back_unchanged() {
    let server = ApiServer::start();
    let client = client(&server);
    let request = request();

    let Some(created) = client.create(csr(&request), soon()).unwrap() else {
        panic!("the request existed before");
    };
    let read = client.get(NAME, soon()).unwrap().unwrap();

    assert!(csr(&request).is_what_was_stored(&read));
    assert_eq!(read, created);
    assert_eq!(read.state, CsrState::Pending);
    assert!(!read.uid.is_empty() && !read.resource_version.is_empty());
    assert_eq!(server.requests().len(), 2);
    assert_eq!(server.connections(), 1);
    let user_agent = &server.requests()[0].user_agent;
    assert!(
        user_agent.starts_with("kubelet-authenticator/"),
        "{user_agent}"
    );
}

#[test]
fn a_request_that_already_exists_is_not_an_error() {
    let server = ApiServer::start();
    let client = client(&server);
    let request = request();
    client.create(csr(&request), soon()).unwrap();

    assert!(matches!(client.create(csr(&request), soon()), Ok(None)));
}

#[test]
fn a_foreign_request_under_the_same_name_is_not_accepted_as_own() {
    let request = request();
    for spec in [
        serde_json::json!({"signerName": "example.com/another"}),
        serde_json::json!({"expirationSeconds": 600}),
        serde_json::json!({"usages": ["client auth"]}),
    ] {
        let server = ApiServer::start();
        let client = client(&server);
        server.inject(Route::create(), Times::once(), Fault::Squat { spec });

        assert!(matches!(client.create(csr(&request), soon()), Ok(None)));
        let stored = client.get(NAME, soon()).unwrap().unwrap();
        assert!(!csr(&request).is_what_was_stored(&stored));
    }
}

#[test]
fn a_missing_request_is_not_an_error() {
    let server = ApiServer::start();

    assert_eq!(client(&server).get(NAME, soon()).unwrap(), None);
}

#[test]
fn an_html_404_is_not_a_missing_request() {
    let content_type = "text/html".to_owned();
    let fault = Fault::Answer {
        code: 404,
        content_type,
        body: b"<html>".to_vec(),
    };
    let error = read_with(fault, soon());

    assert!(error.kind == ApiErrorKind::Refused, "{error:?}");
}

#[test]
fn an_invalid_request_is_refused_with_the_message_of_the_server() {
    let server = ApiServer::start();
    let error = client(&server)
        .create(csr("no request"), soon())
        .unwrap_err();

    assert_eq!(error.kind, ApiErrorKind::Refused);
    let words = error.to_string();
    assert!(
        words.contains("(422 Invalid)") && words.contains("spec.request"),
        "{words}"
    );
}

#[test]
fn an_unknown_token_is_unauthorized() {
    let server = ApiServer::start();
    let login = Login::Token(Secret::new("unknow.0123456789abcdef".to_owned()));
    let error = connect(fields(&server), &login)
        .unwrap()
        .get(NAME, soon())
        .unwrap_err();

    assert!(error.kind == ApiErrorKind::Unauthorized, "{error:?}");
}

#[test]
fn each_http_status_has_its_error_kind() {
    assert!(read_with(Fault::status(401), soon()).kind == ApiErrorKind::Unauthorized);
    assert!(read_with(Fault::status(403), soon()).kind == ApiErrorKind::Forbidden);
    assert!(read_with(Fault::status(422), soon()).kind == ApiErrorKind::Refused);
    for code in [429, 500, 501, 503] {
        let error = read_with(Fault::status(code), short());
        assert_eq!(error.kind, ApiErrorKind::Unavailable, "{code}");
        assert!(error.to_string().contains(&code.to_string()), "{error}");
    }
}

#[test]
fn a_pause_that_the_server_requests_is_respected() {
    let server = ApiServer::start();
    server.inject(Route::get(), Times::first(2), Fault::too_many_requests(0));
    let unavailable = Fault::Status {
        code: 503,
        retry_after: Some(1),
    };
    server.inject(Route::get(), Times::once(), unavailable);

    assert_eq!(client(&server).get(NAME, soon()).unwrap(), None);
    let requests = server.requests();
    let [_, _, unavailable, last] = &requests[..] else {
        panic!("not 4 requests: {requests:?}")
    };
    // Without the header, the client would pause for 0.4 seconds.
    let pause = kubelet_attestation::time::until(last.at, unavailable.at);
    assert!(pause >= Duration::from_secs(1), "{pause:?}");
}

#[test]
fn only_temporary_errors_are_retried() {
    for fault in [
        Fault::Cut,
        Fault::status(429),
        Fault::status(500),
        Fault::status(502),
        Fault::status(503),
        Fault::status(504),
    ] {
        let server = ApiServer::start();
        server.inject(Route::get(), Times::first(2), fault.clone());

        let read = client(&server).get(NAME, soon()).unwrap();
        assert_eq!((read, server.gets()), (None, 3), "{fault:?}");
    }
    for code in [400, 401, 403, 408, 409, 410, 422, 451, 501, 505] {
        let server = ApiServer::start();
        server.inject(Route::get(), Times::always(), Fault::status(code));

        client(&server).get(NAME, soon()).unwrap_err();
        assert_eq!(server.gets(), 1, "{code}");
    }
}

#[test]
fn attempts_end_before_a_pause_that_is_longer_than_the_deadline() {
    let server = ApiServer::start();
    let fault = Fault::too_many_requests(3600);
    server.inject(Route::get(), Times::always(), fault);
    let error = client(&server).get(NAME, soon()).unwrap_err();
    assert!(
        is(&error, "rejects the request: too many requests (429)"),
        "{error:?}"
    );
    assert_eq!(server.gets(), 1);

    let server = ApiServer::start();
    server.inject(Route::get(), Times::always(), Fault::status(502));
    let error = client(&server).get(NAME, short()).unwrap_err();
    // The attempts start 0, 0.1, 0.3, 0.7 and 1.5 seconds after the start of the 2 seconds.
    assert!(is(&error, "has an internal error (502)"), "{error:?}");
    assert!((2..=5).contains(&server.gets()), "{}", server.gets());
}

#[test]
fn an_attempt_that_exceeds_the_deadline_keeps_the_previous_error() {
    let server = ApiServer::start();
    server.inject(Route::get(), Times::once(), Fault::status(502));
    server.inject(Route::get(), Times::always(), Fault::Hang);

    let error = client(&server).get(NAME, short()).unwrap_err();
    assert!(is(&error, "has an internal error (502)"), "{error:?}");
}

#[test]
fn a_redirect_of_the_api_server_is_not_followed() {
    let other = ApiServer::start();
    let error = read_with(Fault::Redirect { to: other.url() }, soon());

    assert!(
        is(&error, "but the response is not from an API server"),
        "{error:?}"
    );
    assert_eq!(error.kind, ApiErrorKind::Other);
    assert!(other.requests().is_empty());
}

#[test]
fn a_response_with_a_different_object_is_an_error() {
    let error = read_with(Fault::not_json(), soon());
    assert!(is(&error, "is not the requested object"), "{error:?}");
    assert_eq!(error.kind, ApiErrorKind::Other);

    let body = serde_json::json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"request": "?", "signerName": "s"},
    });
    let (content_type, body) = ("application/json".to_owned(), body.to_string().into_bytes());
    let error = read_with(
        Fault::Answer {
            code: 200,
            content_type,
            body,
        },
        soon(),
    );
    let words = "field spec.request does not match the Kubernetes API";
    assert!(error.to_string().ends_with(words), "{error}");
    assert_eq!(error.kind, ApiErrorKind::Other);
}

#[test]
fn a_response_of_100_megabytes_is_not_read() {
    let error = read_with(Fault::HugeBody { size: 100 << 20 }, soon());

    assert!(is(&error, "is longer than"), "{error:?}");
    assert_eq!(error.kind, ApiErrorKind::Other);
}

#[test]
fn a_response_that_never_ends_times_out() {
    let every = Duration::from_millis(50);
    for fault in [
        Fault::Hang,
        Fault::TrickleHead { every },
        Fault::TrickleBody { every },
    ] {
        let began = Instant::now();
        let error = read_with(fault.clone(), short());

        assert!(
            is(&error, "did not respond in time"),
            "{fault:?}: {error:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(10), "{fault:?}");
    }
}

#[test]
fn a_clock_skew_over_five_minutes_is_an_error_with_both_times() {
    for seconds in [-361, 361] {
        let error = read_with(Fault::DateSkew { seconds }, soon());

        assert_eq!(error.failure.code(), Code::ClockSkew);
        assert_eq!(error.to_string().matches('Z').count(), 2, "{error}");
    }
}

#[test]
fn a_clock_skew_under_five_minutes_is_accepted() {
    for seconds in [-240, 240] {
        let server = ApiServer::start();
        server.set_date_skew(seconds);

        assert_eq!(client(&server).get(NAME, soon()).unwrap(), None);
    }
}

#[test]
fn a_server_url_with_a_path_prefixes_every_request() {
    let server = ApiServer::start();
    let fields = EndpointFields {
        server: format!("{}/k8s/c1/", server.url()),
        ..fields(&server)
    };
    connect(fields, &token())
        .unwrap()
        .get(NAME, soon())
        .unwrap_err();

    let wanted = format!("/k8s/c1/apis/certificates.k8s.io/v1/certificatesigningrequests/{NAME}");
    assert_eq!(server.requests()[0].path, wanted);
}
