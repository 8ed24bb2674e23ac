//! Tests of `explain` and `cluster check` on real API servers: their output for an operator, and the absence of writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, LazyLock};

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::binaries::KUBERNETES_VERSION;
use kubelet_authenticator_test_support::control_plane::KubeadmBinding;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::controller::{Application, PATIENCE};
use kubelet_authenticator_tests::fleet::{Authentication, Manager, authorize, management};
use kubelet_authenticator_tests::management::{Machine, WorkloadCluster};
use kubelet_authenticator_tests::page::repository;
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{Scene, Site};
use serde_json::{Value, json};

mod cluster;
mod nodes;
mod not_ready;

static SITE: LazyLock<Arc<Site>> = LazyLock::new(|| {
    let management = management();
    let manager = Manager::insecure(&management, &[]);
    Arc::new(Site {
        management,
        manager,
    })
});

/// A Cluster in a separate namespace. The Cluster's machines do not need evidence.
fn scene(namespace: &str) -> Scene {
    let cluster = Scene::unattended(&SITE, namespace);
    attend(cluster)
}

fn attend(cluster: WorkloadCluster) -> Scene {
    let authentication = authorize(&SITE.management, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(SITE.management.kubectl());
    Scene {
        site: SITE.clone(),
        cluster,
        authentication,
    }
}

/// The name and the namespace of the Cluster.
fn key(scene: &Scene) -> String {
    let Authentication { namespace, name } = &scene.authentication;
    format!("{namespace}/{name}")
}

fn application(node_name: &str, provider_id: &str) -> Application {
    Application::claiming(node_name, provider_id, Provider::INSECURE, None)
}

fn of(machine: &Machine) -> Application {
    application(machine.node_name(), machine.provider_id())
}

fn admin() -> PathBuf {
    SITE.management
        .control_plane()
        .admin_kubeconfig()
        .to_owned()
}

fn run_as(kubeconfig: &Path, arguments: &[&str]) -> Output {
    Command::new(program("node-attestation-controller"))
        .args(arguments)
        .arg("--insecure-allow-loopback")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .unwrap()
}

#[track_caller]
fn answered(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The explanation of a request, as an administrator gets it.
#[track_caller]
fn explained(scene: &Scene, request: &str) -> Value {
    let cluster = key(scene);
    answered(&run_as(
        &admin(),
        &["explain", request, "--cluster", &cluster, "-o", "json"],
    ))
}

/// The names and outcomes of the checks.
fn outcomes(explanation: &Value) -> Vec<(&str, &str)> {
    let checks = explanation["checks"].as_array().unwrap().iter();
    checks
        .map(|one| {
            (
                one["name"].as_str().unwrap(),
                one["outcome"].as_str().unwrap(),
            )
        })
        .collect()
}

/// All objects that `explain` could change: the Cluster's node identities, requests and Nodes, each with its resource
/// version.
fn versions(scene: &Scene) -> Vec<String> {
    let list = |kubectl: &kubelet_authenticator_test_support::control_plane::Kubectl,
                kind: &str| {
        let list = kubectl.json(["get", kind, "--namespace", scene.cluster.namespace()]);
        let items = list["items"].as_array().unwrap().clone();
        let version = |one: &Value| {
            one["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        items.iter().map(version).collect::<Vec<_>>()
    };
    let mut all = list(scene.management(), "nodeidentities");
    for kind in ["certificatesigningrequests", "nodes"] {
        all.extend(list(scene.kubectl(), kind));
    }
    all
}

#[test]
fn a_denied_request_is_explained_by_the_check_that_denied_it() {
    let scene = scene("explain-denied");
    let [victim, thief] = ["victim", "thief"].map(|name| scene.cluster.machine(name).create());
    let name = scene.file(&thief.bootstrap_kubeconfig(), &of(&victim));
    let answer = scene.answer(&name);
    let before = versions(&scene);

    // The controller writes the Event after the answer.
    let told = poll(PATIENCE, || {
        let told = explained(&scene, &name);
        (told["events"] != json!([])).then_some(told)
    });
    let told = told.expect("no Event");

    let reason = told["reason"].as_str().unwrap();
    assert_eq!(answer["status"]["conditions"][0]["reason"], reason);
    assert_eq!(told["outcome"], "denied");
    assert_eq!(told["conditions"][0]["type"], "Denied");
    assert_eq!(told["conditions"][0]["reason"], reason);
    assert_eq!(told["pendingSeconds"], Value::Null);
    let expected = [
        ("scope", "passed"),
        ("encoding", "passed"),
        ("request-format", "passed"),
        ("machine", "denied"),
    ];
    assert_eq!(outcomes(&told), expected);
    assert_eq!(told["checks"][3]["saw"], told["message"]);
    let events = told["events"].as_array().unwrap();
    assert!(
        events.iter().any(|event| event["reason"] == reason),
        "{told:#}"
    );
    assert_eq!(versions(&scene), before);
}

#[test]
fn the_page_shows_the_actual_output_for_a_denied_request() {
    let page = fs::read_to_string(repository().join("docs/controller.md")).unwrap();
    let (_, block) = page
        .split_once("$ node-attestation-controller explain ")
        .unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let (command, shown) = block.split_once('\n').unwrap();
    let (shown_name, cluster) = command.split_once(" --cluster ").unwrap();
    let (namespace, _) = cluster.split_once('/').unwrap();
    let scene = scene(namespace);
    let [victim, thief] = ["victim", "thief"].map(|name| scene.cluster.machine(name).create());
    let name = scene.file(&thief.bootstrap_kubeconfig(), &of(&victim));
    scene.answer(&name);

    // The controller writes the Event after the answer.
    let printed = poll(PATIENCE, || {
        let output = run_as(&admin(), &["explain", &name, "--cluster", cluster]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains("\nEvent: ").then_some(text)
    });

    let printed = printed.expect("no Event");
    assert_eq!(stable(&printed, &name), stable(shown, shown_name));
}

#[test]
fn a_waiting_request_is_explained_with_its_age_and_reason() {
    let scene = scene("explain-waits");
    let machine = scene.cluster.machine("gone").create();
    let (kubeconfig, application) = (machine.bootstrap_kubeconfig(), of(&machine));
    machine.remove();
    let name = scene.file(&kubeconfig, &application);
    let before = versions(&scene);

    let told = explained(&scene, &name);

    assert_eq!(
        (&told["outcome"], &told["reason"]),
        (&json!("deferred"), &json!("MachineNotFound"))
    );
    assert_eq!(outcomes(&told).last(), Some(&("machine", "deferred")));
    assert!(told["pendingSeconds"].as_u64().is_some(), "{told:#}");
    assert_eq!(told["conditions"], json!([]));
    assert_eq!(versions(&scene), before);
}

#[test]
fn an_issued_request_passes_every_check_without_a_record_change() {
    let scene = scene("explain-issued");
    let machine = scene.cluster.machine("m1").create();
    let name = scene.file(&machine.bootstrap_kubeconfig(), &of(&machine));
    scene.answer(&name);
    let before = versions(&scene);

    let cluster = key(&scene);
    let output = run_as(&admin(), &["explain", &name, "--cluster", &cluster]);

    assert!(output.status.success(), "{output:?}");
    let text = stable(&String::from_utf8(output.stdout).unwrap(), &name);
    assert_eq!(text, ISSUED);
    for line in text.lines() {
        let is_one_word = line.split_whitespace().count() < 2;
        assert!(line.chars().count() <= 80 || is_one_word, "{line}");
    }
    assert_eq!(versions(&scene), before);
    let told = explained(&scene, &name);
    assert_eq!(
        (&told["outcome"], &told["issued"]),
        (&json!("issued"), &json!(true))
    );
}

const ISSUED: &str = "\
Request:   REQUEST
Cluster:   explain-issued/prod-1
Node:      m1
Requester: system:bootstrap:TOKEN
Signer:    cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure
Signed by: the controller, with the CA of Secret prod-1-ca
Created:   TIME

passed     scope: a request from system:bootstrap:TOKEN to
           cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure
passed     encoding: a request signed with its own key, without evidence
passed     request-format: node m1 on machine generic:///prod-1/m1, with
           bootstrap token TOKEN, for A WHILE
passed     machine: machine m1 can join; its Node is m1
passed     evidence: no evidence identifies generic:///prod-1/m1
passed     node-name: machine m1 is allowed to use node name m1
passed     claim: generation GENERATION: repeated request with the same key
passed     signature: a certificate until TIME

Result:    issued, JoinRepeated: every check passes
Condition: Approved NodeNameClaimed at TIME: approved by
           node-attestation-controller
Issued:    the request already has a certificate
Event:     FirstJoin on Machine m1 at TIME: issued a certificate
           of generation GENERATION for node m1 on machine generic:///prod-1/m1:
           first join
Note:      the request was already answered: the checks use the time of the
           answer, and the current Machines and node identities
";

/// The text without the values that differ between runs.
fn stable(text: &str, request: &str) -> String {
    let digits = |word: &str| {
        let is_time = word.len() >= 20 && word.starts_with("20") && word.contains('T');
        let number = word.trim_end_matches(':');
        let is_generation = number.len() == 10 && number.bytes().all(|one| one.is_ascii_digit());
        if is_time {
            format!("TIME{}", word.get(20..).unwrap_or_default())
        } else if is_generation {
            word.replace(number, "GENERATION")
        } else {
            word.to_owned()
        }
    };
    let (_, token) = text.split_once("system:bootstrap:").unwrap();
    let (token, _) = token.split_once('\n').unwrap();
    let (_, lifetime) = text.split_once(&format!("{token}, for ")).unwrap();
    let (lifetime, _) = lifetime.split_once('\n').unwrap();
    let text = text.replace(&format!("for {lifetime}"), "for A WHILE");
    let mut lines = Vec::new();
    for line in text
        .replace(request, "REQUEST")
        .replace(token, "TOKEN")
        .lines()
    {
        let words: Vec<_> = line.split(' ').map(digits).collect();
        lines.push(words.join(" "));
    }
    lines.join("\n") + "\n"
}

#[test]
fn a_request_in_a_file_is_explained_after_its_deletion() {
    let scene = scene("explain-file");
    let [victim, thief] = ["victim", "thief"].map(|name| scene.cluster.machine(name).create());
    let name = scene.file(&thief.bootstrap_kubeconfig(), &of(&victim));
    scene.answer(&name);
    let scratch = Scratch::new("explain");
    let yaml = scene
        .kubectl()
        .ok(["get", "certificatesigningrequests", "-o", "yaml"]);
    let file = scratch.write("requests.yaml", yaml);
    let told = explained(&scene, &name);
    scene
        .kubectl()
        .ok(["delete", "certificatesigningrequests", &name]);
    let cluster = key(&scene);

    let gone = run_as(&admin(), &["explain", &name, "--cluster", &cluster]);
    let file = file.to_str().unwrap();
    let filed = answered(&run_as(
        &admin(),
        &[
            "explain",
            &name,
            "-f",
            file,
            "--cluster",
            &cluster,
            "-o",
            "json",
        ],
    ));

    assert_eq!(gone.status.code(), Some(3));
    let error = String::from_utf8(gone.stderr).unwrap();
    assert!(
        error.starts_with(&format!(
            "error: CertificateSigningRequest {name} does not exist;"
        )),
        "{error}"
    );
    for field in ["checks", "outcome", "reason", "message", "conditions"] {
        assert_eq!(filed[field], told[field], "{field}");
    }
}

#[test]
fn a_missing_permission_is_reported_with_an_alternative() {
    let scene = scene("explain-rights");
    let machine = scene.cluster.machine("m1").create();
    let name = scene.file(&machine.bootstrap_kubeconfig(), &of(&machine));
    scene.answer(&name);
    let management = &SITE.management;
    for (role, resources) in [
        (
            "reader",
            "clusters.cluster.x-k8s.io,machines.cluster.x-k8s.io,machinepools.cluster.x-k8s.io",
        ),
        (
            "record-reader",
            "kubeletauthentications.attestation.cluster.x-k8s.io,nodeidentities.attestation.cluster.x-k8s.io",
        ),
        (
            "config-reader",
            "kubeadmconfigs.bootstrap.cluster.x-k8s.io,genericmachines.infrastructure.cluster.x-k8s.io",
        ),
    ] {
        let resources = format!("--resource={resources}");
        management.kubectl().ok([
            "create",
            "clusterrole",
            role,
            "--verb=get,list,watch",
            &resources,
        ]);
        let role_option = format!("--clusterrole={role}");
        management.kubectl().ok([
            "create",
            "clusterrolebinding",
            role,
            &role_option,
            "--user=explainer",
        ]);
    }
    let explainer = management
        .control_plane()
        .client_cert_kubeconfig("explainer", None);
    let cluster = key(&scene);
    let arguments = ["explain", &*name, "--cluster", &*cluster, "-o", "json"];

    let refused = run_as(&explainer, &arguments);
    let workload = scene.cluster.control_plane().admin_kubeconfig().to_owned();
    let with_workload = [
        &arguments[..],
        &["--workload-kubeconfig", workload.to_str().unwrap()],
    ]
    .concat();
    let told = answered(&run_as(&explainer, &with_workload));

    assert_eq!(refused.status.code(), Some(3));
    let error = String::from_utf8(refused.stderr).unwrap();
    for words in ["cannot read Secret ", "--workload-kubeconfig", "403"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert_eq!(told["outcome"], "issued", "{told:#}");
    let notes = told["notes"].to_string();
    assert!(notes.contains("cannot read Secret "), "{notes}");
    assert!(notes.contains("-ca: "), "{notes}");
}
