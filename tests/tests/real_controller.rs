//! The controller on real Kubernetes, beside kube-controller-manager with all that kubeadm has it run, and with no more
//! rights than it needs.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding, User,
};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_tests::controller::{
    Application, Controller, Machine, PATIENCE, Setup, certificate_of, inventory, reason_of,
};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

/// Who the controller is to the cluster.
const CONTROLLER: &str = "node-attestation-controller";

const SECRET: &str = "0123456789abcdef";

/// A cluster in which tokens may ask, and nothing but us answers; and in which we have our rights.
static CLUSTER: LazyLock<ControlPlane> = LazyLock::new(|| {
    let cluster = ControlPlane::builder()
        .controllers(Controllers::Default)
        .start();
    cluster.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    grant(&cluster, CONTROLLER, &["approve", "sign"]);
    cluster
});

/// Grants what the controller needs to `user`, with these verbs on its signers.
fn grant(cluster: &ControlPlane, user: &str, verbs: &[&str]) {
    let rbac = "rbac.authorization.k8s.io";
    let requests = "certificates.k8s.io";
    let subjects = json!([{"apiGroup": rbac, "kind": "User", "name": user}]);
    let signers = [Provider::INSECURE, Provider::NULL].map(|provider| provider.client_signer());
    let role = |kind: &str| json!({"apiGroup": rbac, "kind": kind, "name": user});
    for object in [
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
            "metadata": {"name": user},
            "rules": [
                {
                    "apiGroups": [requests], "resources": ["certificatesigningrequests"],
                    "verbs": ["get", "list", "watch"],
                },
                {
                    "apiGroups": [requests],
                    "resources": [
                        "certificatesigningrequests/approval",
                        "certificatesigningrequests/status",
                    ],
                    "verbs": ["update"],
                },
                {
                    "apiGroups": [requests], "resources": ["signers"],
                    "resourceNames": signers, "verbs": verbs,
                },
            ],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": role("ClusterRole"), "subjects": subjects,
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "Role",
            "metadata": {"name": user, "namespace": "default"},
            "rules": [{
                "apiGroups": ["events.k8s.io"], "resources": ["events"],
                "verbs": ["create", "patch"],
            }],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": {"name": user, "namespace": "default"},
            "roleRef": role("Role"), "subjects": subjects,
        }),
    ] {
        cluster.kubectl().apply_object(&object);
    }
}

/// The files of a controller for this machine.
fn setup(cluster: &ControlPlane, user: &str, program: &Path, machines: &[Machine]) -> Setup {
    let kubeconfig = cluster.client_cert_kubeconfig(user, None);
    let ca = (cluster.ca_cert_path(), cluster.ca_key_path());
    Setup::new(program, &kubeconfig, (&ca.0, &ca.1), machines)
}

fn insecure(machines: &[Machine]) -> Setup {
    let program = program("node-attestation-controller");
    setup(&CLUSTER, CONTROLLER, &program, machines).args(&["--allow-insecure"])
}

fn null(machines: &[Machine]) -> Setup {
    setup(&CLUSTER, CONTROLLER, null_program(), machines)
}

fn null_program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_null-attestation-controller"))
}

/// Files the request with its token, which is made for it; gives its name.
fn file(cluster: &ControlPlane, application: &Application) -> String {
    let token = cluster.add_bootstrap_token(application.token(), SECRET);
    let kubectl = cluster.kubectl_with(cluster.bootstrap_kubeconfig(&token));
    kubectl.apply_object(&application.to_json());
    application.name()
}

fn request(cluster: &ControlPlane, name: &str) -> Value {
    cluster
        .kubectl()
        .json(["get", "certificatesigningrequests", name])
}

#[track_caller]
fn wait_for_answer(cluster: &ControlPlane, name: &str) -> Value {
    cluster.wait_for_csr(&format!("{name} with an answer"), |csr| {
        csr["metadata"]["name"] == name && is_answered(csr)
    })
}

