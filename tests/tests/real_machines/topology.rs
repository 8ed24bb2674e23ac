//! Tests of Clusters with a ClusterClass that contains the rendered variable and patches. Cluster API's own topology
//! controller creates the objects.

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::binaries::KUBERNETES_VERSION;
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::condition_of;
use kubelet_authenticator_tests::image::{self, render};
use serde_json::{Map, Value, json};

use kubelet_authenticator_tests::machines::{Machines, PATIENCE, SITE, Scene, joinable};

const DRIVES: &str = "infrastructure.cluster.x-k8s.io/v1beta2";
const CONTROLS: &str = "controlplane.cluster.x-k8s.io/v1beta2";
const BOOTSTRAPS: &str = "bootstrap.cluster.x-k8s.io";
const CORE: &str = "cluster.x-k8s.io/v1beta2";

/// A namespace with a ClusterClass `class`, whose worker templates already contain these fields.
struct Class {
    namespace: &'static str,
    kubectl: &'static Kubectl,
}

impl Class {
    #[track_caller]
    fn new(namespace: &'static str, version: &str, config: &Value, words: &[&str]) -> Self {
        let kubectl = SITE.management.kubectl();
        kubectl.apply_object(&json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace },
        }));
        let bootstraps = format!("{BOOTSTRAPS}/{version}");
        let templates = [
            (DRIVES, "GenericClusterTemplate", json!({})),
            (CONTROLS, "GenericControlPlaneTemplate", json!({})),
            (DRIVES, "GenericMachineTemplate", json!({})),
            (bootstraps.as_str(), "KubeadmConfigTemplate", config.clone()),
        ];
        let references = templates.map(|(api_version, kind, spec)| {
            kubectl.create_object(&json!({
                "apiVersion": api_version, "kind": kind,
                "metadata": { "name": "class", "namespace": namespace },
                "spec": { "template": { "spec": spec } },
            }));
            let reference = json!({ "apiVersion": api_version, "kind": kind, "name": "class" });
            json!({ "templateRef": reference })
        });
        let [infrastructure, control_plane, machines, bootstrap] = references;
        let words = [&["cluster-class", "--api-version", version], words].concat();
        let rendered: Value = serde_saphyr::from_str(&render(&Attestor::TPM, &words)).unwrap();
        let workers = json!([{
            "class": "worker", "bootstrap": bootstrap, "infrastructure": machines,
        }]);
        kubectl.create_object(&json!({
            "apiVersion": CORE, "kind": "ClusterClass",
            "metadata": { "name": "class", "namespace": namespace },
            "spec": {
                "infrastructure": infrastructure,
                "controlPlane": control_plane,
                "workers": { "machineDeployments": workers },
                "variables": rendered["variables"],
                "patches": rendered["patches"],
            },
        }));
        let class = ["clusterclasses.cluster.x-k8s.io", "-n", namespace];
        kubectl.wait_for(&class, "its variables known", PATIENCE, |class| {
            !class["status"]["variables"].is_null()
        });
        Self { namespace, kubectl }
    }

    /// Creates a Cluster with these values for the variable.
    #[track_caller]
    fn cluster(&self, name: &str, values: &[Value]) -> Value {
        self.kubectl.create_object(&json!({
            "apiVersion": CORE, "kind": "Cluster",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": { "topology": topology(0, values) },
        }))
    }

    /// Waits until a Cluster's workers have a configuration. Returns the configuration.
    #[track_caller]
    fn workers_of(&self, cluster: &str) -> Value {
        let label = format!("cluster.x-k8s.io/cluster-name={cluster}");
        let deployments = [
            "machinedeployments.cluster.x-k8s.io",
            "-n",
            self.namespace,
            "-l",
            &label,
        ];
        let deployment = self
            .kubectl
            .wait_for(&deployments, cluster, PATIENCE, |_| true);
        let reference = &deployment["spec"]["template"]["spec"]["bootstrap"]["configRef"];
        let name = reference["name"].as_str().unwrap();
        let kind = "kubeadmconfigtemplates.v1beta2.bootstrap.cluster.x-k8s.io";
        let template = self.kubectl.json(["get", kind, name, "-n", self.namespace]);
        template["spec"]["template"]["spec"].clone()
    }

    /// The KubeletAuthentications in the namespace.
    fn authentications(&self) -> Vec<Value> {
        let words = ["get", "kubeletauthentications", "-n", self.namespace];
        let list = self.kubectl.json(words);
        list["items"].as_array().unwrap().clone()
    }
}

