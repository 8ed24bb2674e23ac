//! Tests of `cluster check`.

use jiff::Timestamp;
use kubelet_attestation::names::BUILT_IN_CLIENT_SIGNER;
use kubelet_attestation::page_url;
use kubelet_authenticator_tests::controller::certificate_of;
use kubelet_authenticator_tests::fleet::join_stock;
use kubelet_authenticator_tests::snapshot::{assert_file, stable};
use x509_parser::pem::parse_x509_pem;

use super::*;

/// The checks for a Cluster and the management cluster.
fn checked(scene: &Scene, options: &[&str]) -> (Option<i32>, Vec<Value>) {
    let cluster = key(scene);
    let arguments = [&["cluster", "check", &cluster, "-o", "json"], options].concat();
    let output = run_as(&admin(), &arguments);
    let object: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let checks = object["checks"].as_array().unwrap().clone();
    (output.status.code(), checks)
}

#[track_caller]
fn check<'a>(checks: &'a [Value], name: &str) -> (&'a str, &'a str) {
    let found = checks.iter().find(|one| one["name"] == name);
    let found = found.unwrap_or_else(|| panic!("{name}: {checks:#?}"));
    (
        found["state"].as_str().unwrap(),
        found["finding"].as_str().unwrap(),
    )
}

/// The output with placeholders for the values that differ between runs.
#[track_caller]
fn stable_check(text: &str) -> String {
    // The line breaks of this check depend on the length of the holder's name.
    let (before, rest) = text.split_once("-controller, ").unwrap();
    let (_, after) = rest.split_once("\npass  clusters: ").unwrap();
    let text = format!("{before}-controller, AGE by HOLDER\npass  clusters: {after}");
    stable(&text)
        .replace(KUBERNETES_VERSION.as_str(), "VERSION")
        .replace(page_url!("cluster-check.md"), "PAGE")
}

#[test]
fn a_healthy_cluster_has_two_warnings_that_fail_a_strict_check() {
    let scene = scene("check-well");
    let machine = scene.cluster.machine("m1").create();
    let name = scene.file(&machine.bootstrap_kubeconfig(), &of(&machine));
    scene.answer(&name);

    let (code, checks) = checked(&scene, &[]);

    assert_eq!(code, Some(0), "{checks:#?}");
    let names: Vec<_> = checks
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    let expected = [
        "definitions",
        "cluster-api",
        "rights",
        "leader",
        "clusters",
        "authentication",
        "ca",
        "identities",
        "attestors",
        "templates",
        "kubeconfig",
        "workload-version",
        "workload-rights",
        "workload-user",
        "auto-approval",
        "serving-approvers",
        "admission-policy",
        "nodes",
        "requests",
        "evidence-versions",
    ];
    assert_eq!(names, expected);
    let warnings = checks.iter().filter(|one| one["state"] != "pass");
    let warnings: Vec<_> = warnings.map(|one| &one["name"]).collect();
    // Cluster API's kubeconfig belongs to an administrator.
    assert_eq!(warnings, ["workload-user", "admission-policy"]);
    assert_eq!(checked(&scene, &["--strict"]).0, Some(20));
    let output = run_as(&admin(), &["cluster", "check", &key(&scene)]);
    let text = String::from_utf8(output.stdout).unwrap();
    let path = "tests/tests/real_explain/cluster_check.txt";
    assert_file(path, &stable_check(&text));

    let plane = scene.cluster.control_plane();
    plane.install_bindings(&KubeadmBinding::ALL);
    let (code, checks) = checked(&scene, &[]);
    assert_eq!((code, check(&checks, "auto-approval").0), (Some(0), "warn"));
    assert_eq!(checked(&scene, &["--strict"]).0, Some(20));
}

/// The lines of the output about a failing check.
const MISSING_CA: &str = "\
fail  ca: Secret check-broken/prod-1-ca does not exist
      cure: wait for Cluster API; for an external control plane, create the
      Secret with tls.crt (and tls.key)
      see: PAGE#check-ca
";

