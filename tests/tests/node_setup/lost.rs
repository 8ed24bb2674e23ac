//! Tests of a kubelet's kubeconfig that is lost, empty, invalid or unreadable.

use std::fs;

use kubelet_authenticator_tests::node::UNDER_TEST;
use kubelet_authenticator_tests::program;

use crate::bed::{CONFIGURATION, Host, issuing};

/// A machine on which `setup` has run, and on which kubeadm's bootstrap kubeconfig does not exist.
fn set_up() -> Host {
    let server = issuing();
    let host = Host::named(&server, "worker-1");
    host.setup().succeeded();
    fs::remove_file(host.from()).unwrap();
    host
}

#[test]
fn a_lost_or_empty_kubeconfig_is_restored_from_the_store() {
    for content in [None, Some(""), Some(" \n"), Some("\0\0\0\0")] {
        for environment in [true, false] {
            let host = set_up();
            let conf = host.conf();
            match content {
                Some(content) => fs::write(host.kubelet_conf(), content).unwrap(),
                None => fs::remove_file(host.kubelet_conf()).unwrap(),
            }
            if !environment {
                // An earlier release removed this file.
                fs::remove_file(host.environment()).unwrap();
            }

            let run = host.setup().succeeded();

            assert!(run.stdout.contains("restored the missing "), "{run:#?}");
            assert_eq!(host.conf(), conf);
            host.is_set_up(UNDER_TEST);
            host.setup().succeeded();
        }
    }
}

#[test]
fn a_kubeconfig_is_restored_despite_an_invalid_bootstrap_kubeconfig() {
    let host = set_up();
    let conf = host.conf();
    fs::remove_file(host.kubelet_conf()).unwrap();
    fs::write(host.from(), "{").unwrap();

    let run = host.setup().succeeded();

    run.saying(host.from().to_str().unwrap());
    assert_eq!(host.conf(), conf);
    host.is_set_up(UNDER_TEST);
}

#[test]
fn a_kubeconfig_lost_before_the_first_certificate_is_restored() {
    let server = issuing();
    let host = Host::named(&server, "worker-1");
    server.revoke_token("abcdef");
    host.setup().succeeded().saying("has no credential yet");
    fs::remove_file(host.from()).unwrap();
    fs::remove_file(host.kubelet_conf()).unwrap();

    host.setup().succeeded();

    host.is_set_up(UNDER_TEST);
}

#[test]
fn a_kubeconfig_for_an_unknown_cluster_is_not_restored_without_a_token() {
    for content in [None, Some("")] {
        let server = issuing();
        let host = Host::named(&server, "worker-1");
        host.setup().succeeded();
        fs::remove_file(host.from()).unwrap();
        // A crash has damaged the files that contain the cluster.
        fs::write(host.node.file("origin.json"), "\0\0").unwrap();
        fs::write(host.bootstrap(), "{").unwrap();
        match content {
            Some(content) => fs::write(host.kubelet_conf(), content).unwrap(),
            None => fs::remove_file(host.kubelet_conf()).unwrap(),
        }

        let run = host.setup().failed(3);

        let [conf, copy, from] = [host.kubelet_conf(), host.bootstrap(), host.from()];
        let run = run.saying(&format!("cannot restore {}: ", conf.display()));
        let run = run.saying(copy.to_str().unwrap());
        run.saying(&format!(
            "write a kubeconfig with a bootstrap token to {}, and restart the kubelet",
            from.display()
        ));
        assert!(host.environment().exists());
        // The test follows the hint.
        server.kubeconfig().write(&from);
        let run = host.setup().succeeded();
        assert!(!run.stderr.contains("has no credential"), "{run:#?}");
        host.is_set_up(UNDER_TEST);
    }
}

#[test]
fn an_invalid_kubeconfig_fails_and_the_environment_file_is_kept() {
    for make in [
        (|host: &Host| fs::write(host.kubelet_conf(), "users: [").unwrap()) as fn(&Host),
        |host| fs::write(host.kubelet_conf(), "kind: Config\n").unwrap(),
        |host| {
            fs::remove_file(host.kubelet_conf()).unwrap();
            fs::create_dir(host.kubelet_conf()).unwrap();
        },
    ] {
        let host = set_up();
        let environment = fs::read_to_string(host.environment()).unwrap();
        let conf = host.conf();
        make(&host);

        for run in [host.setup(), host.undo()] {
            run.failed(3).saying(host.kubelet_conf().to_str().unwrap());
            let kept = fs::read_to_string(host.environment()).unwrap();
            assert_eq!(kept, environment);
        }
        // The test follows the hint, and removes the kubeconfig.
        if host.kubelet_conf().is_file() {
            fs::remove_file(host.kubelet_conf()).unwrap();
            host.setup().succeeded();
            assert_eq!(host.conf(), conf);
        }
    }
}

#[test]
fn the_error_names_both_a_lost_kubeconfig_and_configuration() {
    let host = set_up();
    fs::remove_file(host.kubelet_conf()).unwrap();
    fs::remove_file(host.machine_path(CONFIGURATION)).unwrap();

    let run = host.setup().failed(3);

    let run = run
        .saying(host.kubelet_conf().to_str().unwrap())
        .saying(CONFIGURATION);
    let plugin = program(UNDER_TEST).display().to_string();
    let hint = format!("run `{plugin} render kubeconfig --command {plugin} > ");
    run.saying(&hint);
    assert!(host.environment().exists());
    // Run the command in the hint.
    let rendered = ["render", "kubeconfig", "--command", &plugin];
    let rendered = host.node.command(&rendered).succeeded();
    fs::write(host.kubelet_conf(), rendered.stdout).unwrap();
    host.is_set_up(UNDER_TEST);
    host.setup().succeeded();
    host.is_set_up(UNDER_TEST);
}

#[test]
fn the_error_contains_the_missing_file_of_a_bootstrap_kubeconfig() {
    let server = issuing();
    let missing = |key: &str| {
        server
            .kubeconfig()
            .user(serde_json::json!({ key: "/none/token" }))
    };
    let ca = server.kubeconfig().without_ca();
    let ca = ca.cluster_field("certificate-authority", "/none/ca.crt".into());
    for (file, path) in [(missing("tokenFile"), "/none/token"), (ca, "/none/ca.crt")] {
        let host = Host::named(&server, "worker-1");
        file.write(&host.from());

        host.setup().failed(3).saying(path);

        host.is_left_to_kubeadm();
    }
    // The kubeconfig contains the certificate of a kubelet that can be adopted.
    let host = Host::named(&server, "worker-1");
    let pair = serde_json::json!({"client-certificate": "/none/current.pem", "client-key": "/none/current.pem"});
    server.kubeconfig().user(pair).write(&host.kubelet_conf());
    let conf = host.kubelet_conf();
    let adopt = ["--from", conf.to_str().unwrap()];
    host.setup_with(&adopt)
        .failed(3)
        .saying("/none/current.pem");
    fs::remove_file(&conf).unwrap();
    host.setup_with(&adopt)
        .failed(3)
        .saying(conf.to_str().unwrap());
    assert_eq!(server.connections(), 0);
}
