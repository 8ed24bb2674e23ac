//! Tests of KubeletAuthentications that the Cluster itself requests. `real_machines` runs the same tests with Cluster
//! API's managers, and also deletes and moves Clusters.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use kubelet_authenticator_test_support::control_plane::{DEADLINE, Kubectl};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::{Authentication, assert_first_generation};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::{Value, json};

use crate::SITE;

const ATTESTORS: &str = "attestation.cluster.x-k8s.io/authorized-attestors";
/// The resource name of Clusters for kubectl. The group in the name excludes resources in other groups.
const CLUSTERS: &str = "clusters.cluster.x-k8s.io";
const ENABLED_BY: &str = "attestation.cluster.x-k8s.io/enabled-by";

fn management() -> &'static Kubectl {
    SITE.management.kubectl()
}

/// A Cluster `prod-1` in a separate namespace, without an API server.
struct Bare {
    namespace: &'static str,
}

impl Bare {
    fn new(namespace: &'static str, annotation: Option<&str>, spec: &Value) -> Self {
        management().apply_object(&json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace},
        }));
        let annotation = annotation.map(|text| (ATTESTORS, text));
        let annotations: BTreeMap<_, _> = annotation.into_iter().collect();
        management().create_object(&json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "prod-1", "namespace": namespace, "annotations": annotations},
            "spec": spec,
        }));
        Self { namespace }
    }

    fn annotate(&self, attestors: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {ATTESTORS: attestors}}});
        let target = [CLUSTERS, "prod-1", "-n", self.namespace];
        management().patch(&target, &patch);
    }

    /// The Cluster's KubeletAuthentication.
    fn authentication(&self) -> Option<Value> {
        let words = ["get", "kubeletauthentications", "-n", self.namespace];
        let list = management().json(words);
        list["items"].as_array().unwrap().first().cloned()
    }

    /// Waits until the Cluster has a KubeletAuthentication that authorizes these attestors.
    #[track_caller]
    fn wait_for(&self, attestors: &[&str]) -> Value {
        let found = poll(DEADLINE, || {
            let wanted = json!(attestors);
            let is_wanted = |one: &Value| one["spec"]["authorizedAttestors"] == wanted;
            self.authentication().filter(is_wanted)
        });
        found.unwrap_or_else(|| panic!("{:#}", json!(self.authentication())))
    }

    /// Waits for a warning on the Cluster. Returns its message.
    #[track_caller]
    fn wait_for_warning(&self, reason: &str) -> String {
        let field = format!("involvedObject.name=prod-1,type=Warning,reason={reason}");
        let events = ["events", "-n", self.namespace, "--field-selector", &field];
        let event = management().wait_for(&events, reason, DEADLINE, |_| true);
        let cluster = management().json(["get", CLUSTERS, "prod-1", "-n", self.namespace]);
        let about = &event["involvedObject"];
        assert_eq!(about["kind"], "Cluster", "{event:#}");
        assert_eq!(about["uid"], cluster["metadata"]["uid"], "{event:#}");
        event["message"].as_str().unwrap().to_owned()
    }
}

/// The variable of a topology, enabled with these attestors.
fn variable(enabled: bool, attestors: &[&str]) -> Value {
    let value = json!({"enabled": enabled, "authorizedAttestors": attestors});
    let variables = json!([{"name": "kubeletAuthentication", "value": value}]);
    json!({"topology": {"classRef": {"name": "any"}, "variables": variables}})
}

#[test]
fn a_cluster_with_an_annotation_is_managed_and_its_machines_join() {
    let cluster = Scene::unattended(&SITE, "annotated");
    let patch = json!({"metadata": {"annotations": {ATTESTORS: "aws"}}});
    management().patch(&[CLUSTERS, "prod-1", "-n", "annotated"], &patch);

    let authentication = Authentication {
        namespace: "annotated".to_owned(),
        name: "prod-1".to_owned(),
    };
    let ready = authentication.wait_until_ready(management());

    // Settings without a value remain unset. Attestation is therefore enforced.
    for field in ["autoApproveBindings", "adoption", "exemptNodes"] {
        assert_eq!(ready["spec"][field], Value::Null, "{field}: {ready:#}");
    }
    let owner = &ready["metadata"]["ownerReferences"];
    let expected = json!([{
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "prod-1",
        "uid": cluster.get()["metadata"]["uid"],
    }]);
    assert_eq!(*owner, expected);
    let scene = Scene {
        site: SITE.clone(),
        cluster,
        authentication,
    };
    let machine = scene.cluster.machine("m1").node_name("node-1").create();
    scene.join(&machine);
    assert_first_generation(&scene.record("node-1"));

    let told = scene.wait_for_paths("True", "Closed", &[]);
    assert!(!told.contains("not enforced"), "{told}");
    // The controller writes the number of node identities after it has written the first node identity.
    let expected = [
        "annotated",
        "prod-1",
        "aws",
        "True",
        "Ready",
        "True",
        "Closed",
        "1",
    ];
    let is_listed = || {
        let listed = printed(&["-n", "annotated"]);
        let row = listed.lines().nth(1).unwrap().split_whitespace();
        row.eq(expected).then_some(())
    };
    assert!(poll(SWEPT, is_listed).is_some(), "{}", printed(&[]));
    let workload = scene.cluster.control_plane().admin_kubeconfig();
    let output = clusters(&["--kubeconfig", workload.to_str().unwrap()]);
    assert_refused(&output, &["is Cluster API installed?"]);
}

