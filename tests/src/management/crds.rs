//! Definitions of custom resources.

use std::fs;
use std::path::Path;

use kubelet_authenticator_test_support::control_plane::Kubectl;
use serde_json::{Value, json};

use super::Contract;
use crate::packaging;

/// The directory of Cluster API's resources, reduced to the fields that the project reads. Each file contains both
/// versions.
const CLUSTER_API: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster-api");

/// Installs the CustomResourceDefinitions of Cluster API, of its providers and of the project. The project's
/// definitions are in `manifests`.
#[track_caller]
pub(super) fn install(kubectl: &Kubectl, contract: Contract, manifests: &Path) {
    let theirs = read(CLUSTER_API).into_iter().map(|mut definition| {
        if contract == Contract::V1Beta1 {
            keep_v1beta1(&mut definition);
        }
        definition
    });
    let definitions: Vec<_> = theirs.chain(ours(manifests)).collect();
    apply(kubectl, &definitions);
}

/// Installs the CustomResourceDefinitions of the providers and of the project, after Cluster API has installed its own.
#[track_caller]
pub(super) fn install_beside(kubectl: &Kubectl) {
    let mut theirs = read(CLUSTER_API);
    theirs.retain(|definition| {
        let provider = &definition["metadata"]["labels"]["cluster.x-k8s.io/provider"];
        provider
            .as_str()
            .is_some_and(|name| name.ends_with("-generic"))
    });
    theirs.extend(ours(&packaging()));
    apply(kubectl, &theirs);
}

/// Installs the project's CustomResourceDefinitions that are also needed in a workload cluster: those of the
/// cluster-scoped resources.
#[track_caller]
pub(super) fn install_on_workload(kubectl: &Kubectl) {
    let mut definitions = ours(&packaging());
    definitions.retain(|definition| definition["spec"]["scope"] == "Cluster");
    if !definitions.is_empty() {
        apply(kubectl, &definitions);
    }
}

#[track_caller]
fn apply(kubectl: &Kubectl, definitions: &[Value]) {
    kubectl.apply_object(&json!({ "apiVersion": "v1", "kind": "List", "items": definitions }));
    wait_until_established(kubectl, definitions);
}

#[track_caller]
pub(super) fn wait_until_established(kubectl: &Kubectl, definitions: &[Value]) {
    let names: Vec<String> = definitions
        .iter()
        .filter_map(|definition| definition["metadata"]["name"].as_str())
        .map(|name| format!("crd/{name}"))
        .collect();
    let wait = ["wait", "--for=condition=Established", "--timeout=180s"];
    kubectl.ok(wait.into_iter().chain(names.iter().map(String::as_str)));
}

/// The project's own resources, as they are released with these manifests.
#[track_caller]
fn ours(manifests: &Path) -> Vec<Value> {
    read(manifests.join("crds"))
}

/// Reads every definition in the YAML files in a directory.
#[track_caller]
fn read(folder: impl AsRef<Path>) -> Vec<Value> {
    let folder = folder.as_ref();
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
                && !path.ends_with("kustomization.yaml")
        })
        .collect();
    files.sort();
    let parse = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    files.iter().map(parse).collect()
}

/// Reduces a definition to its form before v1beta2.
fn keep_v1beta1(definition: &mut Value) {
    let labels = definition["metadata"]["labels"].as_object_mut().unwrap();
    labels.remove("cluster.x-k8s.io/v1beta2");
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    versions.retain(|version| version["name"] == "v1beta1");
    versions[0]["storage"] = json!(true);
}
