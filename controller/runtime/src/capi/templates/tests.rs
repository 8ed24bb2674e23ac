use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use kubelet_attestation::errors::error_chain;
use serde_json::{Value, json};

use super::super::testing::{NAMESPACE, with};
use super::*;
use crate::client::ClusterAccess;

/// The API groups, each with the plurals and the names of its kinds.
const GROUPS: [(&str, &[(&str, &str)]); 3] = [
    (
        "cluster.x-k8s.io",
        &[
            ("clusters", "Cluster"),
            ("machines", "Machine"),
            ("machinedeployments", "MachineDeployment"),
            ("machinepools", "MachinePool"),
        ],
    ),
    (
        "controlplane.cluster.x-k8s.io",
        &[
            ("kubeadmcontrolplanes", "KubeadmControlPlane"),
            ("k0scontrolplanes", "K0sControlPlane"),
        ],
    ),
    (
        "bootstrap.cluster.x-k8s.io",
        &[
            ("kubeadmconfigs", "KubeadmConfig"),
            ("kubeadmconfigtemplates", "KubeadmConfigTemplate"),
        ],
    ),
];

fn object(name: &str, spec: Value) -> Value {
    let mut object = json!({"metadata": {
        "name": name, "namespace": NAMESPACE, "uid": name,
        "labels": {"cluster.x-k8s.io/cluster-name": "prod-1"},
    }});
    object["spec"] = spec;
    object
}

/// A Machine of `prod-1` with an additional label.
fn machine(name: &str, label: &str, value: &str) -> Value {
    let mut machine = object(name, json!({"clusterName": "prod-1"}));
    machine["metadata"]["labels"][label] = json!(value);
    machine
}

fn referring_to(kind: &str, name: &str) -> Value {
    let group = "bootstrap.cluster.x-k8s.io";
    let reference = json!({"apiGroup": group, "kind": kind, "name": name});
    json!({"clusterName": "prod-1", "replicas": 0,
        "template": {"spec": {"bootstrap": {"configRef": reference}}}})
}

/// A `KubeadmConfigSpec` that contains the plugin.
fn plugin() -> Value {
    let drop_in = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";
    json!({"files": [{"path": "/a"}, {"path": drop_in, "content": "[Service]"}]})
}

/// The objects of `prod-1`, keyed by plural. Each template contains the plugin, and no machine exists.
fn good() -> Value {
    json!({
        "kubeadmcontrolplanes": [object("prod-1", json!({"kubeadmConfigSpec": plugin()}))],
        "machinedeployments": [object("workers", referring_to("KubeadmConfigTemplate", "workers"))],
        "machinepools": [object("pool", referring_to("KubeadmConfig", "pool"))],
        "kubeadmconfigtemplates": [object("workers", json!({"template": {"spec": plugin()}}))],
        "kubeadmconfigs": [object("pool", plugin())],
        "machines": [],
    })
}

fn status(code: u16) -> Value {
    json!({"kind": "Status", "metadata": {}, "code": code, "reason": "NotFound", "message": "no"})
}

/// Whether an object has the labels of this selector.
fn is_selected(object: &Value, selector: &str) -> bool {
    selector.split(',').all(|term| {
        let (key, value) = term.split_once('=').unwrap_or((term, ""));
        let label = object["metadata"]["labels"][key].as_str();
        label.is_some_and(|label| value.is_empty() || label == value)
    })
}