#[test]
fn a_misconfigured_cluster_fails_only_its_checks() {
    let scene = scene("check-broken");
    scene
        .cluster
        .control_plane()
        .install_bindings(&KubeadmBinding::ALL);
    scene.kubectl().apply_object(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "stranger"},
    }));
    scene.cluster.delete_secret("ca");

    let (code, checks) = checked(&scene, &[]);

    assert_eq!(code, Some(20));
    let output = run_as(&admin(), &["cluster", "check", &key(&scene)]);
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines() {
        let is_one_word = line
            .trim_start_matches("      see: ")
            .split_whitespace()
            .count()
            < 2;
        assert!(line.chars().count() <= 80 || is_one_word, "{line}");
    }
    let (_, of_cluster) = text.split_once("Cluster check-broken/prod-1\n").unwrap();
    let of_cluster = of_cluster.replace(page_url!("cluster-check.md"), "PAGE");
    assert!(of_cluster.contains(MISSING_CA), "{of_cluster}");
    let (state, finding) = check(&checks, "ca");
    assert_eq!(
        (state, finding.ends_with("does not exist")),
        ("fail", true),
        "{finding}"
    );
    assert_eq!(
        check(&checks, "nodes"),
        (
            "warn",
            "Nodes without a node identity: stranger; the expiry of their certificates is unknown"
        )
    );
    let (state, finding) = check(&checks, "auto-approval");
    assert_eq!(state, "warn");
    assert!(
        finding.contains("kubeadm:node-autoapprove-bootstrap"),
        "{finding}"
    );
    for other in [
        "kubeconfig",
        "workload-version",
        "workload-rights",
        "requests",
        "definitions",
        "leader",
    ] {
        assert_eq!(check(&checks, other).0, "pass", "{other}");
    }

    scene.cluster.delete_secret("kubeconfig");
    let (code, checks) = checked(&scene, &[]);
    assert_eq!(code, Some(20));
    assert_eq!(check(&checks, "kubeconfig").0, "fail");
    assert_eq!(
        check(&checks, "nodes"),
        ("skip", "cannot call the workload cluster")
    );
}

/// The expiry time of a certificate (PEM).
fn expiry(certificate: &str) -> Timestamp {
    let (_, pem) = parse_x509_pem(certificate.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let end = certificate.validity().not_after.timestamp();
    Timestamp::from_second(end).unwrap()
}

#[test]
fn a_node_that_would_lose_renewal_is_listed_with_its_expiry() {
    let cluster = Scene::unattended(&SITE, "check-expiry");
    let machine = cluster.machine("old").create();
    let (_kubelet, _) = join_stock(&cluster, &machine);
    let scene = attend(cluster);

    let (_, checks) = checked(&scene, &[]);

    let issued = scene.cluster.control_plane().csrs().into_iter();
    let issued = issued.filter(|csr| csr["spec"]["signerName"] == BUILT_IN_CLIENT_SIGNER);
    let ends = issued.filter_map(|csr| Some(expiry(&certificate_of(&csr)?)));
    let end = ends.max().unwrap();
    let expected =
        format!("Nodes without a node identity: old; their certificates expire: old {end}");
    assert_eq!(check(&checks, "nodes"), ("warn", &*expected));
    let output = run_as(&admin(), &["cluster", "check", &key(&scene)]);
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<_> = text.split_whitespace().collect();
    let line = words.join(" ");
    assert!(line.contains(&format!("warn nodes: {expected}")), "{text}");
}

#[test]
fn each_cluster_check_is_documented_and_each_documented_check_exists() {
    let scene = scene("check-page");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cluster-check.md");
    let page = fs::read_to_string(page).unwrap();
    let anchors = page.split("<a id=\"check-").skip(1);
    let anchors = anchors.map(|rest| rest.split_once('"').unwrap().0.to_owned());
    let mut documented: Vec<String> = anchors.collect();

    let (_, checks) = checked(&scene, &["--nodes"]);

    // The check `settings` runs only without a management cluster.
    let mut made = vec!["settings".to_owned()];
    for one in &checks {
        let name = one["name"].as_str().unwrap();
        assert_eq!(
            one["link"],
            format!("{}{name}", page_url!("cluster-check.md#check-"))
        );
        made.push(name.to_owned());
    }
    documented.sort();
    made.sort();
    assert_eq!(documented, made);
}
