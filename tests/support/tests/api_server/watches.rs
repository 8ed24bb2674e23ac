//! Watches: what they show, from where, and how they end.

use kubelet_authenticator_test_support::api_server::{ApiServer, Fault, Route, Signer, Times};

use crate::client::{CSRS, Caller, Events, csr, read};

const BY_NAME: &str = "fieldSelector=metadata.name%3Da";

struct Scene {
    server: ApiServer,
    caller: Caller,
}

impl Scene {
    fn new() -> Self {
        let server = ApiServer::start();
        let caller = Caller::bootstrap(&server);
        Self { server, caller }
    }

    fn create(&self, name: &str) -> String {
        let (code, created) = read(self.caller.post(CSRS, &csr(name, "node-1")));
        assert_eq!(code, 201, "{created}");
        created["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn faulty(fault: Fault) -> (Self, Events) {
        let scene = Self::new();
        scene.create("a");
        scene.server.inject(Route::watch(), Times::once(), fault);
        let events = scene.caller.watch(BY_NAME);
        (scene, events)
    }
}

#[test]
fn without_a_version_what_exists_is_added_first() {
    let scene = Scene::new();
    scene.create("a");
    scene.create("b");

    let mut events = scene.caller.watch(BY_NAME);
    scene.server.delete_csr("b");
    scene.server.delete_csr("a");

    let (kind, object) = events.next();
    assert_eq!(
        (kind.as_str(), &object["metadata"]["name"]),
        ("ADDED", &"a".into())
    );
    let (kind, object) = events.next();
    assert_eq!(
        (kind.as_str(), &object["metadata"]["name"]),
        ("DELETED", &"a".into())
    );
}

#[test]
fn a_watch_resumes_after_its_version() {
    let scene = Scene::new();
    let version = scene.create("a");
    scene.server.decide("a", &Signer::ApproveOnly);
    scene.server.set_certificate("a", "certificate");

    let mut events = scene
        .caller
        .watch(&format!("{BY_NAME}&resourceVersion={version}"));

    let (first, approved) = events.next();
    assert_eq!(first, "MODIFIED");
    assert!(approved["status"].get("certificate").is_none());
    assert!(events.next().1["status"]["certificate"].is_string());
}

#[test]
fn signer_names_select() {
    let scene = Scene::new();
    scene.create("a");
    let mut other = csr("b", "node-1");
    other["spec"]["signerName"] = "kubernetes.io/kubelet-serving".into();
    scene.caller.post(CSRS, &other);
    let selector = "fieldSelector=spec.signerName%3Dkubernetes.io%2Fkubelet-serving";

    assert_eq!(
        scene.caller.watch(selector).next().1["metadata"]["name"],
        "b"
    );
    let (_, list) = read(scene.caller.get(&format!("{CSRS}?{selector}")));
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let wrong = scene
        .caller
        .get(&format!("{CSRS}?fieldSelector=spec.username%3Dx"));
    assert_eq!(wrong.status(), 400);
}

#[test]
fn a_version_that_is_gone_is_an_error_event() {
    let scene = Scene::new();
    let version = scene.create("a");
    scene.server.compact();

    let mut events = scene
        .caller
        .watch(&format!("{BY_NAME}&resourceVersion={version}"));

    let (kind, status) = events.next();
    assert_eq!((kind.as_str(), &status["code"]), ("ERROR", &410.into()));
    assert_eq!(status["reason"], "Expired");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("too old resource version: ")
    );
    assert_eq!(events.next_line().unwrap(), None);
}

#[test]
fn the_timeout_ends_a_watch_cleanly_after_a_bookmark() {
    let scene = Scene::new();
    let version = scene.create("a");
    let query = format!("resourceVersion={version}&timeoutSeconds=1");

    let mut plain = scene.caller.watch(&query);
    assert_eq!(plain.next_line().unwrap(), None);
    let mut marked = scene
        .caller
        .watch(&format!("{query}&allowWatchBookmarks=true"));
    let (kind, object) = marked.next();
    assert_eq!(
        (kind.as_str(), &object["metadata"]["resourceVersion"]),
        ("BOOKMARK", &version.into())
    );
    assert_eq!(marked.next_line().unwrap(), None);
}

#[test]
fn initial_events_end_with_an_annotated_bookmark() {
    let scene = Scene::new();
    scene.create("a");
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

    let mut events = scene.caller.watch(query);

    assert_eq!(events.next().0, "ADDED");
    let (kind, object) = events.next();
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(
        object["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
}

#[test]
fn bookmarks_come_when_the_test_wants_them() {
    let scene = Scene::new();
    scene.create("a");
    let mut events = scene.caller.watch("allowWatchBookmarks=true");
    assert_eq!(events.next().0, "ADDED");

    scene.server.send_bookmarks();

    assert_eq!(events.next().0, "BOOKMARK");
}

#[test]
fn a_watch_is_cut_after_so_many_events() {
    let (_scene, mut events) = Scene::faulty(Fault::WatchCut { after: 1 });

    assert_eq!(events.next().0, "ADDED");
    assert!(events.next_line().is_err());
}

#[test]
fn a_watch_ends_cleanly_after_so_many_events() {
    let (_scene, mut events) = Scene::faulty(Fault::WatchEnd { after: 1 });

    assert_eq!(events.next().0, "ADDED");
    assert_eq!(events.next_line().unwrap(), None);
}

#[test]
fn a_watch_can_be_told_that_its_version_is_gone() {
    let (_scene, mut events) = Scene::faulty(Fault::WatchGone);

    assert_eq!(events.next().1["code"], 410);
    assert_eq!(events.next_line().unwrap(), None);
}

#[test]
fn a_watch_can_send_a_line_that_is_no_json() {
    let (_scene, mut events) = Scene::faulty(Fault::WatchGarbage);

    let line = events.next_line().unwrap().unwrap();

    assert!(
        serde_json::from_str::<serde_json::Value>(&line).is_err(),
        "{line}"
    );
}

#[test]
fn a_watch_can_send_a_bookmark_alone() {
    let (scene, mut events) = Scene::faulty(Fault::WatchBookmarkOnly);
    assert_eq!(events.next().0, "BOOKMARK");
    scene.server.decide("a", &Signer::issue());

    scene.server.drop_connections();

    assert!(events.next_line().is_err());
}
