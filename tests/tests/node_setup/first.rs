//! Tests of the first runs of `setup` on a machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use kubelet_authenticator::testing::{Kubeconfig, Login};
use kubelet_authenticator_test_support::api_server::{
    ApiServer, Kubeconfig as File, Signer, TOKEN,
};
use kubelet_authenticator_test_support::pki::{Contents, Subject};
use kubelet_authenticator_tests::node::{NULL, UNDER_TEST, is_pair};
use kubelet_authenticator_tests::steps;

use crate::bed::{Host, asked, issuing, mode_of};

#[test]
fn setup_after_kubeadm_join_configures_the_kubelet_and_enrolls() {
    let server = issuing();
    let host = Host::joining(&server);

    let run = host.setup().succeeded();

    assert!(run.stdout.starts_with("kubelet set up: "), "{run:#?}");
    assert_eq!(run.stderr, "");
    host.is_set_up(NULL);
    for path in [host.bootstrap(), host.kubelet_conf(), host.environment()] {
        assert_eq!(mode_of(&path), 0o600, "{}", path.display());
    }
    let bootstrap = Kubeconfig::read(&host.bootstrap()).unwrap();
    let Login::Token(token) = &bootstrap.login else {
        panic!("{bootstrap:?}")
    };
    assert_eq!(token.expose(), TOKEN);
    let endpoint = Kubeconfig::read_endpoint(&host.kubelet_conf()).unwrap();
    assert_eq!(endpoint.to_fields(), bootstrap.endpoint.to_fields());
    assert_eq!(endpoint.ca_pem(), server.ca_pem());
    assert!(is_pair(&host.node.file("kubelet-client.pem")));
    // The kubelet's first call does not wait, and no longer needs kubeadm's files.
    fs::remove_file(host.from()).unwrap();
    host.node.run().succeeded().pair();
    assert_eq!(server.creates(), 1);
}

#[test]
fn setup_warns_about_a_plugin_that_another_user_can_change() {
    const WARNING: &str = "another user can change the program that the kubelet runs as root: ";
    let server = issuing();
    let mut host = Host::joining(&server);
    let folder = host.node.move_program();
    let place = folder.display();

    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let run = host.setup().succeeded();
    let words = format!("{WARNING}{place} has mode 0777, so other users can write it");
    run.saying(&words).follow_hint();

    assert_eq!(host.setup().succeeded().stderr, "");
}

#[test]
fn a_bootstrap_kubeconfig_with_too_many_ca_certificates_is_refused() {
    let server = issuing();
    let host = Host::joining(&server);
    let ca = server.ca_pem();
    let many = ca.repeat(100 * 1024 / ca.len());
    server.kubeconfig().ca_data(&many).write(&host.from());

    let run = host.setup().failed(3);

    run.saying(host.from().to_str().unwrap()).saying("131072");
    host.is_left_to_kubeadm();
    assert_eq!(server.creates(), 0);
}

#[test]
fn setup_copies_the_cluster_settings_from_the_bootstrap_kubeconfig() {
    let server = issuing();
    let name = "kubernetes.default.svc";
    let proxied = "http://user:pa\"55 @proxy.example:3128";
    for (file, expected) in [
        (
            server.kubeconfig().tls_server_name(name),
            (Some(name), None),
        ),
        (
            server.kubeconfig().proxy_url("http://proxy.example:3128"),
            (None, Some("http://proxy.example:3128")),
        ),
        (server.kubeconfig().other_contexts(3), (None, None)),
    ] {
        let mut host = Host::new(NULL, &server);
        host.node.set("timeLimit", "1");
        file.write(&host.from());

        host.setup().succeeded();

        for path in [host.bootstrap(), host.kubelet_conf()] {
            let fields = Kubeconfig::read_endpoint(&path).unwrap().to_fields();
            let told = (fields.tls_server_name, fields.proxy_url);
            let expected = (expected.0.map(str::to_owned), expected.1.map(str::to_owned));
            assert_eq!(told, expected, "{}", path.display());
            assert_eq!(fields.ca_pem, server.ca_pem());
        }
    }
    // A password can contain any characters.
    let mut host = Host::new(NULL, &server);
    host.node.set("timeLimit", "1");
    server.kubeconfig().proxy_url(proxied).write(&host.from());
    let run = host.setup().succeeded();
    assert!(
        !run.stderr.contains("pa\"55") && !run.stderr.contains("pa%2255"),
        "{run:#?}"
    );
    let given = Kubeconfig::read_endpoint(&host.from()).unwrap().to_fields();
    for path in [host.bootstrap(), host.kubelet_conf()] {
        assert_eq!(Kubeconfig::read_endpoint(&path).unwrap().to_fields(), given);
    }
}

