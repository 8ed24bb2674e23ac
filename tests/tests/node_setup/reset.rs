//! Tests of `kubeadm reset`, which does not remove the store or the environment file, and of the next join.

use std::fs;

use crate::bed::{Host, asked, issuing};

#[test]
fn the_kubelet_is_configured_after_kubeadm_reset_only_by_a_join() {
    let server = issuing();
    let host = Host::named(&server, "worker-1");
    host.setup().succeeded();
    let serial = host.node.serial();
    host.reset_by_kubeadm();
    let boot = "/proc/sys/kernel/random/boot_id";
    host.machine_file(boot, "another-boot\n");

    let run = host.setup().succeeded();

    assert!(
        run.stdout.starts_with("nothing to do: ") && run.stdout.ends_with(" does not exist\n"),
        "{run:#?}"
    );
    assert!(!host.kubelet_conf().exists());
    host.is_left_to_kubeadm();
    host.join_by_kubeadm(&server);
    host.setup().succeeded();
    host.is_set_up("plugin_under_test");
    assert_eq!(host.node.serial(), serial);
    assert_eq!(server.creates(), 1);
}

#[test]
fn a_join_under_another_name_discards_the_stored_certificate() {
    for is_early in [false, true] {
        for flag in ["", "--hostname-override=worker-2"] {
            let server = issuing();
            let mut host = Host::named(&server, "worker-1");
            host.setup().succeeded();
            host.reset_by_kubeadm();
            host.setup().succeeded();
            if flag.is_empty() {
                host.call("worker-2");
            }
            if is_early {
                // The kubelet starts after kubeadm has written the first of its files, and before it writes the second
                // file.
                server.kubeconfig().write(&host.from());
                host.setup().succeeded();
                assert_eq!(server.creates(), 1);
            }
            host.join_by_kubeadm(&server);
            let text = format!("KUBELET_KUBEADM_ARGS=\"{flag}\"\n");
            host.machine_file("/var/lib/kubelet/kubeadm-flags.env", &text);

            let run = host.setup().succeeded();

            let run = run
                .saying("its certificate is for node worker-1, but this machine joins as worker-2");
            assert!(!run.stderr.contains("has no credential"), "{run:#?}");
            assert_eq!(asked(&server), "worker-2");
            let argument = if flag.is_empty() { "--v=2" } else { flag };
            let name = if flag.is_empty() {
                "worker-2"
            } else {
                "worker-1"
            };
            host.kubelet(name, argument).succeeded().pair();
            // The next start does not change any file.
            let again = host.setup().succeeded();
            assert_eq!(again.stderr, "");
            assert_eq!(server.creates(), 2);
        }
    }
}

#[test]
fn a_join_under_the_same_name_keeps_the_stored_certificate() {
    let server = issuing();
    let host = Host::named(&server, "worker-1");
    host.setup().succeeded();
    host.reset_by_kubeadm();
    server.kubeconfig().write(&host.from());
    host.setup().succeeded();
    host.join_by_kubeadm(&server);

    host.setup().succeeded();

    assert_eq!(server.creates(), 1);
    let copy = fs::read_to_string(host.bootstrap()).unwrap();
    assert!(copy.starts_with("# Copied by `setup`: SHA-256 "), "{copy}");
}
