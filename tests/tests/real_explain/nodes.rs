//! Tests of `cluster check --nodes`.

use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_tests::cloud::{Cloud, OWNED, REGION};

use super::*;

/// Creates a Node that exists before a plugin is installed.
fn node(kubectl: &Kubectl, name: &str, provider_id: Option<&str>) {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    if let Some(provider_id) = provider_id {
        node["spec"] = json!({ "providerID": provider_id });
    }
    kubectl.apply_object(&node);
}

#[test]
fn existing_nodes_are_predicted_with_their_machine_and_reason() {
    let cluster = Scene::unattended(&SITE, "check-nodes");
    let settings = json!({"adoption": "AllowWithoutEvidence"});
    let authentication = authorize(&SITE.management, &cluster, &["insecure"], settings);
    authentication.wait_until_ready(SITE.management.kubectl());
    let scene = Scene {
        site: SITE.clone(),
        cluster,
        authentication,
    };
    let machine = |name: &str| scene.cluster.machine(name).create();
    let [first, second, joined] = ["n1", "n2", "n3"].map(machine);
    let name = scene.file(&joined.bootstrap_kubeconfig(), &of(&joined));
    scene.answer(&name);
    node(scene.kubectl(), "n1", Some(first.provider_id()));
    node(scene.kubectl(), "n2", None);
    node(scene.kubectl(), "n3", Some(joined.provider_id()));
    // The Node has the provider ID of another Machine.
    node(scene.kubectl(), "n4", Some(second.provider_id()));
    node(scene.kubectl(), "stranger", None);
    let records = || {
        let namespace = scene.cluster.namespace();
        let list = scene
            .management()
            .json(["get", "nodeidentities", "--namespace", namespace]);
        list["items"].as_array().unwrap().len()
    };
    assert_eq!(records(), 1);
    let cluster = key(&scene);

    let arguments = ["cluster", "check", &cluster, "--nodes"];
    let output = run_as(&admin(), &[&arguments[..], &["-o", "json"]].concat());

    assert_eq!(output.status.code(), Some(20), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = object["nodes"].as_array().unwrap();
    let field = |node: &Value, name: &str| node[name].as_str().map(str::to_owned);
    let found: Vec<_> = nodes
        .iter()
        .map(|node| ["node", "outcome", "reason", "machine"].map(|name| field(node, name)))
        .collect();
    let some = |text: &str| Some(text.to_owned());
    let expected = [
        [some("n1"), some("accepted"), some(""), some("n1")],
        [some("n2"), some("accepted"), some(""), some("n2")],
        [some("n3"), some("recorded"), some(""), None],
        [
            some("n4"),
            some("denied"),
            some("NodeNameMismatch"),
            some("n2"),
        ],
        [
            some("stranger"),
            some("deferred"),
            some("MachineNotFound"),
            None,
        ],
    ];
    assert_eq!(found, expected, "{object:#}");
    assert_eq!(nodes[0]["providerID"], first.provider_id());
    assert_eq!(nodes[0]["certificateExpiry"], Value::Null);
    let checks = object["checks"].as_array().unwrap();
    let last = checks.last().unwrap();
    assert_eq!(
        (&last["name"], &last["state"]),
        (&json!("predictions"), &json!("fail"))
    );
    let finding = last["finding"].as_str().unwrap();
    assert!(finding.contains("would be denied: n4"), "{finding}");
    let table = String::from_utf8(run_as(&admin(), &arguments).stdout).unwrap();
    let row = table.lines().find(|line| line.contains(" n4 ")).unwrap();
    assert!(
        row.contains("NodeNameMismatch") && row.ends_with("unknown"),
        "{row}"
    );
    assert_eq!(records(), 1);
}

#[test]
fn a_prediction_with_ec2_has_the_name_and_the_tags_of_the_instance() {
    let cloud = Cloud::start();
    let cluster = Scene::unattended(&SITE, "check-ec2");
    let settings = json!({"adoption": "Allow"});
    let Authentication { namespace, name } =
        authorize(&SITE.management, &cluster, &["aws"], settings);
    let [own, foreign] = [&[OWNED][..], &[]].map(|tags| cloud.launched_an_hour_ago(tags));
    for (machine, instance) in [("m1", &own), ("m2", &foreign)] {
        let id = instance.provider_id();
        cluster.machine(machine).provider_id(&id).create();
        let kubectl = cluster.control_plane().kubectl();
        node(kubectl, instance.node_name(), Some(&id));
    }
    let predicted = |options: &[&str]| {
        let output = Command::new(program("node-attestation-controller"))
            .args(["cluster", "check", &name, "-n", &namespace, "--nodes"])
            .args(["-o", "json", "--insecure-allow-loopback", "--kubeconfig"])
            .arg(admin())
            .args(options)
            .envs(cloud.manager_environment())
            .output()
            .unwrap();
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        let nodes = object["nodes"].as_array().unwrap().clone();
        [&own, &foreign].map(|instance| {
            let node = nodes.iter().find(|one| one["node"] == instance.node_name());
            node.unwrap_or_else(|| panic!("{output:?}")).clone()
        })
    };

    let uncalled = predicted(&[]);
    let endpoint = format!("{REGION}={}", cloud.moto().url());
    let [accepted, denied] = predicted(&["--ec2", "--aws-ec2-endpoint", &endpoint]);

    for node in uncalled {
        assert_eq!(
            (&node["outcome"], &node["nodeName"]),
            (&json!("undecided"), &Value::Null)
        );
    }
    assert_eq!(accepted["outcome"], "accepted", "{accepted:#}");
    assert_eq!(accepted["nodeName"], own.node_name());
    assert_eq!(accepted["machine"], "m1");
    assert!(
        accepted["instance"].as_str().unwrap().starts_with("i-"),
        "{accepted:#}"
    );
    assert_eq!(
        (&denied["outcome"], &denied["reason"]),
        (&json!("denied"), &json!("TagMismatch"))
    );
}

#[test]
fn a_prediction_with_a_tpm_has_the_listed_key_of_the_machine() {
    let cluster = Scene::unattended(&SITE, "check-tpm");
    let settings = json!({
        "adoption": "Allow",
        "tpm": {"endorsementKeys": {"configMaps": ["rack-1"]}},
    });
    let Authentication { namespace, name } =
        authorize(&SITE.management, &cluster, &["tpm"], settings);
    let machines = ["n1", "n2"].map(|name| cluster.machine(name).create());
    for machine in &machines {
        let kubectl = cluster.control_plane().kubectl();
        node(kubectl, machine.node_name(), Some(machine.provider_id()));
    }
    let digest = "0f".repeat(32);
    let [listed, _] = &machines;
    SITE.management.kubectl().apply_object(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "rack-1", "namespace": namespace},
        "data": {(&*digest): listed.provider_id()},
    }));
    let cluster = format!("{namespace}/{name}");

    let output = run_as(
        &admin(),
        &["cluster", "check", &cluster, "--nodes", "-o", "json"],
    );

    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = object["nodes"].as_array().unwrap();
    let fields = ["node", "machine", "outcome", "reason", "endorsementKey"];
    let found: Vec<_> = nodes
        .iter()
        .map(|node| fields.map(|name| node[name].as_str()))
        .collect();
    let expected = [
        [
            Some("n1"),
            Some("n1"),
            Some("accepted"),
            Some(""),
            Some(&*digest),
        ],
        [
            Some("n2"),
            Some("n2"),
            Some("denied"),
            Some("EndorsementKeyUnknown"),
            None,
        ],
    ];
    assert_eq!(found, expected, "{object:#}");
}
