//! The files and variables that configure clients of the server.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{ApiServer, TOKEN};
use crate::pki::{KeyAndCertificate, write_private};

/// A kubeconfig under construction. It is initially valid, and its methods change it.
#[derive(Debug, Clone)]
pub struct Kubeconfig {
    cluster: Value,
    user: Value,
    other_contexts: usize,
}

impl Kubeconfig {
    /// Creates a kubeconfig for this server with inline CA data and a bootstrap token.
    pub fn new(server: &ApiServer) -> Self {
        let cluster = json!({
            "server": server.url(),
            "certificate-authority-data": STANDARD.encode(server.ca_pem()),
        });
        Self {
            cluster,
            user: json!({"token": TOKEN}),
            other_contexts: 0,
        }
    }

    /// Sets another server URL.
    pub fn server(self, url: &str) -> Self {
        self.cluster_field("server", url.into())
    }

    /// Sets different CA data (PEM).
    pub fn ca_data(self, pem: &str) -> Self {
        self.cluster_field("certificate-authority-data", STANDARD.encode(pem).into())
    }

    /// Removes the CA.
    pub fn without_ca(mut self) -> Self {
        if let Some(cluster) = self.cluster.as_object_mut() {
            cluster.remove("certificate-authority-data");
        }
        self
    }

    /// Sets the expected name in the server's certificate.
    pub fn tls_server_name(self, name: &str) -> Self {
        self.cluster_field("tls-server-name", name.into())
    }

    /// Sets a proxy for all connections.
    pub fn proxy_url(self, url: &str) -> Self {
        self.cluster_field("proxy-url", url.into())
    }

    /// Sets `insecure-skip-tls-verify: true`.
    pub fn insecure_skip_tls_verify(self) -> Self {
        self.without_ca()
            .cluster_field("insecure-skip-tls-verify", true.into())
    }

    /// Sets any field in the cluster entry.
    pub fn cluster_field(mut self, key: &str, value: Value) -> Self {
        self.cluster[key] = value;
        self
    }

    /// Sets another token.
    pub fn token(self, token: &str) -> Self {
        self.user(json!({"token": token}))
    }

    /// Sets an inline client certificate.
    pub fn client_certificate(self, pair: &KeyAndCertificate) -> Self {
        self.user(json!({
            "client-certificate-data": STANDARD.encode(&pair.certificate_pem),
            "client-key-data": STANDARD.encode(&pair.key_pem),
        }))
    }

    /// Sets an exec plugin without arguments, with `interactiveMode: Never`.
    pub fn exec(self, command: &Path, api_version: &str, provide_cluster_info: bool) -> Self {
        self.user(json!({"exec": {
            "apiVersion": api_version, "command": text(command),
            "interactiveMode": "Never", "provideClusterInfo": provide_cluster_info,
        }}))
    }

    /// Replaces the complete user entry.
    pub fn user(mut self, user: Value) -> Self {
        self.user = user;
        self
    }

    /// Adds this number of contexts, clusters without a server, and users before the valid entries.
    pub fn other_contexts(mut self, count: usize) -> Self {
        self.other_contexts = count;
        self
    }

    /// The YAML text.
    pub fn to_yaml(&self) -> String {
        let nowhere = json!({"server": "https://192.0.2.1:6443"});
        let nobody = json!({"token": "nobody.nobody"});
        let others = (0..self.other_contexts).map(|index| format!("other-{index}"));
        let entries: Vec<(String, &Value, &Value)> = others
            .map(|name| (name, &nowhere, &nobody))
            .chain([("test".to_owned(), &self.cluster, &self.user)])
            .collect();
        let mut yaml = String::from("apiVersion: v1\nkind: Config\ncurrent-context: test\n");
        for (plural, field) in [("clusters", "cluster"), ("users", "user")] {
            yaml += &format!("{plural}:\n");
            for (name, cluster, user) in &entries {
                let value = if field == "cluster" { cluster } else { user };
                yaml += &format!("- name: {name}\n  {field}:\n{}", fields(value, 4));
            }
        }
        yaml += "contexts:\n";
        for (name, ..) in &entries {
            yaml += &format!("- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n");
        }
        yaml
    }

    /// Writes the kubeconfig to a file that only its owner can read.
    pub fn write(&self, path: &Path) -> PathBuf {
        write_private(path, &self.to_yaml());
        path.to_owned()
    }
}

impl ApiServer {
    /// Creates a kubeconfig that a test can change and write. See [`Kubeconfig`].
    pub fn kubeconfig(&self) -> Kubeconfig {
        Kubeconfig::new(self)
    }

    /// Writes `bootstrap.kubeconfig` with this token into `dir`.
    pub fn write_bootstrap_kubeconfig(&self, dir: &Path, token: &str) -> PathBuf {
        self.kubeconfig()
            .token(token)
            .write(&dir.join("bootstrap.kubeconfig"))
    }

    /// Writes `admin.kubeconfig` with an administrator's certificate into `dir`.
    pub fn write_admin_kubeconfig(&self, dir: &Path) -> PathBuf {
        let admin = self.admin_certificate();
        self.kubeconfig()
            .client_certificate(&admin)
            .write(&dir.join("admin.kubeconfig"))
    }

    /// Writes `ca.crt` and `ca.key` for the cluster's authority into `dir`.
    pub fn write_ca(&self, dir: &Path) -> (PathBuf, PathBuf) {
        self.client_ca().write(dir, "ca")
    }

    /// The cluster in the format in which client-go passes it to an exec plugin.
    pub fn cluster_info(&self) -> Value {
        json!({
            "server": self.url(),
            "certificate-authority-data": STANDARD.encode(self.ca_pem()),
            "config": null,
        })
    }

    /// The value of `KUBERNETES_EXEC_INFO` in client-go's format, including its trailing newline.
    ///
    /// `api_version` is `v1` or `v1beta1`.
    pub fn exec_info(&self, api_version: &str, with_cluster: bool) -> String {
        exec_info(api_version, with_cluster.then(|| self.cluster_info()))
    }
}

/// The value of `KUBERNETES_EXEC_INFO` in client-go's format, with or without a cluster.
pub fn exec_info(api_version: &str, cluster: Option<Value>) -> String {
    let cluster = cluster
        .map(|cluster| format!("\"cluster\":{cluster},"))
        .unwrap_or_default();
    format!(
        "{{\"kind\":\"ExecCredential\",\
         \"apiVersion\":\"client.authentication.k8s.io/{api_version}\",\
         \"spec\":{{{cluster}\"interactive\":false}}}}\n"
    )
}

/// The fields as YAML lines. Nested values are flow mappings, which include JSON.
fn fields(value: &Value, indent: usize) -> String {
    let fields = value.as_object().into_iter().flatten();
    fields
        .map(|(key, value)| format!("{:indent$}{key}: {value}\n", ""))
        .collect()
}

fn text(path: &Path) -> Value {
    path.to_str().expect("a path of a test is UTF-8").into()
}
