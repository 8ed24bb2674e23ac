//! A real control plane on loopback: etcd, kube-apiserver and kube-controller-manager.
//!
//! ```no_run
//! use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers};
//!
//! let cluster = ControlPlane::builder().controllers(Controllers::Certificates).start();
//! cluster.install_kubeadm_bindings();
//! let token = cluster.add_bootstrap_token("abcdef", "0123456789abcdef");
//! let kubelet = cluster
//!     .kubelet("node-a")
//!     .bootstrap_kubeconfig(cluster.bootstrap_kubeconfig(&token))
//!     .start();
//! cluster.wait_for_node_ready("node-a");
//! drop(kubelet);
//! ```
//!
//! A start takes about 3 seconds, and a control plane uses 500 MB. Tests that can share a control plane use a `static`
//! and separate names.
//!
//! # Panics
//!
//! Panics if an expected event does not occur, with a description of the event and the end of the relevant log.

mod bootstrap;
mod builder;
mod ca;
mod client;
mod kubeadm;
mod kubeconfig;
mod kubectl;
mod service_accounts;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

pub use self::bootstrap::{BOOTSTRAPPERS, BootstrapToken, KubeadmBinding};
pub use self::builder::{CaKey, ControlPlaneBuilder, Controllers};
pub(crate) use self::kubeadm::{API_VERSION as KUBEADM_API_VERSION, kubelet_configuration};
pub(crate) use self::kubeconfig::unverified;
pub use self::kubeconfig::{Exec, Kubeconfig, User};
pub use self::kubectl::Kubectl;
pub use self::watch::{Event, Watch};
use crate::kubelet::KubeletBuilder;
use crate::pki::{CertificateAuthority, Contents, KeyAndCertificate, Subject};
use crate::process::{Process, Scratch};

/// The deadline for operations that take a second. The deadline is long, because the machines that run tests are busy.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// A running control plane. When it is dropped, it stops and does not leave any files or processes.
#[derive(Debug)]
pub struct ControlPlane {
    // The processes are the first fields, because fields are dropped in order, and the processes write to the
    // directory.
    controller_manager: Option<RwLock<Process>>,
    // The process is in a lock, because a test can restart it while clusters and nodes share the control plane.
    apiserver: RwLock<Process>,
    etcd: RwLock<Process>,
    server: String,
    ca: CertificateAuthority,
    admin: Kubectl,
    made: AtomicU32,
    scratch: Scratch,
}

impl ControlPlane {
    /// Starts a control plane without controllers.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Creates a builder for a control plane.
    pub fn builder() -> ControlPlaneBuilder {
        ControlPlaneBuilder::default()
    }

    /// The API server's URL.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The cluster's certificate authority, which the API server and the kubelets also trust for clients.
    pub fn ca(&self) -> &CertificateAuthority {
        &self.ca
    }

    /// The path of the PEM file with the CA certificate.
    pub fn ca_cert_path(&self) -> PathBuf {
        self.scratch.join("ca.crt")
    }

    /// The path of the PEM file with the CA's private key (PKCS#8).
    pub fn ca_key_path(&self) -> PathBuf {
        self.scratch.join("ca.key")
    }

    /// A kubeconfig for a member of `system:masters`.
    pub fn admin_kubeconfig(&self) -> &Path {
        self.admin.kubeconfig()
    }

    /// kubectl with the permissions of `system:masters`.
    pub fn kubectl(&self) -> &Kubectl {
        &self.admin
    }

    /// kubectl with another kubeconfig.
    pub fn kubectl_with(&self, kubeconfig: impl Into<PathBuf>) -> Kubectl {
        self.admin.with(kubeconfig)
    }

    /// Writes a kubeconfig for this API server.
    pub fn kubeconfig(&self, user: User) -> PathBuf {
        self.describe(user).write(&self.new_file("kubeconfig"))
    }

    /// Writes a kubeconfig for this API server that refers to files for all of its data.
    pub fn kubeconfig_with_files(&self, user: User) -> PathBuf {
        self.describe(user)
            .with_files()
            .write(&self.new_file("kubeconfig"))
    }

    /// Writes a kubeconfig whose user is an exec credential plugin.
    pub fn exec_kubeconfig(&self, exec: Exec) -> PathBuf {
        self.kubeconfig(User::Exec(exec))
    }

    /// Writes a kubeconfig with a client certificate from the cluster's authority. The certificate is valid for one
    /// day.
    pub fn client_cert_kubeconfig(&self, common_name: &str, group: Option<&str>) -> PathBuf {
        self.kubeconfig(User::Certificate(
            self.client_certificate(common_name, group),
        ))
    }

