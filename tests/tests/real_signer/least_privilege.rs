//! Tests of a controller that has its own kubeconfigs, and permissions only for single Secrets: it has no
//! administrator's credential and, with an external signer, no CA key.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::control_plane::{KubeadmBinding, Kubectl};
use kubelet_authenticator_test_support::pki::{Subject, certificate_request};
use kubelet_authenticator_test_support::process::{Process, Scratch, poll};
use kubelet_authenticator_tests::controller::{certificate_of, is_issued};
use kubelet_authenticator_tests::fleet::{Manager, authorize};
use kubelet_authenticator_tests::management::{Management, WorkloadCluster};
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use kubelet_authenticator_tests::{packaging, program};
use node_attestation_runtime::capi::{TenantKubeconfig, TokenClaims};
use node_attestation_runtime::client::EgressPolicy;
use serde_json::{Value, json};

use super::management::{asks, endpoint, scene, token_of, without_key};
use super::{Token, verify};

/// The controller's user in the management cluster, and the name of its service account in workload clusters.
const NAME: &str = "node-attestation-controller";

/// The namespace of the service account.
const NAMESPACE: &str = "node-attestation-system";

/// The namespace in the controller's kubeconfig, and therefore of its Secrets.
const OWN: &str = "default";

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The rule that Roles for single Secrets replace.
const ALL_SECRETS: &str = "- apiGroups: [\"\"]\n  resources: [secrets]\n  verbs: [list, watch]\n";

/// A management cluster in which the controller is not allowed to read all Secrets.
fn management() -> Management {
    let management = Management::start();
    let manifest = fs::read_to_string(packaging().join("rbac/management-cluster.yaml")).unwrap();
    let (before, after) = manifest.split_once(ALL_SECRETS).unwrap();
    management.kubectl().apply(&format!("{before}{after}"));
    management
}

