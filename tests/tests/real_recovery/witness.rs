//! Functions that observe nodes in both clusters and in the controller's log.

use std::fs;
use std::process::Output;
use std::time::Duration;

use base64::prelude::*;
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding, Kubectl,
};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::process::{Process, poll};
use serde_json::{Value, json};
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::Oid;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;

/// The deadline for detecting that a node is down. A node counts as down when its Lease is more than a minute old. The
/// controller checks this once per minute.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The grace period for a silent node in a cluster. Kubernetes' default of 50 s would also work, but would take longer.
const GRACE: &str = "--node-monitor-grace-period=20s";

/// A workload cluster that marks silent nodes as down, and in which bootstrap tokens can create requests.
pub fn workload() -> ControlPlane {
    let plane = ControlPlane::builder()
        .controllers(Controllers::Default)
        .controller_manager_arg(GRACE)
        .start();
    plane.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    plane
}

/// The record for a node name.
#[track_caller]
pub fn record(kubectl: &Kubectl, namespace: &str, cluster: &str, node: &str) -> Value {
    let name = format!("{cluster}.{node}");
    kubectl.json(["get", "nodeidentities", &name, "-n", namespace])
}

/// `<uid>.<generation>` of a record, as in its certificates.
pub fn mark(record: &Value) -> String {
    let spec = &record["spec"];
    format!("{}.{}", spec["uid"].as_str().unwrap(), spec["generation"])
}

/// The requests for this node name, oldest first.
pub fn requests(plane: &ControlPlane, node: &str) -> Vec<Value> {
    let common_name = format!("system:node:{node}");
    let names = |csr: &Value| {
        let request = BASE64_STANDARD
            .decode(csr["spec"]["request"].as_str().unwrap())
            .unwrap();
        let request = pem::parse_many(request).unwrap();
        let (_, request) = X509CertificationRequest::from_der(request[0].contents()).unwrap();
        let subject = &request.certification_request_info.subject;
        subject
            .iter_common_name()
            .any(|found| found.as_str() == Ok(&common_name))
    };
    let mut requests: Vec<Value> = plane.csrs().into_iter().filter(names).collect();
    requests.sort_by_key(|csr| {
        let version = csr["metadata"]["resourceVersion"].as_str().unwrap();
        version.parse::<u64>().unwrap()
    });
    requests
}

/// The requests from this node that have a certificate.
pub fn issued(plane: &ControlPlane, node: &str) -> Vec<Value> {
    let mut requests = requests(plane, node);
    requests.retain(|csr| csr["status"]["certificate"].is_string());
    requests
}

/// Waits for a certificate for this node that `matches`, in addition to the first `known` certificates.
#[track_caller]
pub fn wait_for_certificate(
    plane: &ControlPlane,
    node: &str,
    known: usize,
    matches: impl Fn(&Value) -> bool,
) -> Value {
    let found = poll(PATIENCE, || {
        let issued = issued(plane, node);
        issued.into_iter().skip(known).find(|csr| matches(csr))
    });
    found.unwrap_or_else(|| panic!("no such certificate: {:#?}", requests(plane, node)))
}

/// Asserts that no request in the cluster was denied or failed.
#[track_caller]
pub fn none_is_refused(plane: &ControlPlane) {
    let refused = |csr: &Value| {
        let conditions = csr["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one["type"] == "Denied" || one["type"] == "Failed")
    };
    let mut all = plane.csrs();
    all.retain(refused);
    assert!(all.is_empty(), "{all:#?}");
}

/// Waits until the cluster has marked the node as down.
#[track_caller]
pub fn wait_until_not_ready(plane: &ControlPlane, node: &str) {
    let selector = format!("metadata.name={node}");
    let resource = ["nodes", "--field-selector", &selector];
    plane
        .kubectl()
        .wait_for(&resource, "not Ready", PATIENCE, |object| {
            status_of_ready(object) != "True"
        });
}

/// Waits until the cluster considers the node ready.
#[track_caller]
pub fn wait_until_ready(plane: &ControlPlane, node: &str) {
    let selector = format!("metadata.name={node}");
    let resource = ["nodes", "--field-selector", &selector];
    plane
        .kubectl()
        .wait_for(&resource, "Ready", PATIENCE, |object| {
            status_of_ready(object) == "True"
        });
}

fn status_of_ready(node: &Value) -> Value {
    let conditions = node["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|one| one["type"] == "Ready");
    ready.map_or(Value::Null, |ready| ready["status"].clone())
}

/// The fields of each line with this message in a controller's log since its start.
pub fn lines(process: &Process, message: &str) -> Vec<Value> {
    let log = process.log().since(process.log_start());
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|mut line| line["fields"].take())
        .filter(|fields| fields["message"] == message)
        .collect()
}

/// The UID in the certificate. It consists of the UID of the record and the generation.
pub fn uid_of(csr: &Value) -> String {
    read(csr, |certificate| {
        let uid = Oid::from(&[1, 3, 6, 1, 4, 1, 57683, 2]).unwrap();
        let attribute = certificate.subject().iter_by_oid(&uid).next().unwrap();
        attribute.as_str().unwrap().to_owned()
    })
}

/// The expiry time of the certificate.
pub fn not_after(csr: &Value) -> jiff::Timestamp {
    read(csr, |certificate| {
        let end = certificate.validity().not_after.timestamp();
        jiff::Timestamp::from_second(end).unwrap()
    })
}

fn read<T>(csr: &Value, look: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
    let pem = csr["status"]["certificate"].as_str().unwrap();
    let (_, pem) = parse_x509_pem(&BASE64_STANDARD.decode(pem).unwrap()).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&pem.contents).unwrap();
    look(&certificate)
}

/// Removes the plugin's files from the machine's disk, as if the disk were new. The kubelet is stopped during this
/// time.
pub fn lose_disk(kubelet: &mut Kubelet) {
    kubelet.kill();
    let store = kubelet.var_lib().join("kubelet-authenticator");
    for entry in fs::read_dir(&store).unwrap().flatten() {
        fs::remove_file(entry.path()).unwrap();
    }
    kubelet.start();
}

/// kubectl for this API server that uses the stored certificate of a node.
pub fn as_node(plane: &ControlPlane, kubelet: &Kubelet) -> Kubectl {
    let stored = kubelet
        .var_lib()
        .join("kubelet-authenticator/kubelet-client.pem");
    let home = plane.directory("as-node");
    let pair = home.join("kubelet-client.pem");
    std::fs::copy(stored, &pair).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "node",
        "clusters": [{"name": "node", "cluster": {
            "server": plane.server(), "certificate-authority": plane.ca_cert_path(),
        }}],
        "users": [{"name": "node", "user": {
            "client-certificate": &pair, "client-key": &pair,
        }}],
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "node"}}],
    });
    let kubeconfig = home.join("kubeconfig");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    plane.kubectl_with(kubeconfig)
}

/// Labels the Node with this value. If the value does not change, kubectl does not write.
pub fn label(kubectl: &Kubectl, node: &str, value: usize) -> Output {
    let label = format!("example.com/tried={value}");
    kubectl.run(["label", "node", node, &label, "--overwrite"])
}
