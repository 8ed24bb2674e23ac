//! The real `clusterctl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kubelet_authenticator_test_support::binaries::KUBERNETES_VERSION;
use kubelet_authenticator_test_support::control_plane::{DEADLINE, Kubectl};
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, poll};
use serde_json::{Value, json};

use super::contract::{CLUSTER, GENERIC_CONTROL_PLANE};
use super::managers::BUILT;
use super::{Management, WorkloadCluster};

/// The label on clusterctl's definitions and providers.
const CLUSTERCTL: &str = "clusterctl.cluster.x-k8s.io";

/// The label on clusterctl's inventory.
const INVENTORY: &str = "clusterctl.cluster.x-k8s.io/core";

/// The resource of Clusters.
const CLUSTERS: &str = "clusters.cluster.x-k8s.io";

/// The label with a provider's name.
const PROVIDER: &str = "cluster.x-k8s.io/provider";

/// The providers in this management cluster, each with its name, type and label.
const PROVIDERS: [[&str; 3]; 4] = [
    ["cluster-api", "CoreProvider", "cluster-api"],
    ["kubeadm", "BootstrapProvider", "bootstrap-kubeadm"],
    ["generic", "ControlPlaneProvider", "control-plane-generic"],
    [
        "generic",
        "InfrastructureProvider",
        "infrastructure-generic",
    ],
];

/// The version of the providers.
pub const CLUSTER_API_VERSION: &str = "v1.14.2";

/// The entry for Cluster API Provider AWS. The provider's namespace contains Secrets, which `clusterctl move` moves
/// together with their identities.
const AWS: [&str; 3] = ["aws", "InfrastructureProvider", "infrastructure-aws"];

impl Management {
    /// Writes the inventory of `clusterctl init` with Cluster API Provider AWS, for a cluster without managers; the
    /// provider's definitions must exist.
    #[track_caller]
    pub fn take_inventory_with_aws(&self) {
        for namespace in ["capi-system", "capa-system"] {
            self.kubectl().apply_object(&json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace },
            }));
        }
        take_inventory(self.kubectl());
        register(self.kubectl(), AWS, "capa-system", CLUSTER_API_VERSION);
    }

    /// Writes the inventory of `clusterctl init` with Cluster API and this AddonProvider, for a cluster without managers.
    #[track_caller]
    pub fn take_inventory_with_addon(&self, name: &str, namespace: &str, version: &str) {
        self.kubectl().apply_object(&json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "capi-system" },
        }));
        define_inventory(self.kubectl());
        let [core, ..] = PROVIDERS;
        register(self.kubectl(), core, "capi-system", CLUSTER_API_VERSION);
        let label = format!("addon-{name}");
        let addon = [name, "AddonProvider", &label];
        register(self.kubectl(), addon, namespace, version);
    }
}

/// Writes the inventory of `clusterctl init`, which `clusterctl move` reads.
#[track_caller]
pub(super) fn take_inventory(kubectl: &Kubectl) {
    define_inventory(kubectl);
    let definitions = kubectl.json(["get", "customresourcedefinitions", "-l", PROVIDER]);
    for definition in definitions["items"].as_array().unwrap() {
        let name = definition["metadata"]["name"].as_str().unwrap();
        label(kubectl, name, &json!({ CLUSTERCTL: "" }));
    }
    for provider in PROVIDERS {
        register(kubectl, provider, "capi-system", CLUSTER_API_VERSION);
    }
}

/// Installs the CustomResourceDefinition of clusterctl's inventory.
#[track_caller]
pub(super) fn define_inventory(kubectl: &Kubectl) {
    let definitions = fs::read(BUILT.join("clusterctl.json")).unwrap();
    let definitions: Value = serde_json::from_slice(&definitions).unwrap();
    for definition in definitions["items"].as_array().unwrap() {
        let name = definition["metadata"]["name"].as_str().unwrap();
        kubectl.apply_server_side(definition);
        let labels = json!({ CLUSTERCTL: "", INVENTORY: "inventory" });
        label(kubectl, name, &labels);
        let wait = ["wait", "--for=condition=Established", "--timeout=180s"];
        kubectl.ok([&wait[..], &["crd", name]].concat());
    }
}

/// Adds a provider with this version to clusterctl's inventory.
#[track_caller]
pub(super) fn register(
    kubectl: &Kubectl,
    [name, kind, label]: [&str; 3],
    namespace: &str,
    version: &str,
) {
    let labels = json!({ CLUSTERCTL: "", PROVIDER: label, INVENTORY: "inventory" });
    let provider = json!({
        "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
        "kind": "Provider",
        "metadata": { "name": label, "namespace": namespace, "labels": labels },
        "providerName": name, "type": kind, "version": version,
    });
    // The API server can start to serve a kind some time after the definition is established.
    let created = poll(DEADLINE, || kubectl.try_create(&provider).ok());
    assert!(created.is_some(), "{provider:#} cannot be created");
}

