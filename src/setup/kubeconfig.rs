//! The kubeconfigs that `setup` writes.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use zeroize::Zeroizing;

use crate::exec::{EXEC_INFO, MAX_VARIABLE_LEN};
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{ClusterEndpoint, Login};

/// The length that is reserved for the name of the variable, for field names, and for fields that client-go might add.
const OTHER_LEN: usize = 512;

/// Rejects a cluster that client-go cannot pass to a plugin: the kubelet would log "argument list too long"
/// indefinitely. `path` is the kubeconfig with the cluster.
pub(crate) fn check_length(endpoint: &ClusterEndpoint, path: &Path) -> Result<(), Failure> {
    let cluster = json!({
        "server": endpoint.server(),
        "tls-server-name": endpoint.tls_server_name(),
        "certificate-authority-data": STANDARD.encode(endpoint.ca_pem()),
        "proxy-url": endpoint.proxy().map(|url| url.expose().as_str()),
    });
    let length = cluster.to_string().len() + OTHER_LEN;
    if length <= MAX_VARIABLE_LEN {
        return Ok(());
    }
    Err(Failure::new(
        Code::Configuration,
        format!(
            "the CA certificates in {} are {} bytes long; with them, {EXEC_INFO} is {length} bytes long, and Linux \
             allows at most {MAX_VARIABLE_LEN}",
            path.display(),
            endpoint.ca_pem().len()
        ),
        "remove the CA certificates that the cluster no longer uses, and try again",
    ))
}

/// A kubeconfig that runs `program` for its credential.
pub(crate) fn exec_kubeconfig(endpoint: &ClusterEndpoint, program: &Path) -> String {
    let user = format!(
        "    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: {}
      interactiveMode: Never
      provideClusterInfo: true
",
        quoted(&program.to_string_lossy())
    );
    cluster(endpoint) + &user
}

/// A kubeconfig with this credential.
pub(super) fn bootstrap_kubeconfig(endpoint: &ClusterEndpoint, login: &Login) -> Zeroizing<String> {
    let mut text = Zeroizing::new(cluster(endpoint));
    let (chain, key) = match login {
        Login::Token(token) => {
            let token = Zeroizing::new(quoted(token.expose()));
            text.push_str("    token: ");
            text.push_str(&token);
            text.push('\n');
            return text;
        }
        Login::ClientCertificate { chain_pem, key_pem } => (chain_pem, key_pem),
    };
    let key = Zeroizing::new(STANDARD.encode(key.expose()));
    text.push_str("    client-certificate-data: ");
    text.push_str(&STANDARD.encode(chain));
    text.push_str("\n    client-key-data: ");
    text.push_str(&key);
    text.push('\n');
    text
}

/// The kubeconfig that the kubelet writes when it requests a certificate by itself: chain and key are in one file.
pub(super) fn kubelet_kubeconfig(endpoint: &ClusterEndpoint, pair: &Path) -> String {
    let pair = quoted(&pair.to_string_lossy());
    cluster(endpoint) + &format!("    client-certificate: {pair}\n    client-key: {pair}\n")
}

/// The whole kubeconfig except the user's fields, with the names that the kubelet uses.
fn cluster(endpoint: &ClusterEndpoint) -> String {
    let optional = [
        ("tls-server-name", endpoint.tls_server_name()),
        (
            "proxy-url",
            endpoint.proxy().map(|url| url.expose().as_str()),
        ),
    ];
    let optional: String = optional
        .into_iter()
        .filter_map(|(field, value)| Some(format!("    {field}: {}\n", quoted(value?))))
        .collect();
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: default-cluster
  cluster:
    server: {}
    certificate-authority-data: {}
{optional}contexts:
- name: default-context
  context:
    cluster: default-cluster
    user: default-auth
current-context: default-context
users:
- name: default-auth
  user:
",
        quoted(endpoint.server()),
        STANDARD.encode(endpoint.ca_pem()),
    )
}

/// Quotes a string as JSON does, which is valid YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