/// The output of `render` with this input.
#[track_caller]
fn render(words: &[&str], input: &str) -> String {
    let mut child = Command::new(program(NAME))
        .arg("render")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that does not read its input can exit first.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn key_of(cluster: &WorkloadCluster) -> String {
    format!("{}/{}", cluster.namespace(), cluster.name())
}

/// Gives the controller its own access to the Cluster, as an operator does, with a token that was issued this long ago.
#[track_caller]
fn give_access(management: &Management, cluster: &WorkloadCluster, age: Duration) {
    let plane = cluster.control_plane();
    plane.kubectl().apply(&render(&["workload-rights"], ""));
    let token = plane.service_account_token(NAMESPACE, NAME, "720h");
    let token = plane.aged_token(&token, age);
    let key = key_of(cluster);
    let admin = plane.admin_kubeconfig().to_str().unwrap();
    let secret = [
        "workload-secret",
        &key,
        "--workload-kubeconfig",
        admin,
        "--controller-namespace=default",
        "--insecure-allow-loopback",
    ];
    management.kubectl().apply(&render(&secret, &token));
    let roles = [
        "secret-roles",
        &key,
        "--controller=user:node-attestation-controller",
        "--controller-namespace=default",
    ];
    management.kubectl().apply(&render(&roles, ""));
}

fn secret_name(cluster: &WorkloadCluster) -> String {
    format!("workload-access.{}.{}", cluster.namespace(), cluster.name())
}

/// The text of the kubeconfig in a list that contains one Secret.
fn kubeconfig_in(list: &Value) -> Vec<u8> {
    let value = list["items"][0]["data"]["value"].as_str().unwrap();
    BASE64_STANDARD.decode(value).unwrap()
}

/// The Secrets with this name that the user can list.
fn listed(kubectl: &Kubectl, namespace: &str, name: &str) -> Value {
    let selector = format!("--field-selector=metadata.name={name}");
    kubectl.json(["get", "secrets", "-n", namespace, &selector])
}

/// The claims of the token that the controller uses.
fn claims(management: &Management, cluster: &WorkloadCluster) -> TokenClaims {
    let list = listed(management.kubectl(), OWN, &secret_name(cluster));
    let mut reach = EgressPolicy::STRICT;
    reach.insecure_allow_loopback = true;
    let kubeconfig = TenantKubeconfig::parse(&kubeconfig_in(&list), reach).unwrap();
    kubeconfig.claims().unwrap().clone()
}

/// Asserts that the attack fails because of a missing permission.
#[track_caller]
fn refused(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it was allowed: {output:?}");
    assert!(said.to_lowercase().contains("forbidden"), "{said}");
}

/// A scene with an external signer, in which the controller has only its own kubeconfig.
fn confined(namespace: &str) -> (Scene, Token, Process) {
    let management = management();
    let cluster = without_key(&management, namespace);
    cluster
        .control_plane()
        .install_bindings(&KubeadmBinding::ALL);
    let (token, signer) = token_of(&cluster);
    give_access(&management, &cluster, Duration::ZERO);
    let arguments = [&*endpoint(&token), "--workload-access=own"];
    let manager = Manager::insecure(&management, &arguments);
    let settings = json!({"autoApproveBindings": "Remove"});
    let authentication = authorize(&management, &cluster, &["insecure"], settings);
    authentication.wait_until_ready(management.kubectl());
    (
        scene(management, manager, cluster, authentication),
        token,
        signer,
    )
}

#[test]
fn a_cluster_is_served_and_enforced_without_an_admin_credential() {
    let (scene, token, _signer) = confined("confined");

    let csr = scene.answer(&asks(&scene, "joins"));

    verify(&token, &certificate_of(&csr).expect("a certificate"));
    scene.wait_for_paths("True", "Closed", &[]);
    for binding in [
        KubeadmBinding::NodeAutoapproveBootstrap,
        KubeadmBinding::NodeAutoapproveCertificateRotation,
    ] {
        let left = scene
            .kubectl()
            .run(["get", "clusterrolebinding", binding.name()]);
        assert!(!left.status.success(), "{left:?}");
    }
    let output = Command::new(program(NAME))
        .args(["cluster", "check", &key_of(&scene.cluster), "-ojson"])
        .args([
            "--insecure-allow-loopback",
            "--controller-namespace=default",
        ])
        .arg("--kubeconfig")
        .arg(scene.site.management.admin_kubeconfig())
        .output()
        .unwrap();
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checked["checks"].as_array().unwrap();
    for name in ["kubeconfig", "workload-rights", "workload-user"] {
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        assert_eq!(check["state"], "pass", "{check:#}");
    }
}

#[test]
fn an_attacker_with_the_controllers_credentials_is_no_administrator() {
    let (scene, _token, _signer) = confined("attacked");
    let namespace = scene.cluster.namespace();
    let plane = scene.site.management.control_plane();
    let thief = plane.kubectl_with(plane.client_cert_kubeconfig(NAME, None));
    let kubeconfig = format!("{}-kubeconfig", scene.cluster.name());
    let by_name = format!("--field-selector=metadata.name={kubeconfig}");
    let (kubeconfig, by_name) = (kubeconfig.as_str(), by_name.as_str());
    for attack in [
        &["get", "secrets", "--all-namespaces"][..],
        &["get", "secrets", "-n", namespace],
        &["get", "secrets", "-n", namespace, by_name],
        &["get", "secret", kubeconfig, "-n", namespace],
        &["get", "secrets", "-n", OWN],
        &["create", "secret", "generic", "mine", "-n", OWN],
        &["create", "token", "default", "-n", OWN],
        &[
            "create",
            "rolebinding",
            "mine",
            "--clusterrole=admin",
            "--user=mine",
            "-n",
            namespace,
        ],
        &["get", "nodes", "--as=admin", "--as-group=system:masters"],
    ] {
        refused(&thief.run(attack));
    }
    // The process can read only its own kubeconfig, and the CA certificate without its key.
    let ca = listed(&thief, namespace, &format!("{}-ca", scene.cluster.name()));
    let data = ca["items"][0]["data"].as_object().unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["tls.crt"]);
    let own = listed(&thief, OWN, &secret_name(&scene.cluster));
    let files = Scratch::new("stolen");
    let stolen = files.write("kubeconfig", kubeconfig_in(&own));

    let workload = scene.cluster.control_plane();
    let thief = workload.kubectl_with(stolen);
    let (pem, _) = certificate_request(&Subject::user("administrator"), None);
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "administrator"},
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"],
            "request": BASE64_STANDARD.encode(pem.replace("\r\n", "\n")),
        },
    });
    let created = thief.run_with_input(["create", "-f", "-"], &request.to_string());
    refused(&created);
    scene.kubectl().create_object(&request);
    let more = r#"{"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}"#;
    for attack in [
        &["get", "nodes", "--as=admin", "--as-group=system:masters"][..],
        &["get", "secrets", "-n", NAMESPACE],
        &["create", "secret", "generic", "mine", "-n", "kube-system"],
        &["create", "token", "default", "-n", NAMESPACE],
        &[
            "create",
            "token",
            "clusterrole-aggregation-controller",
            "-n",
            "kube-system",
        ],
        &[
            "create",
            "clusterrolebinding",
            "mine",
            "--clusterrole=cluster-admin",
            "--user=mine",
        ],
        &["patch", "clusterrole", NAME, "--type=merge", "-p", more],
        &[
            "patch",
            "role",
            NAME,
            "-n",
            "default",
            "--type=merge",
            "-p",
            more,
        ],
        &["create", "serviceaccount", "mine", "-n", NAMESPACE],
        &["delete", "clusterrolebinding", "cluster-admin"],
        &["run", "mine", "--image=mine", "-n", "kube-system"],
        &["certificate", "approve", "administrator"],
    ] {
        refused(&thief.run(attack));
    }
    // The credentials are valid: they can renew themselves.
    thief.ok(["create", "token", NAME, "-n", NAMESPACE]);
}

