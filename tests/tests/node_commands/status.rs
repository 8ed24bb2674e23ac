//! Tests of the command `status`.

use kubelet_authenticator_test_support::api_server::Signer;
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::snapshot::assert_file;

use crate::nodes::{node, stable};

/// The whole table.
#[track_caller]
fn table(node: &Node) -> String {
    let run = node.command(&["status"]).succeeded();
    assert_eq!(run.stderr, "");
    let plugin = program(NULL).display().to_string();
    stable(node, &run.stdout.replace(&plugin, "/PLUGIN"))
}

#[test]
fn the_status_table_matches_its_snapshot_in_each_state() {
    let (server, node) = node();

    let before = table(&node);
    node.run().succeeded();
    let joined = table(&node);
    server.set_signer(Signer::deny("AnotherMachine", "not you"));
    node.command(&["renew", "--force"]).failed(12);
    let denied = table(&node);

    let whole = format!(
        "Before the first run:\n\n{before}\nAfter the join:\n\n{joined}\nAfter a denied renewal:\n\n{denied}"
    );
    assert_file("tests/tests/node_commands/status.txt", &whole);
}
