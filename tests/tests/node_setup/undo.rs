//! Tests of `setup --undo`, which removes the plugin.

use std::fs;

use kubelet_authenticator::testing::{Kubeconfig, Login};
use kubelet_authenticator_tests::node::NULL;

use crate::bed::{Host, issuing, mode_of};

#[test]
fn setup_undo_installs_the_stored_certificate_for_the_kubelet() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    let stored = fs::read_to_string(host.node.file("kubelet-client.pem")).unwrap();
    // The cluster's address has changed since the join.
    let moved = "https://moved.example:6443";
    let conf = fs::read_to_string(host.kubelet_conf()).unwrap();
    fs::write(host.kubelet_conf(), conf.replace(&server.url(), moved)).unwrap();

    let run = host.undo().succeeded();

    assert!(run.stdout.contains("remove the drop-in"), "{run:#?}");
    host.is_left_to_kubeadm();
    assert_eq!(fs::read_to_string(host.pair()).unwrap(), stored);
    assert_eq!(mode_of(&host.pair()), 0o600);
    // The link has the format that the kubelet writes, because the kubelet replaces only such links.
    let target = fs::read_link(host.pair()).unwrap();
    let name = target.file_name().unwrap().to_str().unwrap();
    let stamp = name
        .strip_prefix("kubelet-client-")
        .unwrap()
        .strip_suffix(".pem")
        .unwrap();
    let digits = stamp.split('-').map(str::len);
    assert!(digits.eq([4, 2, 2, 2, 2, 2]), "{name}");
    assert_eq!(target.parent(), host.pair().parent());
    let kubeconfig = Kubeconfig::read(&host.kubelet_conf()).unwrap();
    let Login::ClientCertificate { chain_pem, .. } = &kubeconfig.login else {
        panic!("{kubeconfig:?}")
    };
    // The key is in the same file as the certificate chain, but is not a part of the chain.
    assert!(stored.starts_with(chain_pem.trim_end()), "{chain_pem}");
    assert!(!chain_pem.contains("PRIVATE"), "{chain_pem}");
    assert_eq!(kubeconfig.endpoint.server(), moved);
    assert_eq!(kubeconfig.endpoint.ca_pem(), server.ca_pem());
    // If the drop-in remains, the next start does not change any file.
    let conf = fs::read_to_string(host.kubelet_conf()).unwrap();
    let results = [
        (host.setup(), "nothing to do: "),
        (host.undo(), "nothing to undo: "),
    ];
    for (run, result) in results {
        assert!(run.succeeded().stdout.starts_with(result));
        host.is_left_to_kubeadm();
        assert_eq!(fs::read_to_string(host.kubelet_conf()).unwrap(), conf);
    }
}

#[test]
fn setup_undo_without_a_valid_certificate_has_no_effect() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    host.node.command(&["reset", "--yes"]).succeeded();

    host.undo()
        .failed(4)
        .saying("no valid certificate")
        .saying("kubeadm reset");

    host.is_set_up(NULL);
    assert!(!host.pair().exists());
}