fn answer(objects: &Value, path: &str, query: &str) -> Value {
    let group_of = |(name, _): &(&str, _)| {
        let version = json!({"groupVersion": format!("{name}/v1beta2"), "version": "v1beta2"});
        json!({"name": name, "versions": [version]})
    };
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match parts[..] {
        ["apis"] => {
            let groups: Vec<_> = GROUPS.iter().map(group_of).collect();
            json!({"kind": "APIGroupList", "groups": groups})
        }
        ["apis", group, "v1beta2"] => {
            let (_, kinds) = GROUPS.iter().find(|(name, _)| *name == group).unwrap();
            // If a kind does not have objects here, the API server does not define the kind.
            let kinds = kinds
                .iter()
                .filter(|(plural, _)| objects.get(plural).is_some());
            let resource = |(plural, kind): &(&str, &str)| {
                json!({
                    "name": plural, "kind": kind, "namespaced": true, "singularName": "",
                    "verbs": ["get"],
                })
            };
            let resources: Vec<_> = kinds.map(resource).collect();
            let version = format!("{group}/v1beta2");
            json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources})
        }
        ["apis", _, _, "namespaces", NAMESPACE, plural] => {
            let query = query
                .replace("%2F", "/")
                .replace("%3D", "=")
                .replace("%2C", ",");
            let selector = query
                .split('&')
                .find_map(|pair| pair.strip_prefix("labelSelector="));
            let selector = selector.unwrap();
            let items = objects[plural].as_array().unwrap().iter();
            let items: Vec<_> = items.filter(|one| is_selected(one, selector)).collect();
            json!({"metadata": {}, "items": items})
        }
        ["apis", _, _, "namespaces", NAMESPACE, plural, name] => {
            let Some(objects) = objects[plural].as_array() else {
                return objects[plural].clone();
            };
            let mut objects = objects.iter();
            let found = objects.find(|one| one["metadata"]["name"] == *name);
            found.cloned().unwrap_or_else(|| status(404))
        }
        _ => panic!("{path} is asked for"),
    }
}

/// The result for a management cluster with these objects, where the Machines in `recorded` have records. Also returns
/// the paths of all calls.
async fn read(objects: Value, recorded: &[&str]) -> (Result<Vec<String>, String>, Vec<String>) {
    let called: Arc<Mutex<Vec<String>>> = Arc::default();
    let calls = called.clone();
    let access = ClusterAccess::in_memory(move |request| {
        let path = request.uri().path().to_owned();
        let answer = answer(&objects, &path, request.uri().query().unwrap_or_default());
        calls.lock().unwrap().push(path);
        let code = answer["code"].as_u64().unwrap_or(200);
        let response = Response::builder().status(u16::try_from(code).unwrap());
        let response = response.body(Full::new(Bytes::from(answer.to_string())));
        async move { response.unwrap() }
    });
    let cluster = ObjectKey::new(NAMESPACE, "prod-1");
    let inventory = CapiInventory::of_command(access.client().clone(), cluster);
    let mut with_record = Recorded::default();
    for name in recorded {
        with_record.add(Some(name), &format!("generic:///rack/{name}"));
    }
    let found = inventory.without_plugin(&with_record).await;
    let found = found.map_err(|error| error_chain(&error));
    let called = called.lock().unwrap().clone();
    (found, called)
}

async fn without_plugin(objects: Value, recorded: &[&str]) -> Result<Vec<String>, String> {
    read(objects, recorded).await.0
}

#[tokio::test]
async fn templates_without_the_plugin_are_named() {
    assert_eq!(without_plugin(good(), &[]).await, Ok(vec![]));

    let spec = "/machinedeployments/0/spec/template/spec";
    let kind = format!("{spec}/bootstrap/configRef/kind");
    let cases = [
        ("/kubeadmcontrolplanes/0/spec/kubeadmConfigSpec", json!({})),
        ("/kubeadmcontrolplanes/0/spec", json!(7)),
        (
            "/kubeadmconfigtemplates/0/spec/template/spec/files",
            json!([]),
        ),
        ("/kubeadmconfigtemplates/0/metadata/name", json!("other")),
        (kind.as_str(), json!("EKSConfigTemplate")),
        (spec, json!(7)),
        ("/kubeadmconfigs/0/spec", json!({})),
        ("/machinepools/0/spec", json!({"clusterName": "prod-1"})),
    ];
    for (place, value) in cases {
        let expected = match place.split('/').nth(1).unwrap() {
            "kubeadmcontrolplanes" => "KubeadmControlPlane prod-1",
            "kubeadmconfigs" | "machinepools" => "MachinePool pool",
            _ => "MachineDeployment workers",
        };
        let found = without_plugin(with(good(), place, value), &[]).await;
        assert_eq!(found, Ok(vec![expected.to_owned()]), "{place}");
    }
}