#[test]
fn the_resource_follows_the_annotation_and_is_kept_without_it() {
    let cluster = Bare::new("followed", Some("aws, tpm"), &json!({}));
    let made = cluster.wait_for(&["aws", "tpm"]);
    assert_eq!(made["metadata"]["annotations"][ENABLED_BY], "Cluster");
    // The controller does not change other fields that an operator sets.
    let target = ["kubeletauthentication", "prod-1", "-n", "followed"];
    let patch = json!({"spec": {"adoption": "Allow"}});
    management().patch(&target, &patch);

    cluster.annotate(Some("tpm"));

    let followed = cluster.wait_for(&["tpm"]);
    assert_eq!(followed["spec"]["adoption"], "Allow");
    let patch = json!({"spec": {"authorizedAttestors": ["aws"]}});
    management().patch(&target, &patch);
    cluster.wait_for(&["tpm"]);

    cluster.annotate(None);

    // A later change for a different Cluster proves that the controller has processed this change.
    Bare::new("followed-after", Some("aws"), &json!({})).wait_for(&["aws"]);
    let stays = cluster.wait_for(&["tpm"]);
    assert_eq!(stays["metadata"]["uid"], made["metadata"]["uid"]);
    management().patch(&target, &patch);
    Bare::new("followed-last", Some("aws"), &json!({})).wait_for(&["aws"]);
    cluster.wait_for(&["aws"]);
}

#[test]
fn a_topology_variable_is_equivalent_to_the_annotation() {
    let enabled = Bare::new("variable", None, &variable(true, &["aws"]));
    enabled.wait_for(&["aws"]);

    let disabled = Bare::new("variable-false", None, &variable(false, &["aws"]));
    let agreed = Bare::new("variable-both", Some("tpm"), &variable(false, &["aws"]));

    agreed.wait_for(&["tpm"]);
    assert_eq!(disabled.authentication(), None);
}

#[test]
fn a_value_refused_by_the_api_server_is_reported_with_its_message() {
    for (namespace, value, words) in [
        (
            "refused-insecure",
            "insecure,aws",
            "insecure cannot be combined",
        ),
        ("refused-null", "null", "null approves every request"),
        ("refused-form", "AWS!", "should match"),
        ("refused-empty", "", "should be at least 1 chars long"),
    ] {
        let cluster = Bare::new(namespace, Some(value), &json!({}));

        let message = cluster.wait_for_warning("AttestorsRefused");

        assert!(message.contains(words), "{message}");
        assert_eq!(cluster.authentication(), None);
    }
}

#[test]
fn a_paused_cluster_is_not_managed_until_it_is_unpaused() {
    let cluster = Bare::new("paused", Some("aws"), &json!({"paused": true}));
    Bare::new("paused-not", Some("aws"), &json!({})).wait_for(&["aws"]);
    assert_eq!(cluster.authentication(), None);

    let target = [CLUSTERS, "prod-1", "-n", "paused"];
    management().patch(&target, &json!({"spec": {"paused": false}}));

    cluster.wait_for(&["aws"]);
}

fn clusters(arguments: &[&str]) -> Output {
    Command::new(program("node-attestation-controller"))
        .arg("clusters")
        .args(arguments)
        .output()
        .unwrap()
}

#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let kubeconfig = SITE.management.admin_kubeconfig().to_str().unwrap();
    let output = clusters(&[&["--kubeconfig", kubeconfig], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts that the program exited with 3, printed nothing to standard output, and that its error contains all `words`.
#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn clusters_without_a_resource_are_listed() {
    let _without = Bare::new("listed-without", None, &json!({}));
    let with = Bare::new("listed-with", Some("aws"), &json!({}));
    with.wait_for(&["aws"]);
    let named = |text: &str| -> Vec<String> {
        let rows = text.lines().skip(1);
        rows.map(|row| row.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
            .filter(|row| row.starts_with("listed-"))
            .collect()
    };

    let with = "listed-with prod-1 aws";
    let without = "listed-without prod-1 <none>";
    assert_eq!(named(&printed(&[])), [with, without]);
    assert_eq!(named(&printed(&["--unmanaged"])), [without]);
    assert_eq!(named(&printed(&["-n", "listed-with"])), [with]);
    assert!(named(&printed(&["--unmanaged", "-n", "listed-with"])).is_empty());

    let json = |arguments: &[&str]| -> Value { serde_json::from_str(&printed(arguments)).unwrap() };
    let expected = json!([{
        "namespace": "listed-without", "name": "prod-1", "kubeletAuthentication": null,
    }]);
    assert_eq!(json(&["-o", "json", "-n", "listed-without"]), expected);
    let with = json(&["-o", "json", "-n", "listed-with"]);
    let spec = &with[0]["kubeletAuthentication"]["spec"];
    assert_eq!(spec["authorizedAttestors"], json!(["aws"]), "{with:#}");

    let control_plane = SITE.management.control_plane();
    let nobody = control_plane.client_cert_kubeconfig("nobody", None);
    let output = clusters(&["--kubeconfig", nobody.to_str().unwrap()]);
    assert_refused(&output, &["cannot list Clusters", "forbidden", "nobody"]);
}
