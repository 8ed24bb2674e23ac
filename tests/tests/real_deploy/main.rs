//! Tests of the manifests in packaging/deploy and of the Helm chart on a real API server, and of a controller with
//! their permissions and arguments.

mod chart;
mod floor;
mod install;
mod named_secrets;
mod signer;

use std::path::Path;
use std::process::Command;

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers, DEADLINE};
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::controller::{Application, is_answered, reason_of};
use kubelet_authenticator_tests::deploy::{
    NAME, NAMESPACE, apply, components, deployment, folder, kustomize, lead, lease, start,
};
use kubelet_authenticator_tests::fleet::authorize;
use kubelet_authenticator_tests::management::{
    Contract, Machine, Management, WorkloadCluster, clusterctl,
};
use kubelet_authenticator_tests::page::{Desk, repository, section};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scrape::{has_line, value};
use serde_json::{Value, json};

use crate::install::{provide_to_clusterctl, write_overlay};

/// Starts a management cluster with the manifests.
fn management() -> Management {
    let management = Management::start();
    apply(&management, &components());
    management
}

#[test]
fn a_controller_with_the_permissions_in_the_manifests_leads() {
    let management = management();
    let files = Scratch::new("deploy");
    let (first, one) = start(&management, NAMESPACE, &files, "first");
    one.wait_until_ready();
    let leads = format!(r#"node_attestation_leader{{lease="{NAME}"}} 1.0"#);
    let text = one.wait_for(&[
        &leads,
        r#"node_attestation_watch_up{kind="KubeletAuthentication"} 1.0"#,
    ]);
    let age = value(
        &text,
        &format!(r#"node_attestation_lease_age_seconds{{lease="{NAME}"}}"#),
    );
    assert!(age < Some(15.0), "{text}");
    for kind in ["Cluster", "Machine", "MachinePool", "NodeIdentity"] {
        let up = format!(r#"node_attestation_watch_up{{kind="{kind}"}} 1.0"#);
        assert!(has_line(&text, &up), "{kind}\n{text}");
    }
    let held = lease(&management, NAMESPACE).expect("a Lease in the controller's namespace");
    assert!(held["spec"]["holderIdentity"].is_string(), "{held:#}");
    assert_eq!(lease(&management, "default"), None);

    // The second replica is also ready, and becomes the leader after the first replica stops.
    let (_second, two) = start(&management, NAMESPACE, &files, "second");
    two.wait_until_ready();
    two.wait_for(&[&format!(r#"node_attestation_leader{{lease="{NAME}"}} 0.0"#)]);
    drop(first);
    let leading = || has_line(&two.scrape(), &leads).then_some(());
    poll(DEADLINE, leading).unwrap_or_else(|| panic!("{}", two.scrape()));
    assert_eq!(two.probe("/healthz").unwrap().status, 200);
}

#[test]
fn clusterctl_accepts_the_components_and_the_controller_leads() {
    let home = Scratch::new("clusterctl");
    provide_to_clusterctl(&home, "clusterctl.yaml");
    let name = concat!("kubelet-authenticator:v", env!("CARGO_PKG_VERSION"));
    let generate = ["generate", "provider", "--addon", name];

    let described = clusterctl(home.path(), &[&generate[..], &["--describe"]].concat());
    let has = |label: &str, value: &str| {
        let mut lines = described.lines().filter_map(|line| line.split_once(':'));
        lines.any(|(name, found)| name == label && found.trim() == value)
    };
    assert!(
        has("Type", "AddonProvider") && has("TargetNamespace", NAMESPACE),
        "{described}"
    );

    let management = Management::start();
    apply(&management, &clusterctl(home.path(), &generate));
    let label = "cluster.x-k8s.io/provider=addon-kubelet-authenticator";
    let kinds = "deployments,serviceaccounts,roles,services,networkpolicies,poddisruptionbudgets";
    let kubectl = management.kubectl();
    let ours = kubectl.json(["get", kinds, "-n", NAMESPACE, "-l", label]);
    assert_eq!(ours["items"].as_array().map(Vec::len), Some(6), "{ours:#}");
    let definitions = kubectl.json(["get", "customresourcedefinitions", "-l", label]);
    assert_eq!(definitions["items"].as_array().map(Vec::len), Some(4));
    lead(&management, NAMESPACE, &home);
}

#[test]
fn the_pod_is_admitted_as_restricted_and_its_probes_name_its_ports() {
    let management = management();
    let deployment = deployment(&management, NAMESPACE);
    assert_eq!(deployment["spec"]["replicas"], 2);
    let template = &deployment["spec"]["template"];
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "one", "namespace": NAMESPACE, "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    });
    let kubectl = management.kubectl();
    let admitted = kubectl.create_object(&pod);
    assert_eq!(
        admitted["spec"]["priorityClassName"],
        "system-cluster-critical"
    );
    let mut other = pod.clone();
    other["metadata"]["name"] = "two".into();
    other["spec"]["containers"][0]["securityContext"] = Value::Null;
    let refused = kubectl.try_create(&other).unwrap_err();
    assert!(
        refused.contains("violates PodSecurity \"restricted"),
        "{refused}"
    );

    let container = &template["spec"]["containers"][0];
    let ports = container["ports"].as_array().unwrap().iter();
    let ports: Vec<String> = ports
        .map(|port| {
            format!(
                "{} :{}",
                port["name"].as_str().unwrap(),
                port["containerPort"]
            )
        })
        .collect();
    assert_eq!(ports, ["metrics :8080", "health :9440"]);
    for (probe, path) in [
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
        assert_eq!(container[probe]["httpGet"]["port"], "health");
    }
    // All Pod selectors select these Pods.
    let labels = &template["metadata"]["labels"];
    for (kind, name, path) in [
        ("poddisruptionbudget", NAME, "/spec/selector/matchLabels"),
        ("networkpolicy", NAME, "/spec/podSelector/matchLabels"),
        (
            "service",
            "node-attestation-controller-metrics",
            "/spec/selector",
        ),
    ] {
        let object = kubectl.json(["get", kind, name, "-n", NAMESPACE]);
        assert_eq!(object.pointer(path), Some(labels), "{object:#}");
    }
    for name in [NAME, "node-attestation-controller-lease"] {
        kubectl.wait_for(
            &["flowschemas"],
            &format!("{name} with its level"),
            DEADLINE,
            |object| {
                let conditions = object["status"]["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten();
                let mut dangling = conditions.filter(|one| one["type"] == "Dangling");
                object["metadata"]["name"] == name
                    && dangling.next().is_some_and(|one| one["status"] == "False")
            },
        );
    }
}

#[test]
fn the_documented_overlay_sets_the_image_and_the_challenge_keys() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/install.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page
        .split_once("cat > overlay/kustomization.yaml <<END\n")
        .unwrap();
    let (overlay, rest) = rest.split_once("\nEND\n").unwrap();
    let option = "--load-restrictor=LoadRestrictionsNone";
    let command =
        format!("kubectl kustomize {option} overlay | kubectl apply --server-side -f -\n");
    assert!(rest.starts_with(&command), "{rest:.200}");
    let files = Scratch::new("overlay");
    for folder in ["overlay", "challenge-keys"] {
        std::fs::create_dir(files.join(folder)).unwrap();
    }
    files.write("overlay/kustomization.yaml", overlay);
    files.write("challenge-keys/current", "00".repeat(32));
    let packaging = folder().join("..").canonicalize().unwrap();
    std::os::unix::fs::symlink(packaging, files.join("packaging")).unwrap();
    let management = Management::start();

    apply(&management, &kustomize(&[option], &files.join("overlay")));

    let deployment = deployment(&management, NAMESPACE);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let image = "registry.example.com/me/node-attestation-controller:v0.1.0";
    assert_eq!(container["image"], image);
    let arguments = container["args"].as_array().unwrap();
    assert_eq!(arguments.last().unwrap(), "--tpm-challenge-keys=/keys");
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/keys");
    let secret = &deployment["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"];
    let secret = ["get", "secret", secret.as_str().unwrap(), "-n", NAMESPACE];
    let secret = management.kubectl().json(secret);
    assert!(secret["data"]["current"].is_string(), "the key");
}

#[test]
fn node_identities_outlive_the_deleted_manifests() {
    // Kubernetes deletes the objects in the Namespace.
    let plane = ControlPlane::builder().controllers(Controllers::Default);
    let management = Management::on(plane.start(), Contract::V1Beta2);
    let desk = Desk::new(management.admin_kubeconfig());
    write_overlay(&desk);
    let commands = |page: &str, heading: &str, start: &str| {
        let steps = section(page, heading).into_iter();
        let steps = steps.map(|(_, command)| command);
        let steps: Vec<_> = steps.filter(|step| step.starts_with(start)).collect();
        assert!(!steps.is_empty(), "{page} has no {start:?}");
        steps.join("\n")
    };
    desk.follow(&commands("install.md", "### kustomize", "kubectl apply"));
    let kubectl = management.kubectl();
    kubectl.apply_object(&json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
        "metadata": {"name": "prod-1", "namespace": "default"},
        "spec": {"clusterName": "prod-1", "authorizedAttestors": ["aws"]},
    }));

    desk.follow(&commands("operate.md", "## Uninstall", "kubectl delete -k"));

    let deployment = ["get", "deployments", "-A", "-o", "name"];
    assert_eq!(kubectl.ok(deployment), "");
    kubectl.ok(["get", "kubeletauthentication", "prod-1"]);
    kubectl.ok(["get", "nodeidentities"]);

    let page = std::fs::read_to_string(repository().join("docs/operate.md")).unwrap();
    let separate = "kubectl delete -k packaging/crds";
    assert!(page.contains(&format!("`{separate}`")));
    desk.follow(separate);

    let definitions = ["get", "customresourcedefinitions", "-o", "name"];
    let left = kubectl.ok(definitions);
    assert!(!left.contains("attestation.cluster.x-k8s.io"), "{left}");
}

#[test]
fn each_overlay_of_a_split_fleet_has_permissions_and_a_filter() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operate.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("# blue/kustomization.yaml\n").unwrap();
    let (overlay, _) = rest.split_once("```").unwrap();
    let overlay = overlay.replace("\n   ", "\n");
    let management = Management::start();
    let kubectl = management.kubectl();
    let desk = Desk::new(management.admin_kubeconfig());
    let files = desk.files();
    let _cluster = management.cluster("prod-1").namespace("tenant-a").create();
    apply(&management, &kustomize(&[], &folder()));
    kubectl.apply_object(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
    }));
    let steps = section("operate.md", "## Split a fleet").into_iter();
    let steps = steps.map(|(_, command)| command).collect::<Vec<_>>();
    let [label, create, delete, leases, check] = steps.as_slice() else {
        panic!("{steps:?}");
    };

    desk.follow(label);
    for part in ["blue", "green"] {
        std::fs::create_dir(files.join(part)).unwrap();
        let overlay = overlay.trim_start().replace("blue", part);
        files.write(&format!("{part}/kustomization.yaml"), overlay);
        desk.follow(&create.replace("blue", part));
    }
    // No Pod runs, so no controller is the leader, and the check fails.
    desk.follow(&format!("{delete}\n{leases}\n{check} || [ $? = 20 ]"));
    let left = ["get", "deployment,lease", "-n", NAMESPACE, "-o", "name"];
    assert_eq!(kubectl.ok(left), "");
    let labeled = kubectl.json([
        "get",
        "clusters.cluster.x-k8s.io",
        "prod-1",
        "-n",
        "tenant-a",
    ]);
    let filter = &labeled["metadata"]["labels"]["cluster.x-k8s.io/watch-filter"];
    assert_eq!(filter, "blue");

    for part in ["blue", "green"] {
        let (namespace, name) = (format!("node-attestation-{part}"), format!("{NAME}-{part}"));
        let deployment = kubectl.json(["get", "deployment", &name, "-n", &namespace]);
        let pod = &deployment["spec"]["template"]["spec"];
        let arguments = pod["containers"][0]["args"].as_array().unwrap();
        assert_eq!(arguments.last().unwrap(), &format!("--watch-filter={part}"));
        assert_eq!(pod["serviceAccountName"], name.as_str());
        let user = format!("--as=system:serviceaccount:{namespace}:{name}");
        for words in [
            ["create", "nodeidentities", "-n", "anywhere"],
            ["create", "leases", "-n", &namespace],
        ] {
            let words = ["auth", "can-i"].into_iter().chain(words).chain([&*user]);
            assert_eq!(kubectl.ok(words).trim(), "yes", "{name}");
        }
    }
}

/// Sends the machine's request with a new key, and returns the request after its answer.
fn join(cluster: &WorkloadCluster, machine: &Machine) -> Value {
    let application = Application::claiming(
        machine.node_name(),
        machine.provider_id(),
        Provider::INSECURE,
        None,
    );
    let plane = cluster.control_plane();
    let kubectl = plane.kubectl_with(machine.bootstrap_kubeconfig());
    kubectl.create_object(&application.to_json());
    let name = application.name();
    plane.wait_for_csr(&name, |csr| {
        csr["metadata"]["name"] == *name && is_answered(csr)
    })
}

#[test]
fn a_cluster_has_metrics_until_its_authentication_is_deleted() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let machine = cluster.machine("m1").node_name("node-1").create();
    let files = Scratch::new("deploy");
    let (_manager, diagnostics) = start(&management, NAMESPACE, &files, "manager");
    let authentication = authorize(&management, &cluster, &["insecure"], json!({}));
    let kubectl = management.kubectl();
    authentication.wait_until_ready(kubectl);

    join(&cluster, &machine);
    let of = r#"namespace="default",cluster="prod-1""#;
    let condition = |of_type: &str, status: &str| {
        format!(
            r#"node_attestation_cluster_condition{{{of},type="{of_type}",status="{status}"}} 1.0"#
        )
    };
    let decided = |outcome: &str, reason: &str| {
        format!(
            r#"node_attestation_csr_total{{outcome="{outcome}",reason="{reason}",provider="insecure"}} 1"#
        )
    };
    let text = diagnostics.wait_for(&[
        &decided("issued", "FirstJoin"),
        &format!(r#"node_attestation_records{{{of},state="live"}} 1.0"#),
        &format!(r#"node_attestation_records{{{of},state="tombstone"}} 0.0"#),
        &format!("node_attestation_pending_csrs{{{of}}} 0.0"),
        &condition("Ready", "true"),
        &condition("WorkloadClusterReachable", "true"),
        r#"node_attestation_clusters{phase="serving"} 1.0"#,
        r#"node_attestation_record_writes_total{operation="create",result="ok"} 1"#,
        &format!(r#"node_attestation_watch_up{{kind="CertificateSigningRequest",{of}}} 1.0"#),
    ]);
    let expiry = format!("node_attestation_earliest_expiry_timestamp_seconds{{{of}}}");
    let status = kubectl.json(["get", "kubeletauthentication", "prod-1"]);
    let expected = status["status"]["earliestExpiry"].as_str().unwrap();
    let expected: jiff::Timestamp = expected.parse().unwrap();
    assert_eq!(
        value(&text, &expiry),
        Some(expected.as_duration().as_secs_f64())
    );
    let written = r#"node_attestation_status_writes_total{result="ok"}"#;
    assert!(value(&text, written) >= Some(1.0), "{text}");

    // The command revokes the certificates of a known machine, and of an unknown machine.
    let identities = Command::new(program(NAME))
        .args(["identities", "revoke", "--yes", "prod-1", "node-1"])
        .arg("--kubeconfig")
        .arg(management.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(identities.status.success(), "{identities:?}");
    let denied = join(&cluster, &machine);
    assert_eq!(reason_of(&denied, "Denied"), Some("IdentityRevoked"));
    let plane = cluster.control_plane();
    let unknown = Application::claiming("node-9", "generic:///m9", Provider::INSECURE, None);
    let token = plane.add_bootstrap_token("absent", "0123456789abcdef");
    plane.wait_for_bootstrap_token(&token);
    let stranger = plane.kubectl_with(plane.bootstrap_kubeconfig(&token));
    stranger.create_object(&unknown.to_json());
    let waits = [
        decided("denied", "IdentityRevoked"),
        decided("deferred", "MachineNotFound"),
        format!("node_attestation_pending_csrs{{{of}}} 1.0"),
    ];
    let text = diagnostics.wait_for(&waits.each_ref().map(String::as_str));
    let oldest = value(
        &text,
        &format!("node_attestation_oldest_pending_csr_seconds{{{of}}}"),
    );
    assert!(oldest < Some(600.0), "{text}");

    kubectl.ok(["delete", "kubeletauthentication", "prod-1"]);
    let gone = || Some(diagnostics.scrape()).filter(|text| !text.contains("prod-1"));
    let text = poll(DEADLINE, gone).unwrap_or_else(|| panic!("{}", diagnostics.scrape()));
    assert!(has_line(&text, &decided("issued", "FirstJoin")), "{text}");
    assert!(!text.contains("node_attestation_clusters{"), "{text}");
}
