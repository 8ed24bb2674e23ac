//! The Secrets that contain the kubeconfig and the CA of a workload cluster.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_test_support::pki::{
    CertificateAuthority, Contents, Subject, traditional_key,
};
use serde_json::{Value, json};

use super::place::{CLUSTER_NAME, Place, owner_reference};

/// The kubeconfig that Cluster API writes for a cluster: all content is inline, the user is a member of
/// `system:masters`, and the key is in SEC1 or PKCS#1 format.
pub fn workload_kubeconfig(name: &str, workload: &ControlPlane) -> String {
    workload_kubeconfig_of_ca(name, workload, workload.ca())
}

/// Like [`workload_kubeconfig`], but after this CA has replaced the cluster's CA.
pub fn workload_kubeconfig_of_ca(
    name: &str,
    workload: &ControlPlane,
    ca: &CertificateAuthority,
) -> String {
    let server = workload.server();
    let user = ca.issue(&Contents::client(Subject {
        organization: Some("system:masters".to_owned()),
        ..Subject::user("kubernetes-admin")
    }));
    let [ca, certificate, key] = [
        ca.certificate_pem(),
        &user.certificate_pem,
        &traditional_key(&user.key_pem),
    ]
    .map(|pem| BASE64_STANDARD.encode(pem));
    format!(
        "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {ca}
    server: {server}
  name: {name}
contexts:
- context:
    cluster: {name}
    user: {name}-admin
  name: {name}-admin@{name}
current-context: {name}-admin@{name}
kind: Config
preferences: {{}}
users:
- name: {name}-admin
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
"
    )
}

/// The data in `<cluster>-ca`, without a key if the control plane is external.
pub(super) fn ca_data(certificate: &str, key: Option<&str>) -> Value {
    let mut data = json!({ "tls.crt": BASE64_STANDARD.encode(certificate) });
    if let Some(key) = key {
        data["tls.key"] = json!(BASE64_STANDARD.encode(key));
    }
    data
}

impl Place {
    /// Writes `<cluster>-<purpose>`, and replaces an existing Secret with this name.
    #[track_caller]
    pub(super) fn write_secret(&self, purpose: &str, owner: &Value, data: &Value) {
        let name = format!("{}-{purpose}", self.cluster);
        let kubectl = self.kubectl();
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": { CLUSTER_NAME: self.cluster },
                "ownerReferences": [owner_reference(owner)],
            },
            "type": "cluster.x-k8s.io/secret",
            "data": data,
        });
        kubectl.apply_object(&secret);
    }
}