#[test]
fn a_token_is_renewed_before_it_expires_and_serves_on() {
    let management = management();
    let cluster = management.cluster("prod-1").namespace("renewed").create();
    give_access(&management, &cluster, 16 * DAY);
    let before = claims(&management, &cluster);
    let tokens = || listed(management.kubectl(), OWN, &secret_name(&cluster));
    let first = String::from_utf8(kubeconfig_in(&tokens())).unwrap();
    let manager = Manager::insecure(&management, &["--workload-access=prefer-own"]);
    let authentication = authorize(&management, &cluster, &["insecure"], json!({}));

    let after = poll(SWEPT, || {
        let after = claims(&management, &cluster);
        (after.expires() > before.expires()).then_some(after)
    });

    let after = after.expect("the token is renewed");
    assert_eq!(after.lifetime(), 30 * DAY);
    assert!(after.expires() >= before.expires() + 15 * DAY);
    authentication.wait_until_ready(management.kubectl());
    let second = String::from_utf8(kubeconfig_in(&tokens())).unwrap();
    let scene = scene(management, manager, cluster, authentication);
    let csr = scene.answer(&asks(&scene, "after"));
    assert!(is_issued(&csr), "{csr:#}");
    let log = scene.site.manager.process.log().text();
    for kubeconfig in [first, second] {
        let (_, token) = kubeconfig.split_once("token: ").unwrap();
        let token = token.lines().next().unwrap();
        assert!(!log.contains(token), "the log contains a token");
    }
}

#[test]
fn a_token_that_cannot_be_renewed_is_named_before_it_expires() {
    let management = management();
    let cluster = management.cluster("prod-1").namespace("kept").create();
    give_access(&management, &cluster, 16 * DAY);
    let before = claims(&management, &cluster);
    let role = [
        "delete",
        "role",
        "node-attestation-controller-own-token",
        "-n",
        NAMESPACE,
    ];
    cluster.control_plane().kubectl().ok(role);
    let manager = Manager::insecure(&management, &["--workload-access=own"]);
    let authentication = authorize(&management, &cluster, &["insecure"], json!({}));

    let kubectl = management.kubectl();
    let object = authentication.wait_for(kubectl, "Ready", "False", "UpkeepIncomplete");

    let conditions = object["status"]["conditions"].as_array().unwrap();
    let ready = conditions
        .iter()
        .find(|one| one["type"] == "Ready")
        .unwrap();
    let message = ready["message"].as_str().unwrap();
    for words in [
        "renew the token in Secret workload-access.kept.prod-1, which expires at ",
        "cannot create serviceaccounts/token for node-attestation-system/node-attestation-controller",
    ] {
        assert!(message.contains(words), "{message}");
    }
    // The token in use is still valid.
    assert_eq!(claims(&management, &cluster), before);
    let scene = scene(management, manager, cluster, authentication);
    let csr = scene.answer(&asks(&scene, "meanwhile"));
    assert!(is_issued(&csr), "{csr:#}");
}