fn is_answered(csr: &Value) -> bool {
    certificate_of(csr).is_some()
        || ["Denied", "Failed"]
            .iter()
            .any(|kind| reason_of(csr, kind).is_some())
}

fn conditions(csr: &Value) -> Vec<&str> {
    let conditions = csr["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .filter_map(|one| one["type"].as_str())
        .collect()
}

/// A kubeconfig with the certificate that was issued.
fn kubeconfig_of(cluster: &ControlPlane, application: &Application, csr: &Value) -> PathBuf {
    let certificate_pem = certificate_of(csr).expect("a certificate");
    let key_pem = application.key_pem().to_owned();
    cluster.kubeconfig(User::Certificate(KeyAndCertificate {
        certificate_pem,
        key_pem,
    }))
}

/// Files the request as a node that has a certificate.
fn file_as_node(node: &Path, application: &Application) -> String {
    CLUSTER
        .kubectl_with(node)
        .apply_object(&application.to_json());
    application.name()
}

/// The UID that the API server reads out of this kubeconfig's certificate.
fn uid_of(node: &Path) -> String {
    let who = CLUSTER.kubectl_with(node).json(["auth", "whoami"]);
    who["status"]["userInfo"]["uid"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Our words about rights, in its log.
fn complaints(controller: &Controller) -> Vec<String> {
    let lines = controller.lines();
    lines
        .iter()
        .filter_map(|line| line["fields"]["right"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn a_node_is_who_its_certificate_says_and_the_least_rights_suffice() {
    const MACHINE: Machine = Machine {
        name: "issued",
        token: "issue1",
    };
    let mut controller = insecure(&[MACHINE]).start();
    let application = Application::insecure(MACHINE);
    let name = file(&CLUSTER, &application);

    let csr = wait_for_answer(&CLUSTER, &name);

    assert_eq!(conditions(&csr), ["Approved"]);
    assert_eq!(reason_of(&csr, "Approved"), Some("NodeNameClaimed"));
    let node = CLUSTER.kubectl_with(kubeconfig_of(&CLUSTER, &application, &csr));
    let who = node.json(["auth", "whoami"]);
    let user = &who["status"]["userInfo"];
    assert_eq!(user["username"], "system:node:issued");
    assert_eq!(
        user["groups"],
        json!(["system:nodes", "system:authenticated"])
    );
    let uid = user["uid"].as_str().unwrap();
    assert!(uid.len() == 34 && uid.ends_with(".1"), "{uid}");

    controller.wait_for_line("the API server answers", |_| true);
    assert_eq!(complaints(&controller), Vec::<String>::new());
    let field = format!("involvedObject.name={name}");
    let event = CLUSTER.kubectl().wait_for(
        &["events", "--namespace=default", "--field-selector", &field],
        "about the request",
        PATIENCE,
        |_| true,
    );
    assert_eq!(
        (&event["type"], &event["reason"]),
        (&json!("Normal"), &json!("Issued"))
    );
}

#[test]
fn a_denial_stays_the_only_answer_beside_kube_controller_manager() {
    const MINE: Machine = Machine {
        name: "denied",
        token: "deny01",
    };
    const OTHER: Machine = Machine {
        name: "denied-other",
        token: "deny02",
    };
    let _controller = insecure(&[MINE, OTHER]).start();
    let name = file(&CLUSTER, &Application::insecure(MINE).with_token_of(OTHER));

    let csr = wait_for_answer(&CLUSTER, &name);

    assert_eq!(conditions(&csr), ["Denied"]);
    assert!(certificate_of(&csr).is_none());
}

#[test]
fn evidence_of_another_version_fails_with_the_annotation() {
    const MACHINE: Machine = Machine {
        name: "failed",
        token: "fail01",
    };
    let _controller = null(&[MACHINE]).start();
    let evidence = br#"{"version":"v2","audience":"a"}"#.to_vec();
    let name = file(
        &CLUSTER,
        &Application::new(MACHINE, Provider::NULL, Some(evidence)),
    );

    let csr = wait_for_answer(&CLUSTER, &name);

    assert_eq!(conditions(&csr), ["Failed"]);
    assert_eq!(
        reason_of(&csr, "Failed"),
        Some("UnsupportedAttestationVersion")
    );
    let annotations = &csr["metadata"]["annotations"];
    assert_eq!(
        annotations["attestation.cluster.x-k8s.io/supported-versions"],
        "v1"
    );
}

#[test]
fn what_must_wait_is_not_touched_and_is_served_in_the_end() {
    const MACHINE: Machine = Machine {
        name: "waiting",
        token: "wait01",
    };
    let setup = null(&[]);
    let mut controller = setup.start();
    let name = file(
        &CLUSTER,
        &Application::null(MACHINE, CLUSTER.ca().certificate_pem()),
    );
    let before = request(&CLUSTER, &name);

    assert_eq!(controller.wait_for_decision(&name)["outcome"], "deferred");
    assert_eq!(request(&CLUSTER, &name), before);

    setup.write_inventory(&inventory(&[MACHINE]));
    assert!(certificate_of(&wait_for_answer(&CLUSTER, &name)).is_some());
}

#[test]
fn an_approval_by_an_administrator_does_not_get_a_bad_request_signed() {
    const MINE: Machine = Machine {
        name: "approved",
        token: "appr01",
    };
    const OTHER: Machine = Machine {
        name: "approved-other",
        token: "appr02",
    };
    let name = file(&CLUSTER, &Application::insecure(MINE).with_token_of(OTHER));
    CLUSTER.kubectl().ok(["certificate", "approve", &name]);

    let _controller = insecure(&[MINE, OTHER]).start();
    let csr = wait_for_answer(&CLUSTER, &name);

    assert_eq!(conditions(&csr), ["Approved", "Failed"]);
    assert!(certificate_of(&csr).is_none());
}

#[test]
fn approve_and_sign_are_done_by_two_lives_of_the_controller() {
    for (point, machine, approved) in [
        (
            "claim",
            Machine {
                name: "crash-claim",
                token: "crash1",
            },
            false,
        ),
        (
            "approve",
            Machine {
                name: "crash-approve",
                token: "crash2",
            },
            true,
        ),
        (
            "publish",
            Machine {
                name: "crash-publish",
                token: "crash3",
            },
            true,
        ),
    ] {
        let setup = null(&[machine]);
        let application = Application::null(machine, CLUSTER.ca().certificate_pem());
        let name = file(&CLUSTER, &application);
        setup
            .start_with(&["--crash-after", point])
            .wait_until_it_crashed();
        let between = request(&CLUSTER, &name);
        assert_eq!(conditions(&between) == ["Approved"], approved, "{point}");
        assert_eq!(
            certificate_of(&between).is_some(),
            point == "publish",
            "{point}"
        );

        let _controller = setup.start();
        let csr = wait_for_answer(&CLUSTER, &name);

        let node = CLUSTER.kubectl_with(kubeconfig_of(&CLUSTER, &application, &csr));
        node.ok(["auth", "whoami"]);
        assert_eq!(conditions(&csr), ["Approved"], "{point}");
    }
}

#[test]
fn an_api_server_that_restarts_is_found_again() {
    const MACHINE: Machine = Machine {
        name: "restarted",
        token: "rest01",
    };
    let mut cluster = ControlPlane::start();
    cluster.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    grant(&cluster, CONTROLLER, &["approve", "sign"]);
    let setup = setup(&cluster, CONTROLLER, null_program(), &[MACHINE]);
    let mut controller = setup.start();
    controller.wait_until_it_watches();

    cluster.restart_apiserver();
    let application = Application::null(MACHINE, cluster.ca().certificate_pem());
    let name = file(&cluster, &application);

    assert!(certificate_of(&wait_for_answer(&cluster, &name)).is_some());
}

#[test]
fn a_missing_right_is_named_and_what_hung_on_it_is_done_once_it_is_granted() {
    const MACHINE: Machine = Machine {
        name: "rights",
        token: "right1",
    };
    const USER: &str = "controller-without-sign";
    let cluster = ControlPlane::start();
    cluster.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    grant(&cluster, USER, &["approve"]);
    let mut controller = setup(&cluster, USER, null_program(), &[MACHINE]).start();
    let sign = format!(
        "sign signers.certificates.k8s.io/{}",
        Provider::NULL.client_signer()
    );
    let missing = "a right is missing without which requests cannot be answered";
    controller.wait_for_line(missing, |line| line["right"] == *sign);
    assert_eq!(complaints(&controller), [sign]);
    let application = Application::null(MACHINE, cluster.ca().certificate_pem());
    let name = file(&cluster, &application);
    let line = controller.wait_for_line("the request was not answered", |_| true);
    assert!(
        line["error"]
            .as_str()
            .unwrap()
            .contains("not permitted to sign"),
        "{line}"
    );

    grant(&cluster, USER, &["approve", "sign"]);

    assert!(certificate_of(&wait_for_answer(&cluster, &name)).is_some());
}

#[test]
fn a_controller_that_comes_second_changes_nothing() {
    const MACHINE: Machine = Machine {
        name: "second",
        token: "second",
    };
    let _first = null(&[MACHINE]).start();
    let application = Application::null(MACHINE, CLUSTER.ca().certificate_pem());
    let name = file(&CLUSTER, &application);
    let answered = wait_for_answer(&CLUSTER, &name);

    let mut second = null(&[MACHINE]).start();
    let line = second.wait_for_decision(&name);

    assert_eq!(line["outcome"], "ignored");
    let version = |csr: &Value| csr["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&request(&CLUSTER, &name)), version(&answered));
}

#[test]
fn a_node_renews_its_certificate_with_another_key_and_keeps_its_uid() {
    const MACHINE: Machine = Machine {
        name: "renewed",
        token: "renew1",
    };
    let ca = CLUSTER.ca().certificate_pem();
    let _controller = null(&[MACHINE])
        .args(&["--certificate-duration", "300s"])
        .start();
    let first = Application::null(MACHINE, ca);
    let csr = wait_for_answer(&CLUSTER, &file(&CLUSTER, &first));
    let node = kubeconfig_of(&CLUSTER, &first, &csr);

    let second = Application::null(MACHINE, ca);
    let csr = wait_for_answer(&CLUSTER, &file_as_node(&node, &second));

    let renewed = kubeconfig_of(&CLUSTER, &second, &csr);
    assert_eq!(uid_of(&renewed), uid_of(&node));
    assert_eq!(csr["spec"]["username"], "system:node:renewed");
    assert_eq!(csr["spec"]["uid"], uid_of(&node));
}

#[test]
fn a_node_gets_no_certificate_of_another_node() {
    const MINE: Machine = Machine {
        name: "thief",
        token: "thief1",
    };
    const OTHER: Machine = Machine {
        name: "victim",
        token: "victi1",
    };
    let ca = CLUSTER.ca().certificate_pem();
    let _controller = null(&[MINE, OTHER]).start();
    let own = Application::null(MINE, ca);
    let csr = wait_for_answer(&CLUSTER, &file(&CLUSTER, &own));
    let node = kubeconfig_of(&CLUSTER, &own, &csr);

    let csr = wait_for_answer(
        &CLUSTER,
        &file_as_node(&node, &Application::null(OTHER, ca)),
    );

    assert_eq!(reason_of(&csr, "Denied"), Some("RequesterIsAnotherNode"));
}

#[test]
fn a_node_that_proved_nothing_renews_nothing() {
    const MACHINE: Machine = Machine {
        name: "unproved",
        token: "unpro1",
    };
    let _controller = insecure(&[MACHINE]).start();
    let first = Application::insecure(MACHINE);
    let csr = wait_for_answer(&CLUSTER, &file(&CLUSTER, &first));
    let node = kubeconfig_of(&CLUSTER, &first, &csr);

    let csr = wait_for_answer(
        &CLUSTER,
        &file_as_node(&node, &Application::insecure(MACHINE)),
    );

    assert_eq!(conditions(&csr), ["Denied"]);
}