/// The topology of a Cluster of the class, with this number of workers and these values for the variable.
fn topology(workers: u32, values: &[Value]) -> Value {
    let variables = values.iter();
    let variables: Vec<_> = variables
        .map(|value| json!({ "name": "kubeletAuthentication", "value": value }))
        .collect();
    json!({
        "classRef": { "name": "class" },
        "version": *KUBERNETES_VERSION,
        "variables": variables,
        "workers": { "machineDeployments": [
            { "class": "worker", "name": "md-0", "replicas": workers },
        ] },
    })
}

/// A drop-in, in the form of a file in a configuration.
fn file() -> Value {
    json!({
        "path": "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf",
        "owner": "root:root", "permissions": "0644", "content": render(&Attestor::TPM, &["kubelet-drop-in"]),
    })
}

#[test]
fn a_cluster_of_the_class_has_the_drop_in_and_a_resource() {
    let argument = json!({ "name": "cloud-provider", "value": "external" });
    let own = json!({
        "files": [{ "path": "/etc/own", "content": "own" }],
        "preKubeadmCommands": ["true"],
        "joinConfiguration": { "nodeRegistration": { "kubeletExtraArgs": [argument] } },
    });
    let class = Class::new("classed", "v1beta2", &own, &[]);

    let silent = class.cluster("silent", &[]);
    let enabled = class.cluster("enabled", &[json!({ "enabled": true })]);

    let workers = class.workers_of("enabled");
    assert_eq!(workers["files"], json!([own["files"][0], file()]));
    assert_eq!(
        workers["preKubeadmCommands"],
        json!(["true", "systemctl daemon-reload"])
    );
    let rotates = json!({ "name": "rotate-server-certificates", "value": "true" });
    let arguments = &workers["joinConfiguration"]["nodeRegistration"]["kubeletExtraArgs"];
    assert_eq!(*arguments, json!([argument, rotates]));

    let workers = class.workers_of("silent");
    assert_eq!(workers["files"], own["files"]);
    let value = &silent["spec"]["topology"]["variables"][0]["value"];
    assert_eq!(value["enabled"], false, "{silent:#}");

    let made = poll(PATIENCE, || class.authentications().into_iter().next());
    let made = made.expect("a KubeletAuthentication");
    assert_eq!(made["metadata"]["name"], "enabled");
    // The default value in the class is the provider whose plugin rendered the class.
    assert_eq!(made["spec"]["authorizedAttestors"], json!(["tpm"]));
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], enabled["metadata"]["uid"], "{made:#}");
    assert_eq!(class.authentications().len(), 1);

    let words = ["delete", "clusters.cluster.x-k8s.io", "enabled", "-n"];
    class.kubectl.ok(words.iter().chain([&class.namespace]));
    let gone = poll(PATIENCE, || {
        class.authentications().is_empty().then_some(())
    });
    assert!(gone.is_some(), "{:#}", json!(class.authentications()));
}