#[tokio::test]
async fn the_plugin_is_found_in_files_and_commands() {
    let template = "/kubeadmconfigtemplates/0/spec/template/spec";
    let named = Ok(vec!["MachineDeployment workers".to_owned()]);
    for (spec, expected) in [
        (
            json!({"files": [{"path": "/a", "content": "/usr/bin/kubelet-authenticator-tpm"}]}),
            Ok(vec![]),
        ),
        (
            json!({"preKubeadmCommands": ["a", "kubelet-authenticator-aws setup"]}),
            Ok(vec![]),
        ),
        (
            json!({"files": [{"path": "/a", "content": null}], "preKubeadmCommands": ["a"]}),
            named.clone(),
        ),
        (json!(null), named),
    ] {
        let found = without_plugin(with(good(), template, spec.clone()), &[]).await;
        assert_eq!(found, expected, "{spec}");
    }
}

#[tokio::test]
async fn a_member_with_a_record_replaces_the_plugin_in_the_template() {
    let deployment = machine("m1", "cluster.x-k8s.io/deployment-name", "workers");
    let plane = machine("m1", "cluster.x-k8s.io/control-plane", "");
    let template = ("/kubeadmconfigtemplates/0/spec", json!({}));
    let config = ("/kubeadmcontrolplanes/0/spec", json!({}));
    let named = |name: &str| Ok(vec![name.to_owned()]);
    let workers = "MachineDeployment workers";
    let cases: [(_, &Value, &[&str], _); 7] = [
        (&template, &deployment, &["m1"], Ok(vec![])),
        (&template, &deployment, &["m2"], named(workers)),
        (&template, &plane, &["m1"], named(workers)),
        (&config, &plane, &["m1"], Ok(vec![])),
        (&config, &plane, &[], named("KubeadmControlPlane prod-1")),
        (
            &config,
            &deployment,
            &["m1"],
            named("KubeadmControlPlane prod-1"),
        ),
        (&config, &plane, &["m1", "m2"], Ok(vec![])),
    ];
    for ((place, value), machine, recorded, expected) in cases {
        let objects = with(good(), place, value.clone());
        let objects = with(objects, "/machines", json!([machine]));
        let found = without_plugin(objects, recorded).await;
        assert_eq!(found, expected, "{place}: {recorded:?}");
    }

    let pool = with(good(), "/kubeadmconfigs/0/spec", json!({}));
    let ids = json!(["generic:///rack/m1", "generic:///rack/m2"]);
    let pool = with(pool, "/machinepools/0/spec/providerIDList", ids);
    assert_eq!(without_plugin(pool.clone(), &["m2"]).await, Ok(vec![]));
    assert_eq!(
        without_plugin(pool, &["m3"]).await,
        named("MachinePool pool")
    );
}

/// The objects of a Cluster whose control plane is of another kind, and has this spec and the Machine `m1`.
fn other_control_plane(spec: Value) -> Value {
    let reference = json!({
        "apiGroup": CONTROL_PLANE_GROUP, "kind": "K0sControlPlane", "name": "plane",
    });
    let mut objects = good();
    objects["kubeadmcontrolplanes"] = json!([]);
    objects["clusters"] = json!([object("prod-1", json!({"controlPlaneRef": reference}))]);
    objects["k0scontrolplanes"] = json!([object("plane", spec)]);
    objects["machines"] = json!([machine("m1", CONTROL_PLANE, "")]);
    objects
}

#[tokio::test]
async fn a_control_plane_of_another_kind_without_the_plugin_is_named() {
    let stock = json!({"k0sConfigSpec": {"files": [{"path": "/a", "content": "b"}]}});
    let stock = other_control_plane(stock);
    let named = |name: &str| Ok(vec![name.to_owned()]);
    let plane = named("K0sControlPlane plane");
    assert_eq!(without_plugin(stock.clone(), &[]).await, plane);
    assert_eq!(without_plugin(stock.clone(), &["m2"]).await, plane);
    assert_eq!(without_plugin(stock.clone(), &["m1"]).await, Ok(vec![]));

    let reference = "/clusters/0/spec/controlPlaneRef";
    let [kind, namespace] = ["kind", "namespace"].map(|field| format!("{reference}/{field}"));
    let drop_in = json!("/usr/bin/kubelet-authenticator-tpm");
    let worker = machine("m1", "cluster.x-k8s.io/deployment-name", "workers");
    let since = json!("2026-11-28T12:00:00Z");
    let cases = [
        (
            "/k0scontrolplanes/0/spec/k0sConfigSpec/files/0/content",
            drop_in,
            Ok(vec![]),
        ),
        ("/k0scontrolplanes/0/spec", json!(null), plane.clone()),
        ("/k0scontrolplanes", json!([]), plane),
        (
            "/k0scontrolplanes/0/metadata/deletionTimestamp",
            since,
            Ok(vec![]),
        ),
        // A managed control plane has no Machines.
        ("/machines", json!([]), Ok(vec![])),
        ("/machines", json!([worker]), Ok(vec![])),
        ("/clusters/0/spec", json!({}), Ok(vec![])),
        (kind.as_str(), json!("KubeadmControlPlane"), Ok(vec![])),
        (
            namespace.as_str(),
            json!("other"),
            named("K0sControlPlane prod-1"),
        ),
        (
            reference,
            json!({"name": "plane"}),
            named("control plane of prod-1"),
        ),
    ];
    for (place, value, expected) in cases {
        let found = without_plugin(with(stock.clone(), place, value), &[]).await;
        assert_eq!(found, expected, "{place}");
    }
}

