//! Tests of a panic in the plugin: its output, and the files that it leaves.

use std::fs;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Route, Signer, Step};
use kubelet_authenticator_tests::node::{Node, UNDER_TEST};
use kubelet_authenticator_tests::{panics, program};

#[test]
fn a_panic_after_the_credential_is_read_still_prints_it() {
    panics::check(&program(UNDER_TEST));
}

#[test]
fn a_panic_without_a_stored_credential_exits_with_1() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let mut node = Node::new(UNDER_TEST, &server);
    node.set_env("PANIC_AT", "Attested");

    let run = node
        .run()
        .failed(1)
        .saying("internal error: the plugin panicked");

    assert_eq!(run.stderr.lines().count(), 2, "{run:#?}");
    assert!(!run.stderr.contains("PRIVATE"), "{run:#?}");
}

#[test]
fn a_plugin_that_is_aborted_leaves_no_core_file() {
    let server = ApiServer::start();
    let mut node = Node::new(UNDER_TEST, &server);
    let folder = node.scratch().join("cores");
    fs::create_dir(&folder).unwrap();
    node.set_env("FOLDER", &folder);
    let script = r#"cd "$FOLDER" && ulimit -c unlimited && exec "$@""#;
    node.wrap(&["sh", "-c", script, "sh"]);
    let gate = server.hold(Route::create(), Step::Received);
    let mut run = node.start(&[]);
    gate.wait(1, Duration::from_secs(20));
    let limit = run.core_limit();

    run.abort();

    assert_eq!((limit.as_str(), run.finish().code), ("0", None));
    // If a machine pipes core dumps to a program, this file never exists.
    let cores: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
    assert!(cores.is_empty(), "{cores:?}");
}
