use std::ffi::OsStr;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use super::ControlPlane;
use crate::binaries::control_plane_binary;
use crate::process::guarded;

/// What kubeadm takes the control-plane node's address for: it refuses loopback. Nothing is sent
/// there, an address for documentation (RFC 5737).
const ADVERTISED: &str = "203.0.113.1";

const API_VERSION: &str = "kubeadm.k8s.io/v1beta4";

/// The token of the configuration, which the bootstrap-token phase creates.
const TOKEN: &str = "kubead.0123456789abcdef";

impl ControlPlane {
    /// Runs the real kubeadm as on the control-plane node, with a configuration for this cluster
    /// and the administrator's kubeconfig: `cluster.kubeadm(["init", "phase", "bootstrap-token"])`.
    ///
    /// The arguments are those of a command that takes `--config` and `--kubeconfig`.
    #[track_caller]
    pub fn kubeadm<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        let configuration = self.new_file("kubeadm.yaml");
        std::fs::write(&configuration, self.kubeadm_configuration())
            .expect("the control plane's directory can be written");

        let mut words = vec![control_plane_binary("kubeadm").into_os_string()];
        words.extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        words.extend(["--config".into(), configuration.into()]);
        words.extend(["--kubeconfig".into(), self.admin_kubeconfig().into()]);
        guarded(&[], &words)
            .env("HOME", self.scratch.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .expect("setpriv can be started")
    }

    /// Has `kubeadm init phase bootstrap-token` make all of kubeadm's bindings, in place of those
    /// that were removed or changed, as `kubeadm upgrade apply` does too.
    ///
    /// # Panics
    ///
    /// If kubeadm fails.
    #[track_caller]
    pub fn kubeadm_bootstrap_token_phase(&self) {
        let output = self.kubeadm(["init", "phase", "bootstrap-token"]);
        assert!(
            output.status.success(),
            "kubeadm init phase bootstrap-token failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn kubeadm_configuration(&self) -> String {
        let endpoint = self.server().trim_start_matches("https://");
        let version = self.kubectl().json(["version"]);
        let init = json!({
            "apiVersion": API_VERSION,
            "kind": "InitConfiguration",
            "bootstrapTokens": [{ "token": TOKEN }],
            "localAPIEndpoint": { "advertiseAddress": ADVERTISED },
            "nodeRegistration": { "name": "control-plane", "criSocket": "unix:///run/none.sock" },
        });
        let cluster = json!({
            "apiVersion": API_VERSION,
            "kind": "ClusterConfiguration",
            "controlPlaneEndpoint": endpoint,
            // Without a version kubeadm asks the Internet for one.
            "kubernetesVersion": version["serverVersion"]["gitVersion"],
            // A directory with nothing but ca.crt would mean that the CA is elsewhere.
            "certificatesDir": self.directory("pki"),
        });
        [init, cluster]
            .map(|document: Value| document.to_string())
            .join("\n---\n")
    }
}