#[tokio::test]
async fn a_control_plane_of_another_kind_that_is_forbidden_is_an_error() {
    let mut forbidden = status(403);
    forbidden["reason"] = json!("Forbidden");
    let objects = with(
        other_control_plane(json!({})),
        "/k0scontrolplanes",
        forbidden,
    );
    assert_eq!(without_plugin(objects.clone(), &["m1"]).await, Ok(vec![]));

    let error = without_plugin(objects, &[]).await.unwrap_err();

    let begin = "cannot read K0sControlPlane plane: ";
    assert!(error.starts_with(begin), "{error}");
}

#[tokio::test]
async fn objects_that_create_no_machines_need_no_plugin() {
    let stock = with(good(), "/kubeadmconfigtemplates/0/spec", json!({}));
    let since = json!("2026-11-28T12:00:00Z");
    let deleted = with(
        stock.clone(),
        "/machinedeployments/0/metadata/deletionTimestamp",
        since,
    );
    assert_eq!(without_plugin(deleted, &[]).await, Ok(vec![]));

    let label = "/machinedeployments/0/metadata/labels";
    let other = json!({"cluster.x-k8s.io/cluster-name": "prod-2"});
    assert_eq!(
        without_plugin(with(stock, label, other), &[]).await,
        Ok(vec![])
    );
}

#[tokio::test]
async fn kinds_that_are_not_served_have_no_objects() {
    let only = json!({"machines": [], "machinedeployments": good()["machinedeployments"]});
    let named = Ok(vec!["MachineDeployment workers".to_owned()]);
    assert_eq!(without_plugin(only, &[]).await, named);
    assert_eq!(
        without_plugin(json!({"machines": []}), &[]).await,
        Ok(vec![])
    );
}

#[tokio::test]
async fn templates_that_are_forbidden_are_an_error() {
    let mut forbidden = status(403);
    forbidden["reason"] = json!("Forbidden");
    let objects = with(good(), "/kubeadmconfigtemplates", forbidden);

    let error = without_plugin(objects, &[]).await.unwrap_err();

    assert!(
        error.starts_with("cannot read KubeadmConfigTemplate workers: "),
        "{error}"
    );
}

#[tokio::test]
async fn few_of_many_templates_are_read() {
    let reference = |template: &str| referring_to("KubeadmConfigTemplate", template);
    let many = |template: &dyn Fn(usize) -> String| -> Value {
        let numbers = 0..100;
        let object = |number| object(&format!("w{number}"), reference(&template(number)));
        numbers.map(object).collect()
    };
    let is_read = |path: &&String| path.contains("/kubeadmconfigtemplates/");

    let missing = with(
        good(),
        "/machinedeployments",
        many(&|number| number.to_string()),
    );
    let (found, called) = read(missing, &[]).await;
    assert_eq!(found.unwrap().len(), MAX_WITHOUT_PLUGIN);
    assert_eq!(called.iter().filter(is_read).count(), MAX_WITHOUT_PLUGIN);

    let shared = with(
        good(),
        "/machinedeployments",
        many(&|_| "workers".to_owned()),
    );
    let (found, called) = read(shared, &[]).await;
    assert_eq!(found, Ok(vec![]));
    assert_eq!(called.iter().filter(is_read).count(), 1);
}
