//! Creating, approving and issuing.

use kubelet_authenticator_test_support::api_server::{ApiServer, Signer};

use crate::client::{CSRS, Caller, csr, read};

#[test]
fn a_request_is_created_watched_and_issued() {
    let server = ApiServer::start();
    let bootstrap = Caller::bootstrap(&server);

    let (code, created) = read(bootstrap.post(CSRS, &csr("a", "node-1")));
    assert_eq!(code, 201, "{created}");
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = bootstrap.watch(&format!(
        "fieldSelector=metadata.name%3Da&resourceVersion={version}"
    ));
    server.decide("a", &Signer::issue());

    assert_eq!(
        events.next().1["status"]["conditions"][0]["type"],
        "Approved"
    );
    let (kind, issued) = events.next();
    assert_eq!(kind, "MODIFIED");
    assert!(issued["status"]["certificate"].is_string());
    assert_eq!(
        (server.creates(), server.watches(), server.gets()),
        (1, 1, 0)
    );
}
