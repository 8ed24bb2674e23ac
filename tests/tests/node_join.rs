//! A node joins: one request, one watch, one credential, and what follows.

use kubelet_authenticator_test_support::api_server::{ApiServer, Signer};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_tests::node::{INSECURE, NULL, Node, is_pair};

const HOUR: u64 = 3600;

fn issuing() -> ApiServer {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    server
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
        assert_eq!(node.files(), ["kubelet-client.pem", "lock", "origin.json"]);
        let lifetime = run.expires_in(now()).as_secs();
        assert!((HOUR - 60..=HOUR).contains(&lifetime), "{lifetime}");
    }
}
