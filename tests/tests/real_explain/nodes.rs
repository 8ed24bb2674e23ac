//! `cluster check --nodes`.

use super::*;

/// A Node that exists before a plugin is installed.
fn node(scene: &Scene, name: &str, provider_id: Option<&str>) {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    if let Some(provider_id) = provider_id {
        node["spec"] = json!({ "providerID": provider_id });
    }
    scene.kubectl().apply_object(&node);
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
    node(&scene, "n1", Some(first.provider_id()));
    node(&scene, "n2", None);
    node(&scene, "n3", Some(joined.provider_id()));
    // The Node has the provider ID of another Machine.
    node(&scene, "n4", Some(second.provider_id()));
    node(&scene, "stranger", None);
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
    assert!(finding.contains("denied from n4"), "{finding}");
    let table = String::from_utf8(run_as(&admin(), &arguments).stdout).unwrap();
    let row = table.lines().find(|line| line.contains(" n4 ")).unwrap();
    assert!(
        row.contains("NodeNameMismatch") && row.ends_with("unknown"),
        "{row}"
    );
    assert_eq!(records(), 1);
}
