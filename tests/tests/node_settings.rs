//! Tests of removed settings, unknown keys and invalid values: an administrator's commands fail, and each node keeps
//! its valid certificate.

use std::fs;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Issuance, Signer};
use kubelet_authenticator_test_support::settings;
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::tpm;

/// The removed settings, each with a previous value and a part of the text about its replacement.
const REMOVED: [(&str, &str, &str); 4] = [
    (
        "kubeconfig",
        "/etc/kubernetes/kubelet.conf",
        "the plugin uses the cluster in",
    ),
    (
        "signerName",
        "example.com/signer",
        "the signer is cluster.x-k8s.io/",
    ),
    (
        "timeoutSeconds",
        "30",
        "a run without a valid credential has a limit of 25 seconds",
    ),
    (
        "tpm.deviceProgram",
        "/opt/device",
        "must be next to the plugin, or in",
    ),
];

/// The sources of settings, and the exit code for a fault in each source.
const PLACES: [(Place, i32); 3] = [(Place::File, 3), (Place::DropIn, 3), (Place::Option, 2)];

/// `setup` on a machine that does not have the required files. This command fails before it reads a file.
const SETUP: [&str; 7] = [
    "setup",
    "--from",
    "/nonexistent/bootstrap-kubelet.conf",
    "--kubelet-kubeconfig",
    "/nonexistent/kubelet.conf",
    "--environment-file",
    "/nonexistent/kubelet.env",
];

#[derive(Debug, Clone, Copy)]
enum Place {
    File,
    DropIn,
    Option,
}

/// Sets the value of `key` on the node, in this place.
fn give(node: &mut Node, place: Place, key: &str, value: &str) {
    let text = settings::file([(key, value.to_owned())]);
    let (file, drop_in) = match place {
        Place::File => (text, settings::file([])),
        Place::DropIn => (settings::file([]), text),
        Place::Option => return node.set(key, value),
    };
    let config = node.scratch().write("config.yaml", file);
    let drop_ins = node.scratch().directory("config.d");
    fs::write(drop_ins.join("10.yaml"), drop_in).unwrap();
    node.set("config", config);
}

fn issuing() -> ApiServer {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    server
}

/// Issues certificates that are immediately due for renewal, and valid for one hour.
fn due_at_once() -> Signer {
    Signer::Issue(Issuance {
        lifetime: Some(Duration::from_secs(3600)),
        backdate: Duration::from_secs(3 * 3600),
        ..Issuance::default()
    })
}

/// A node that has the store of `joined` and the plugin for TPMs. This plugin has its own settings in addition to the
/// common settings.
fn with_store_of(joined: &Node, server: &ApiServer) -> Node {
    let mut node = Node::new(tpm::PLUGIN, server);
    node.set("stateDirectory", joined.state());
    node
}

#[test]
fn a_removed_setting_is_an_error_without_a_valid_certificate() {
    let server = issuing();
    let joined = Node::new(NULL, &server);
    let credential = joined.run().succeeded().pair();
    for (key, value, replacement) in REMOVED {
        for (place, code) in PLACES {
            let case = format!("{key} in {place:?}");
            let name = match place {
                Place::Option => settings::flag(key),
                Place::File | Place::DropIn => format!("key {key}"),
            };
            let words = format!("{name}: the setting was removed: ");

            let mut stays = with_store_of(&joined, &server);
            give(&mut stays, place, key, value);
            let run = stays.run().succeeded();
            assert_eq!(run.pair(), credential, "{case}");
            assert_eq!(run.stderr.lines().count(), 2, "{case}: {run:#?}");
            run.saying("warning: ").saying(&words).saying(replacement);

            let mut new = Node::new(tpm::PLUGIN, &server);
            give(&mut new, place, key, value);
            let run = new.run().failed(code);
            run.saying(&words).saying(replacement);

            let setup = new.command(&SETUP).failed(code);
            setup.saying(&words).saying(replacement);

            let missing = ["doctor", "--kubelet-kubeconfig", "/missing"];
            let doctor = stays.command(&missing);
            assert_eq!(doctor.code, Some(20), "{case}: {doctor:#?}");
            let report = doctor.stdout.split_whitespace();
            let report = report.collect::<Vec<_>>().join(" ");
            assert!(report.starts_with("fail settings: "), "{case}: {report}");
            assert!(report.contains(&words), "{case}: {report}");
        }
    }
    assert_eq!(server.creates(), 1);
}

#[test]
fn a_removed_setting_does_not_stop_a_renewal() {
    let server = ApiServer::start();
    server.set_signer(due_at_once());
    let mut node = Node::new(NULL, &server);
    let old = node.run().succeeded().pair();
    server.set_signer(Signer::issue());
    give(&mut node, Place::File, "signerName", "example.com/signer");

    let run = node.run().succeeded();

    assert_ne!(run.pair(), old);
    assert_eq!(run.stderr.lines().count(), 2, "{run:#?}");
    run.saying("warning: ").saying("key signerName");
}

#[test]
fn invalid_settings_keep_a_valid_certificate_in_use() {
    let server = issuing();
    let joined = Node::new(NULL, &server);
    let credential = joined.run().succeeded().pair();
    for (key, value, words) in [
        ("nodeNam", "n2", "key nodeNam: unknown key"),
        (
            "providerID",
            "i-1",
            "key providerID: a provider ID must have",
        ),
    ] {
        let mut node = with_store_of(&joined, &server);
        give(&mut node, Place::File, key, value);

        let run = node.run().succeeded();

        assert_eq!(run.pair(), credential);
        run.saying("warning: ").saying(words);
        node.command(&["credential"]).failed(3).saying(words);
        let mut new = Node::new(NULL, &server);
        give(&mut new, Place::File, key, value);
        new.run().failed(3).saying(words);
    }
    assert_eq!(server.creates(), 1);
}

#[test]
fn an_unknown_key_stops_a_renewal_and_the_old_certificate_is_printed() {
    let server = ApiServer::start();
    server.set_signer(due_at_once());
    let mut node = Node::new(NULL, &server);
    let old = node.run().succeeded().pair();
    give(&mut node, Place::File, "nodeNam", "n2");

    let run = node.run().succeeded();

    assert_eq!(run.pair(), old);
    assert_eq!(server.creates(), 1);
    assert_eq!(run.stderr.lines().count(), 2, "{run:#?}");
    run.saying("cannot renew the credential")
        .saying("key nodeNam");
}
