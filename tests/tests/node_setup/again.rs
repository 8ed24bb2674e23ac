//! Tests of `setup` on a machine that was set up before.

use std::fs;

use kubelet_authenticator_test_support::api_server::{
    ApiServer, Fault, Route, Signer, Times, Verb,
};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::node::{BOOTSTRAP_USER, NULL, PATIENCE, requesters};
use kubelet_authenticator_tests::program;

use crate::bed::{Host, issuing};

#[test]
fn setup_works_after_kubeadm_removes_the_bootstrap_kubeconfig() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    fs::remove_file(host.from()).unwrap();
    let conf = fs::read_to_string(host.kubelet_conf()).unwrap();
    for lost in [false, true] {
        if lost {
            fs::remove_file(host.environment()).unwrap();
        }

        let run = host.setup().succeeded();

        assert!(run.stdout.contains("already runs this plugin"), "{run:#?}");
        host.is_set_up(NULL);
        assert_eq!(fs::read_to_string(host.kubelet_conf()).unwrap(), conf);
    }
    assert_eq!(server.creates(), 1);
}

#[test]
fn an_unchanged_bootstrap_kubeconfig_is_not_copied_again() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    // An administrator has replaced the token, and the cluster has a different address.
    server
        .kubeconfig()
        .token("newer1.0123456789abcdef")
        .write(&host.bootstrap());
    let conf = fs::read_to_string(host.kubelet_conf()).unwrap();
    let conf = conf.replace(&server.url(), "https://moved.example:6443");
    fs::write(host.kubelet_conf(), &conf).unwrap();
    let bootstrap = fs::read_to_string(host.bootstrap()).unwrap();
    // `setup` does not copy a kubeconfig that is unusable, or that belongs to a different cluster.
    let other = ApiServer::start();
    for from in [
        server.kubeconfig(),
        other.kubeconfig(),
        server.kubeconfig().without_ca(),
    ] {
        from.write(&host.from());

        host.setup().succeeded();

        host.is_set_up(NULL);
        assert_eq!(fs::read_to_string(host.kubelet_conf()).unwrap(), conf);
        assert_eq!(fs::read_to_string(host.bootstrap()).unwrap(), bootstrap);
        assert!(host.node.file("kubelet-client.pem").exists());
    }
    assert_eq!((server.creates(), other.connections()), (1, 0));
}

#[test]
fn a_configured_kubelet_stays_configured_after_any_failure() {
    let server = issuing();
    let mut host = Host::joining(&server);
    host.setup().succeeded();
    // Another process holds the lock, and the settings are invalid.
    let lock = fs::File::open(host.node.file("lock")).unwrap();
    lock.lock().unwrap();

    host.setup().succeeded();

    host.is_set_up(NULL);
    drop(lock);
    let config = host.node.scratch().write("config.yaml", "nodeNam: x\n");
    host.node.set("config", &config);
    host.setup().failed(3).saying("nodeNam");
    host.is_set_up(NULL);
    // If there is no kubeconfig, old files from an earlier enrollment have no effect.
    fs::remove_file(host.kubelet_conf()).unwrap();
    host.setup().failed(3);
    host.is_left_to_kubeadm();
}

#[test]
fn setup_updates_the_path_of_a_moved_plugin() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    let conf = fs::read_to_string(host.kubelet_conf()).unwrap();
    let own = program(NULL).display().to_string();
    // Settings that an administrator has added do not change.
    let conf = conf.replace(
        "      interactiveMode",
        "      args: [\"--config=/etc/own.yaml\"]\n      # ours\n      env:\n      - name: HTTPS_PROXY\n        value: http://proxy:3128\n      interactiveMode",
    );
    let moved = conf.replace(&own, "/opt/old/kubelet-authenticator-null");
    assert_ne!(moved, conf);
    fs::write(host.kubelet_conf(), moved).unwrap();

    host.setup().succeeded();

    host.is_set_up(NULL);
    let after = fs::read_to_string(host.kubelet_conf()).unwrap();
    assert_eq!(after, conf);
    assert!(after.contains("--config=/etc/own.yaml"), "{after}");
}

#[test]
fn a_kubeconfig_with_the_bare_plugin_name_is_not_changed() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    let conf = fs::read_to_string(host.kubelet_conf()).unwrap();
    let own = program(NULL).display().to_string();
    let named = conf.replace(&own, NULL);
    assert_ne!(named, conf);
    fs::write(host.kubelet_conf(), &named).unwrap();

    host.setup().succeeded();

    assert_eq!(fs::read_to_string(host.kubelet_conf()).unwrap(), named);
}

#[test]
fn a_machine_that_joins_again_and_was_revoked_enrolls_with_its_new_token() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    let old = host.node.serial();
    // The calls are the check of the certificate, and the first request with the certificate.
    let lease = Route::new(Verb::Patch, "leases");
    server.inject(lease, Times::always(), Fault::status(403));
    server.inject(Route::create(), Times::once(), Fault::status(403));

    // The run is repeated until the API server responds in time, because the machine can be busy.
    let replaced = poll(PATIENCE, || {
        // An administrator runs `kubeadm reset` and `kubeadm join` after a reboot, with the cluster's current address.
        fs::remove_file(host.kubelet_conf()).unwrap();
        host.node.change("origin.json", |origin| {
            origin["bootId"] = "another boot".into();
            origin["endpoint"]["server"] = "https://127.0.0.1:1".into();
        });
        host.setup().succeeded();
        (host.node.serial() != old).then_some(())
    });

    assert!(replaced.is_some(), "{}", host.node.status());
    let last = requesters(&server).pop();
    assert_eq!(last.as_deref(), Some(BOOTSTRAP_USER));
}

#[test]
fn a_changed_cluster_address_is_used_for_the_next_request() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    host.node.change("origin.json", |origin| {
        origin["endpoint"]["server"] = "https://127.0.0.1:1".into();
    });
    fs::remove_file(host.kubelet_conf()).unwrap();
    fs::remove_file(host.node.file("kubelet-client.pem")).unwrap();

    let run = host.setup().succeeded();

    assert_eq!(run.stderr, "");
    assert_eq!(server.creates(), 2);
}

#[test]
fn a_machine_that_joins_another_cluster_drops_the_old_credential() {
    let (first, second) = (issuing(), issuing());
    let host = Host::joining(&first);
    host.setup().succeeded();
    let old = host.node.serial();
    // An administrator runs `kubeadm reset`, and joins the machine to another cluster.
    fs::remove_file(host.kubelet_conf()).unwrap();
    second.kubeconfig().write(&host.from());

    let run = host.setup().succeeded();

    run.saying("it belongs to a different cluster, but this machine joins");
    assert_ne!(host.node.serial(), old);
    assert_eq!(host.node.status()["server"], second.url());
    assert_eq!((first.creates(), second.creates()), (1, 1));

    // The machine joins the same cluster again, in which the certificate is valid.
    fs::remove_file(host.kubelet_conf()).unwrap();
    host.setup().succeeded();
    assert_eq!(second.creates(), 1);
}

#[test]
fn a_failure_of_an_earlier_join_does_not_delay_the_next_join() {
    let server = ApiServer::start();
    server.set_signer(Signer::deny(
        "MachineUnknown",
        "no machine has this provider ID",
    ));
    let host = Host::joining(&server);
    host.setup().succeeded().saying("MachineUnknown");
    server.set_signer(Signer::issue());
    fs::remove_file(host.kubelet_conf()).unwrap();

    let run = host.setup().succeeded();

    assert_eq!(run.stderr, "");
    assert_eq!(server.creates(), 2);
}