#[test]
fn a_killed_setup_is_completed_at_the_next_start_of_the_kubelet() {
    let mut with_arguments = 0;
    for step in steps::SETUP.into_iter().chain(steps::RUN) {
        let server = issuing();
        let mut host = Host::new(UNDER_TEST, &server);
        server.kubeconfig().write(&host.from());
        host.node.set_env("KILL_AT", format!("{step:?}"));

        let killed = host.setup();

        assert_eq!(killed.code, None, "{step:?}: {killed:#?}");
        // The kubelet gets these arguments only if it has a kubeconfig.
        if host.environment().exists() {
            let command = Kubeconfig::read_exec_command(&host.kubelet_conf()).unwrap();
            assert!(command.is_some(), "{step:?}");
            with_arguments += 1;
        }
        host.node.unset_env("KILL_AT");
        host.setup().succeeded();
        let conf = fs::read_to_string(host.kubelet_conf()).unwrap();
        assert!(conf.contains(UNDER_TEST), "{conf}");
        assert!(host.environment().exists(), "{step:?}");
        assert_eq!(server.csrs().len(), 1, "{step:?}");
        assert!(is_pair(&host.node.file("kubelet-client.pem")), "{step:?}");
    }
    assert!(with_arguments > 1, "no run ended after the arguments");
}

