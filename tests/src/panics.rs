//! Checks that a panic does not affect a node while the node's stored credential is valid.

use std::path::Path;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Issuance, Signer};

use crate::node::{Node, Run};
use crate::steps;

/// Makes this build of `plugin_under_test` panic after its cached path: on the thread of the run after each step, and
/// on the main thread.
///
/// # Panics
///
/// Panics if the node loses its credential because of a panic.
#[track_caller]
pub fn check(program: &Path) {
    for step in steps::RUN {
        let (_server, mut node, old) = due(program);
        node.set_env("PANIC_AT", format!("{step:?}"));

        assert_rescued(&node.run(), &old);
    }
    let mut panics = 0;
    // Skip the first call, which decides whether a renewal is due, because the plugin has no output before this call.
    for call in 2.. {
        let (_server, mut node, old) = due(program);
        node.set_env("PANIC_ON_CALL", call.to_string());
        let run = node.run().succeeded();
        if run.stderr.is_empty() {
            break;
        }
        assert_rescued(&run, &old);
        panics += 1;
    }
    assert!(panics >= 3, "{panics} calls");
}

/// A node whose certificate is due for renewal, and the output of the plugin.
fn due(program: &Path) -> (ApiServer, Node, (String, String)) {
    let server = ApiServer::start();
    server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(Duration::from_secs(3600)),
        backdate: Duration::from_secs(3 * 3600),
        ..Issuance::default()
    }));
    let node = Node::of(program.to_owned(), &server);
    let pair = node.run().succeeded().pair();
    server.set_signer(Signer::issue());
    (server, node, pair)
}

#[track_caller]
fn assert_rescued(run: &Run, old: &(String, String)) {
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert_eq!(run.pair(), *old, "{run:#?}");
    assert_eq!(run.stderr.lines().count(), 2, "{run:#?}");
    assert!(
        run.stderr.contains("internal error: the plugin panicked"),
        "{run:#?}"
    );
    assert!(!run.stderr.contains("PRIVATE"), "{run:#?}");
}
