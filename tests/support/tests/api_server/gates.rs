//! What is recorded, and how requests are held.

use std::thread;

use kubelet_authenticator_test_support::api_server::{ApiServer, Route, Step, Verb};

use crate::client::{CSRS, Caller, DEADLINE, csr};

#[test]
fn every_request_is_recorded_with_its_answer() {
    let server = ApiServer::start();
    let caller = Caller::bootstrap(&server);
    let body = csr("a", "node-1");
    caller.post(CSRS, &body);
    caller.get(&format!("{CSRS}/b?x=1"));
    caller.get(CSRS);

    let requests = server.requests();

    let seen: Vec<_> = requests
        .iter()
        .map(|it| (it.verb, it.code, it.name.as_str()))
        .collect();
    let expected = [
        (Verb::Create, Some(201), ""),
        (Verb::Get, Some(404), "b"),
        (Verb::List, Some(200), ""),
    ];
    assert_eq!(seen, expected);
    assert_eq!(requests[1].query, "x=1");
    assert_eq!(requests[0].user.as_deref(), Some("system:bootstrap:abcdef"));
    assert_eq!(
        server.created_bodies(),
        [serde_json::to_vec(&body).unwrap()]
    );
    assert_eq!(
        (
            server.creates(),
            server.gets(),
            server.lists(),
            server.watches()
        ),
        (1, 1, 1, 0)
    );
    assert!(
        requests
            .iter()
            .all(|it| it.connection == requests[0].connection)
    );
}

#[test]
fn a_request_held_on_arrival_has_stored_nothing() {
    let server = ApiServer::start();
    let gate = server.hold(Route::create(), Step::Received);
    thread::scope(|scope| {
        let client = scope.spawn(|| Caller::bootstrap(&server).post(CSRS, &csr("a", "node-1")));

        gate.wait(1, DEADLINE);
        assert!(server.csrs().is_empty());
        gate.open();

        assert_eq!(client.join().unwrap().status(), 201);
    });
}

#[test]
fn a_request_held_after_its_write_is_stored() {
    let server = ApiServer::start();
    let gate = server.hold(Route::create(), Step::Stored);
    thread::scope(|scope| {
        let client = scope.spawn(|| Caller::bootstrap(&server).post(CSRS, &csr("a", "node-1")));

        gate.wait(1, DEADLINE);
        assert_eq!(server.csrs().len(), 1);
        assert_eq!(server.requests()[0].code, None);
        drop(gate);

        assert_eq!(client.join().unwrap().status(), 201);
    });
}

#[test]
fn a_held_request_can_be_cut() {
    let server = ApiServer::start();
    let gate = server.hold(Route::create(), Step::Received);
    thread::scope(|scope| {
        let client = scope.spawn(|| Caller::bootstrap(&server).try_post(CSRS, &csr("a", "node-1")));

        gate.wait(1, DEADLINE);
        gate.cut();

        assert!(client.join().unwrap().is_err());
    });
    assert!(server.csrs().is_empty());
}

#[test]
fn a_test_waits_for_a_request() {
    let server = ApiServer::start();
    thread::scope(|scope| {
        scope.spawn(|| Caller::bootstrap(&server).get(&format!("{CSRS}/a")));

        let request = server.wait_for_request(Verb::Get, 1, DEADLINE);

        assert_eq!(request.path, format!("{CSRS}/a"));
    });
}

#[test]
fn a_server_that_is_dropped_is_gone() {
    let server = ApiServer::start();
    let (address, caller) = (server.address(), Caller::bootstrap(&server));
    caller.get("/readyz");

    drop(server);

    assert!(caller.try_get("/readyz").is_err());
    assert!(std::net::TcpStream::connect(address).is_err());
}