#[test]
fn setup_does_nothing_on_a_node_without_a_bootstrap_kubeconfig() {
    let server = issuing();
    let own = |server: &ApiServer| {
        server
            .kubeconfig()
            .client_certificate(&server.admin_certificate())
    };
    let other = |server: &ApiServer| {
        server.kubeconfig().exec(
            Path::new("/usr/bin/aws"),
            "client.authentication.k8s.io/v1",
            false,
        )
    };
    type Make = fn(&ApiServer) -> File;
    for (kubelet_conf, bootstrap, why) in [
        (None, false, "bootstrap-kubelet.conf does not exist"),
        // This is the state after `kubeadm init`.
        (
            Some(own as Make),
            false,
            "contains a credential instead of the plugin",
        ),
        (
            Some(own as Make),
            true,
            "contains a credential instead of the plugin",
        ),
        (
            Some(other as Make),
            true,
            "runs a different plugin: /usr/bin/aws",
        ),
    ] {
        let host = Host::new(NULL, &server);
        let before = kubelet_conf.map(|make| make(&server).write(&host.kubelet_conf()));
        let before = before.map(|path| fs::read_to_string(path).unwrap());
        if bootstrap {
            server.kubeconfig().write(&host.from());
        }
        // A file that remains from an earlier enrollment of the machine. Without a kubeconfig for the kubelet, this file
        // means that the kubeconfig is lost.
        if before.is_some() {
            fs::create_dir_all(host.environment().parent().unwrap()).unwrap();
            fs::write(
                host.environment(),
                "KUBELET_KUBECONFIG_ARGS=--kubeconfig=/old",
            )
            .unwrap();
        }

        let run = host.setup().succeeded();

        assert!(run.stdout.starts_with("nothing to do: "), "{run:#?}");
        assert!(run.stdout.contains(why), "{run:#?}");
        assert_eq!(run.stderr, "");
        host.is_left_to_kubeadm();
        assert_eq!(fs::read_to_string(host.kubelet_conf()).ok(), before);
        assert!(!host.bootstrap().exists());
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_machine_that_has_no_name_yet_is_set_up_and_enrolls_later() {
    let server = issuing();
    let host = Host::joining(&server);
    let flags = fs::read_to_string(host.kubeadm_flags()).unwrap();
    fs::remove_file(host.kubeadm_flags()).unwrap();

    host.setup().succeeded();

    host.is_set_up(NULL);
    assert_eq!(server.connections(), 0);
    assert!(!host.node.file("origin.json").exists());
    fs::write(host.kubeadm_flags(), flags).unwrap();
    host.setup().succeeded();
    assert_eq!(server.creates(), 1);
    assert!(is_pair(&host.node.file("kubelet-client.pem")));
}

#[test]
fn a_refused_machine_reports_the_reason_and_its_kubelet_retries() {
    let server = ApiServer::start();
    server.set_signer(Signer::deny(
        "MachineUnknown",
        "no machine has this provider ID",
    ));
    let mut host = Host::joining(&server);

    let run = host.setup().succeeded();

    let run = run.saying("the kubelet is set up, but has no credential yet");
    run.saying("MachineUnknown").saying("hint: ");
    host.is_set_up(NULL);
    // Each kubelet start runs `setup` again. During the back-off, `setup` reports the recorded failure.
    host.setup().succeeded().saying("back-off until ");
    assert_eq!(server.creates(), 1);
    server.set_signer(Signer::issue());
    host.node.command(&["renew"]).succeeded();
    assert_eq!(host.setup().succeeded().stderr, "");

    // The controller does not decide within the time limit.
    server.set_signer(Signer::Off);
    host = Host::joining(&server);
    host.node.set("timeLimit", "1");
    host.setup().succeeded().saying("has no credential yet");
    host.is_set_up(NULL);
}

#[test]
fn a_node_that_cannot_be_set_up_is_left_to_kubeadm_with_the_reason() {
    let server = issuing();
    let exec = |file: File| {
        file.exec(
            Path::new("/bin/true"),
            "client.authentication.k8s.io/v1",
            false,
        )
    };
    for (file, why) in [
        (
            exec(server.kubeconfig()),
            "exec plugins are not accepted in this kubeconfig",
        ),
        (
            server.kubeconfig().without_ca(),
            "the cluster's CA is missing",
        ),
        (
            server.kubeconfig().insecure_skip_tls_verify(),
            "the server is always verified",
        ),
    ] {
        let host = Host::new(NULL, &server);
        file.write(&host.from());
        fs::create_dir_all(host.environment().parent().unwrap()).unwrap();
        fs::write(host.environment(), "").unwrap();

        host.setup().failed(3).saying(why);

        host.is_left_to_kubeadm();
        assert!(!host.kubelet_conf().exists());
    }
    // A file exists instead of a directory.
    let mut host = Host::joining(&server);
    fs::write(host.etc.join("in-the-way"), "").unwrap();
    host.node.set(
        "bootstrapKubeconfig",
        host.etc.join("in-the-way/bootstrap.kubeconfig"),
    );
    host.setup()
        .failed(4)
        .saying("cannot write")
        .saying("in-the-way");
    host.is_left_to_kubeadm();
    assert!(!host.kubelet_conf().exists());
    assert_eq!(server.connections(), 0);
}

#[test]
fn an_adopted_node_is_configured_only_after_it_enrolls() {
    let server = ApiServer::start();
    server.set_signer(Signer::deny("AdoptionRefused", "ask the operator"));
    let host = Host::new(NULL, &server);
    let own = server
        .kubeconfig()
        .client_certificate(&server.admin_certificate());
    own.write(&host.kubelet_conf());
    let before = fs::read_to_string(host.kubelet_conf()).unwrap();
    let conf = host.kubelet_conf();
    let adopt = ["--from", conf.to_str().unwrap()];

    host.setup_with(&adopt).failed(12).saying("AdoptionRefused");

    assert_eq!(fs::read_to_string(host.kubelet_conf()).unwrap(), before);
    host.is_left_to_kubeadm();

    server.set_signer(Signer::issue());
    host.node.command(&["renew"]).succeeded();
    host.setup_with(&adopt).succeeded();

    host.is_set_up(NULL);
    let bootstrap = Kubeconfig::read(&host.bootstrap()).unwrap();
    assert!(matches!(bootstrap.login, Login::ClientCertificate { .. }));
    let again = host.setup_with(&adopt).succeeded();
    assert!(
        again.stdout.contains("already runs this plugin"),
        "{again:#?}"
    );
    host.is_set_up(NULL);
}

#[test]
fn an_adopted_node_does_not_use_a_token_of_another_cluster() {
    let (server, other) = (ApiServer::start(), ApiServer::start());
    server.set_signer(Signer::deny("AdoptionRefused", "ask the operator"));
    let host = Host::new(NULL, &server);
    let own = server
        .kubeconfig()
        .client_certificate(&server.admin_certificate());
    own.write(&host.kubelet_conf());
    let conf = host.kubelet_conf();
    let adopt = ["--from", conf.to_str().unwrap()];
    host.setup_with(&adopt).failed(12).saying("AdoptionRefused");
    other.kubeconfig().write(&host.bootstrap());
    server.set_signer(Signer::issue());

    host.setup_with(&adopt).succeeded();

    host.is_set_up(NULL);
    let bootstrap = Kubeconfig::read(&host.bootstrap()).unwrap();
    assert!(matches!(bootstrap.login, Login::ClientCertificate { .. }));
    assert_eq!(bootstrap.endpoint.ca_pem(), server.ca_pem());
}

#[test]
fn the_hint_for_an_expired_certificate_adopts_the_node_with_a_token() {
    let server = issuing();
    let mut host = Host::named(&server, "worker-1");
    fs::remove_file(host.from()).unwrap();
    let ended = Contents::client(Subject::node("worker-1")).expired();
    let ended = server.authority().issue(&ended);
    let own = server.kubeconfig().client_certificate(&ended);
    own.write(&host.kubelet_conf());
    let conf = host.kubelet_conf();
    let adopt = ["--from", conf.to_str().unwrap()];
    let copy = host.bootstrap();
    let hint = "write a kubeconfig with a new bootstrap token to";
    let hint = format!("{hint} {}", copy.display());

    for _ in 0..2 {
        let refused = host.setup_with(&adopt).failed(9);
        refused.saying("401 Unauthorized").saying(&hint);
    }
    server.kubeconfig().write(&copy);
    host.setup_with(&adopt).succeeded();

    host.is_set_up(UNDER_TEST);
    let kept = fs::read_to_string(&copy).unwrap();
    assert!(kept.contains(TOKEN), "{kept}");
    assert_eq!(asked(&server), "worker-1");
    host.kubelet("worker-1", "--v=2").succeeded().pair();
}