#[test]
fn a_worker_of_a_class_with_attestation_joins_with_its_tpm() {
    let namespace = "class-joins";
    // All settings that a worker needs come from the patches.
    let needed = image::needed().into_iter();
    let needed: Map<_, _> = needed
        .map(|(field, value)| (field.to_owned(), value))
        .collect();
    let config = json!({ "joinConfiguration": { "nodeRegistration": needed } });
    let absent = ["--absent", "files,preKubeadmCommands,kubeletExtraArgs"];
    let words = [&absent[..], &image::TOLD_BY_METADATA].concat();
    let _class = Class::new(namespace, "v1beta2", &config, &words);
    let topology = topology(1, &[json!({ "enabled": true })]);

    let scene = Scene::unattended(joinable(namespace).topology(topology), Machines::Tpm(1));

    let created = |one: &Value| one["metadata"]["name"] == *scene.cluster.name();
    let authentications = ["kubeletauthentications", "-n", namespace];
    let kubectl = SITE.management.kubectl();
    kubectl.wait_for(&authentications, "of the Cluster", PATIENCE, created);
    scene.change(&json!({ "tpm": { "endorsementKeys": { "configMaps": [image::HOSTS] } } }));
    let deployment = scene.cluster.machine_deployment_of_topology("md-0");
    let machines = deployment.wait_until_running(1);
    let node = scene.wait_for_node_of(&machines[0]);
    assert_eq!(scene.record(&node)["spec"]["attestor"], "tpm");
    scene.reads_well(&[node]);
}

#[test]
fn missing_fields_of_the_class_templates_are_created() {
    let arguments = json!({ "cloud-provider": "external" });
    let joins = json!({ "nodeRegistration": { "kubeletExtraArgs": arguments } });
    let registered = json!({ "nodeRegistration": { "name": "node-1" } });
    let discovers = json!({
        // An existing named entry is replaced.
        "preKubeadmCommands": ["true"],
        "joinConfiguration": { "discovery": { "tlsBootstrapToken": "abcdef.0123456789abcdef" } },
    });
    for (namespace, version, config, absent, arguments) in [
        (
            "absent-all",
            "v1beta2",
            json!({ "format": "cloud-config" }),
            "joinConfiguration",
            1,
        ),
        ("absent-node", "v1beta2", discovers, "nodeRegistration", 1),
        (
            "absent-arguments",
            "v1beta2",
            json!({ "joinConfiguration": registered }),
            "kubeletExtraArgs",
            1,
        ),
        (
            "absent-none",
            "v1beta1",
            json!({ "joinConfiguration": joins }),
            "files",
            2,
        ),
        (
            "absent-old",
            "v1beta1",
            json!({ "joinConfiguration": registered }),
            "kubeletExtraArgs",
            1,
        ),
    ] {
        let absent = format!("files,preKubeadmCommands,{absent}");
        let class = Class::new(namespace, version, &config, &["--absent", &absent]);

        class.cluster("enabled", &[json!({ "enabled": true })]);

        let workers = class.workers_of("enabled");
        assert_eq!(workers["files"], json!([file()]), "{namespace}");
        assert_eq!(
            workers["preKubeadmCommands"],
            json!(["systemctl daemon-reload"])
        );
        let all = &workers["joinConfiguration"]["nodeRegistration"]["kubeletExtraArgs"];
        let all = all.as_array().unwrap();
        assert_eq!(all.len(), arguments, "{namespace}: {workers:#}");
        let rotates = json!({ "name": "rotate-server-certificates", "value": "true" });
        assert!(all.contains(&rotates), "{namespace}: {workers:#}");
    }
}

#[test]
fn a_list_neither_present_nor_declared_absent_stops_the_topology() {
    let class = Class::new(
        "absent-unnamed",
        "v1beta2",
        &json!({ "format": "cloud-config" }),
        &[],
    );

    class.cluster("enabled", &[json!({ "enabled": true })]);

    let clusters = ["clusters.cluster.x-k8s.io", "-n", class.namespace];
    class
        .kubectl
        .wait_for(&clusters, "TopologyReconciled", PATIENCE, |cluster| {
            let condition = condition_of(cluster, "TopologyReconciled");
            let message = condition["message"].as_str().unwrap_or_default();
            condition["status"] == "False" && message.contains("/spec/template/spec/files/-")
        });
}