    /// Issues a client certificate for a user and at most one group. The certificate is valid for one day.
    pub fn client_certificate(&self, common_name: &str, group: Option<&str>) -> KeyAndCertificate {
        let mut subject = Subject::user(common_name);
        subject.organization = group.map(str::to_owned);
        self.ca.issue(&Contents::client(subject))
    }

    /// Creates a builder for a real kubelet in this cluster.
    pub fn kubelet(&self, name: &str) -> KubeletBuilder {
        KubeletBuilder::new(self, name)
    }

    /// A separate directory for one test. The directory is removed together with the control plane.
    pub fn directory(&self, name: &str) -> PathBuf {
        let unique = self.made.fetch_add(1, Ordering::Relaxed);
        self.scratch.directory(&format!("{name}-{unique}"))
    }

    /// Waits until the Node is registered. Returns the Node.
    #[track_caller]
    pub fn wait_for_node(&self, name: &str) -> Value {
        let selector = format!("metadata.name={name}");
        let resource = ["nodes", "--field-selector", &selector];
        self.admin
            .wait_for(&resource, &format!("named {name}"), DEADLINE, |_| true)
    }

    /// Waits until the Node reports that it is ready. Returns the Node.
    #[track_caller]
    pub fn wait_for_node_ready(&self, name: &str) -> Value {
        let selector = format!("metadata.name={name}");
        let resource = ["nodes", "--field-selector", &selector];
        self.admin.wait_for(
            &resource,
            &format!("named {name} and ready"),
            DEADLINE,
            |node| has_condition(node, "Ready"),
        )
    }

    /// Waits for a certificate signing request that satisfies `condition`, and returns the request. `what` describes
    /// the request in the failure message.
    #[track_caller]
    pub fn wait_for_csr(&self, what: &str, condition: impl FnMut(&Value) -> bool) -> Value {
        self.admin
            .wait_for(&["certificatesigningrequests"], what, DEADLINE, condition)
    }

    /// All certificate signing requests.
    #[track_caller]
    pub fn csrs(&self) -> Vec<Value> {
        let list = self.admin.json(["get", "certificatesigningrequests"]);
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Restarts kube-apiserver on the same port. The connections and watches of its clients fail.
    #[track_caller]
    pub fn restart_apiserver(&self) {
        {
            let mut apiserver = write(&self.apiserver);
            apiserver.kill();
            *apiserver = apiserver.start_again();
        }
        self.wait_until_ready();
    }

    /// Copies etcd's data for [`restore`](Self::restore). etcd is paused during the copy.
    #[track_caller]
    pub fn backup(&self) -> PathBuf {
        let backup = self.directory("backup");
        self.etcd().signal(Signal::STOP);
        copy(&self.scratch.join("etcd"), &backup);
        self.etcd().signal(Signal::CONT);
        backup
    }

    /// Stops kube-apiserver and etcd, and starts them with the data of a backup.
    #[track_caller]
    pub fn restore(&self, backup: &Path) {
        {
            let (mut apiserver, mut etcd) = (write(&self.apiserver), write(&self.etcd));
            apiserver.kill();
            etcd.kill();
            let data = self.scratch.join("etcd");
            fs::remove_dir_all(&data).expect("remove etcd's data");
            copy(backup, &data);
            *etcd = etcd.start_again();
            *apiserver = apiserver.start_again();
        }
        self.wait_until_ready();
    }

    /// etcd's process.
    pub fn etcd(&self) -> RwLockReadGuard<'_, Process> {
        self.etcd.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// kube-apiserver's process.
    pub fn apiserver(&self) -> RwLockReadGuard<'_, Process> {
        self.apiserver
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// kube-controller-manager's process, if any.
    pub fn controller_manager(&self) -> Option<RwLockReadGuard<'_, Process>> {
        let process = self.controller_manager.as_ref()?;
        Some(process.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn new_file(&self, extension: &str) -> PathBuf {
        let unique = self.made.fetch_add(1, Ordering::Relaxed);
        self.scratch.join(&format!("{unique}.{extension}"))
    }

    fn describe(&self, user: User) -> Kubeconfig {
        Kubeconfig::new(&self.server, self.ca.certificate_pem(), user)
    }
}

/// Locks a process. A failed test can leave the lock poisoned.
fn write(process: &RwLock<Process>) -> RwLockWriteGuard<'_, Process> {
    process.write().unwrap_or_else(PoisonError::into_inner)
}

/// Copies a directory's contents.
#[track_caller]
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("create a directory");
    for entry in fs::read_dir(from).expect("read a directory") {
        let entry = entry.expect("read a directory");
        let (entry, to) = (entry.path(), to.join(entry.file_name()));
        if entry.is_dir() {
            copy(&entry, &to);
        } else {
            fs::copy(&entry, &to).expect("copy a file");
        }
    }
}

/// Whether an object's status contains this condition with the status True.
pub fn has_condition(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|one| one["type"] == condition && one["status"] == "True")
    })
}