fn label(kubectl: &Kubectl, definition: &str, labels: &Value) {
    let target = ["customresourcedefinitions", definition];
    kubectl.patch(&target, &json!({ "metadata": { "labels": labels } }));
}

/// The program.
pub fn clusterctl_program() -> PathBuf {
    BUILT.join("clusterctl")
}

/// Runs `clusterctl` with `clusterctl.yaml` from this directory, and returns its output.
#[track_caller]
pub fn clusterctl(home: &Path, arguments: &[&str]) -> String {
    let output = Command::new(clusterctl_program())
        .arg("--config")
        .arg(home.join("clusterctl.yaml"))
        .args(arguments)
        // Otherwise, clusterctl would search the Internet for a newer version.
        .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
        .env("HOME", home)
        .output()
        .expect("clusterctl can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl WorkloadCluster {
    /// Moves all objects in the Cluster's namespace with `clusterctl move`, and writes the statuses that no manager
    /// writes, because clusterctl does not move statuses.
    #[track_caller]
    pub fn clusterctl_move(self, target: &Management) -> Self {
        let kubeconfigs = [
            self.place.control_plane.admin_kubeconfig().to_owned(),
            target.admin_kubeconfig().to_owned(),
        ];
        self.clusterctl_move_with(target, &kubeconfigs)
    }

    /// Starts `clusterctl move`, and kills it when this Cluster exists in the target.
    #[track_caller]
    pub fn interrupt_clusterctl_move(&self, target: &Management) {
        let kubeconfigs = [
            self.place.control_plane.admin_kubeconfig().to_owned(),
            target.admin_kubeconfig().to_owned(),
        ];
        let files = Scratch::new("clusterctl");
        let mut process = self.start_move(&kubeconfigs, &files);
        let selector = format!("metadata.name={}", self.name());
        let clusters = ["get", CLUSTERS, "-n", self.namespace(), "--field-selector"];
        let arrived = poll(DEADLINE, || {
            let words = clusters.into_iter().chain([selector.as_str()]);
            let list = target.kubectl().json(words);
            let items = list["items"].as_array()?;
            (!items.is_empty()).then_some(())
        });
        let was_running = process.is_running();
        process.kill();
        assert!(arrived.is_some() && was_running, "{}", process.log());
    }

    /// Starts `clusterctl move` with these kubeconfigs, for this management cluster and the target.
    #[track_caller]
    fn start_move(&self, [from, to]: &[PathBuf; 2], files: &Scratch) -> Process {
        let launch = Launch::new("clusterctl", clusterctl_program())
            .args(["move", "--namespace", self.namespace(), "--kubeconfig"])
            .arg(from)
            .arg("--to-kubeconfig")
            .arg(to)
            // Otherwise, clusterctl would search the Internet for a newer version.
            .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
            .env("HOME", files.path());
        launch.spawn(&files.join("clusterctl.log"))
    }

    /// Like [`Self::clusterctl_move`], but with these kubeconfigs instead of the administrators' kubeconfigs.
    #[track_caller]
    pub fn clusterctl_move_with(mut self, target: &Management, kubeconfigs: &[PathBuf; 2]) -> Self {
        let files = Scratch::new("clusterctl");
        let mut process = self.start_move(kubeconfigs, &files);
        let ended = process.wait(DEADLINE);
        assert!(
            ended.success(),
            "clusterctl ended ({ended}){}",
            process.log()
        );

        self.place.control_plane = target.control_plane.clone();
        self.object = self.place.get(CLUSTER, self.name());
        let provisioned = self.infrastructure.status(self.place.contract);
        let infrastructure = self.infrastructure.kind();
        self.place
            .patch_status(infrastructure, self.name(), &provisioned);
        let (kind, status) = if self.object["spec"]["controlPlaneRef"].is_object() {
            (GENERIC_CONTROL_PLANE, control_plane_status())
        } else {
            (CLUSTER, self.place.contract.cluster_status())
        };
        self.place.patch_status(kind, self.name(), &status);
        self
    }
}

/// The status of an existing control plane that has an external manager.
pub(super) fn control_plane_status() -> Value {
    json!({
        "initialization": { "controlPlaneInitialized": true },
        "externalManagedControlPlane": true,
        "version": *KUBERNETES_VERSION,
    })
}
