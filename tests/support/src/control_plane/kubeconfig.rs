use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use crate::pki::{KeyAndCertificate, write_private};
use crate::settings;

/// The name of the cluster extension that client-go passes to an exec plugin as `config`.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// A kubeconfig with one cluster, one user and one context.
#[derive(Debug, Clone)]
pub struct Kubeconfig {
    server: String,
    ca_pem: String,
    user: User,
    files: bool,
}

/// The credentials of the user in a kubeconfig.
#[derive(Clone)]
pub enum User {
    /// A bearer token in the kubeconfig, or in a file next to it.
    Token(String),
    /// A client certificate and its key, in the kubeconfig or in files next to it.
    Certificate(KeyAndCertificate),
    /// An exec credential plugin.
    Exec(Exec),
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token(..)"),
            Self::Certificate(_) => f.write_str("Certificate(..)"),
            Self::Exec(exec) => f.debug_tuple("Exec").field(exec).finish(),
        }
    }
}

impl Kubeconfig {
    /// Creates a kubeconfig for `server` that trusts `ca_pem`. All data is in the file itself.
    pub fn new(server: &str, ca_pem: &str, user: User) -> Self {
        Self {
            server: server.to_owned(),
            ca_pem: ca_pem.to_owned(),
            user,
            files: false,
        }
    }

    /// Writes the certificate authority, the token, the certificate and the key to files next to the kubeconfig.
    pub fn with_files(mut self) -> Self {
        self.files = true;
        self
    }

    /// Writes the kubeconfig to `path`, readable only by its owner. The names of the files next to it begin with
    /// `path`.
    pub fn write(&self, path: &Path) -> PathBuf {
        let parts = Parts {
            path,
            files: self.files,
        };
        let mut cluster = Map::new();
        cluster.insert("server".to_owned(), json!(self.server));
        parts.insert(&mut cluster, "certificate-authority", &self.ca_pem);

        let mut user = Map::new();
        match &self.user {
            User::Token(token) if self.files => {
                user.insert("tokenFile".to_owned(), parts.file("token", token));
            }
            User::Token(token) => {
                user.insert("token".to_owned(), json!(token));
            }
            User::Certificate(pair) => {
                parts.insert(&mut user, "client-certificate", &pair.certificate_pem);
                parts.insert(&mut user, "client-key", &pair.key_pem);
            }
            User::Exec(exec) => {
                user.insert("exec".to_owned(), exec.to_json());
                if let Some(config) = &exec.config {
                    let extension = json!([{ "name": EXEC_EXTENSION, "extension": config }]);
                    cluster.insert("extensions".to_owned(), extension);
                }
            }
        }
        write_private(path, &document(&cluster.into(), &user.into()));
        path.to_owned()
    }
}

/// A kubeconfig for a server without a trusted certificate, such as a kubelet's own API on loopback.
pub(crate) fn unverified(server: &str, pair: &KeyAndCertificate, path: &Path) -> PathBuf {
    let mut user = Map::new();
    let parts = Parts { path, files: false };
    parts.insert(&mut user, "client-certificate", &pair.certificate_pem);
    parts.insert(&mut user, "client-key", &pair.key_pem);
    let cluster = json!({ "server": server, "insecure-skip-tls-verify": true });
    write_private(path, &document(&cluster, &user.into()));
    path.to_owned()
}

/// A kubeconfig as JSON, which is also valid YAML.
fn document(cluster: &Value, user: &Value) -> String {
    let value = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "current-context": "test",
    });
    format!("{value:#}\n")
}

struct Parts<'a> {
    path: &'a Path,
    files: bool,
}

impl Parts<'_> {
    fn insert(&self, into: &mut Map<String, Value>, key: &str, pem: &str) {
        if self.files {
            into.insert(key.to_owned(), self.file(key, pem));
        } else {
            into.insert(format!("{key}-data"), json!(BASE64_STANDARD.encode(pem)));
        }
    }

    fn file(&self, suffix: &str, contents: &str) -> Value {
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{suffix}"));
        write_private(Path::new(&name), contents);
        json!(fs::canonicalize(name).expect("the file was just written"))
    }
}

/// The `exec` entry of a kubeconfig's user.
#[derive(Debug, Clone)]
pub struct Exec {
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    provide_cluster_info: bool,
    config: Option<Value>,
}

impl Exec {
    /// Creates an entry that runs `command` with protocol version v1, without cluster information.
    pub fn new(command: impl Into<PathBuf>) -> Self {
        Self {
            command: command.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            provide_cluster_info: false,
            config: None,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets this plugin setting with the option for its key in a file.
    pub fn setting(self, key: &str, value: impl AsRef<OsStr>) -> Self {
        let option = settings::option(key, value);
        self.arg(option.into_string().expect("a kubeconfig is UTF-8"))
    }

    /// Sets an environment variable for the plugin.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Passes the cluster information to the plugin (`provideClusterInfo`).
    pub fn provide_cluster_info(mut self) -> Self {
        self.provide_cluster_info = true;
        self
    }

    /// Sets the cluster's extension for exec plugins, and passes the cluster information to the plugin.
    pub fn config(mut self, config: Value) -> Self {
        self.config = Some(config);
        self.provide_cluster_info()
    }

    fn to_json(&self) -> Value {
        let environment: Vec<_> = self
            .environment
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": self.command,
            "args": self.arguments,
            "env": environment,
            "interactiveMode": "Never",
            "provideClusterInfo": self.provide_cluster_info,
        })
    }
}
