use std::ffi::OsStr;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use super::{BootstrapToken, ControlPlane, ControlPlaneBuilder, DEADLINE};
use crate::binaries::control_plane_binary;
use crate::process::guarded;

/// The address of the control-plane node in kubeadm's configuration, which does not accept a loopback address. It is a
/// documentation address (RFC 5737), so no data is sent to it.
const ADVERTISED: &str = "203.0.113.1";

/// The API version of kubeadm's configuration.
pub(crate) const API_VERSION: &str = "kubeadm.k8s.io/v1beta4";

/// The token in kubeadm's configuration. The phase `bootstrap-token` creates this token.
const TOKEN: &str = "kubead.0123456789abcdef";

/// The name of the control-plane Node.
const CONTROL_PLANE: &str = "control-plane";

impl ControlPlaneBuilder {
    /// Allows anonymous requests, as in kubeadm's clusters: `kubeadm join` reads the ConfigMap `cluster-info` before it
    /// trusts the server with a token.
    pub fn anonymous_auth(self) -> Self {
        self.apiserver_arg("--anonymous-auth=true")
    }
}

impl ControlPlane {
    /// Runs the phases of `kubeadm init` whose results `kubeadm join` reads, and adds a bootstrap token for joins. All
    /// of kubeadm's bindings exist when this function returns.
    ///
    /// The cluster needs [`ControlPlaneBuilder::anonymous_auth`], and the controllers that sign `cluster-info`.
    ///
    /// # Panics
    ///
    /// Panics if kubeadm fails, or no controller signs.
    #[track_caller]
    pub fn prepare_for_joins(&self) -> BootstrapToken {
        // Older versions of kubeadm annotate the control plane's Node, which does not exist here.
        self.kubectl().create_object(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": CONTROL_PLANE },
        }));
        self.kubeadm_phase(&["init", "phase", "upload-config", "all"]);
        self.kubectl().ok(["delete", "node", CONTROL_PLANE]);
        self.kubeadm_bootstrap_token_phase();
        let token = self.add_bootstrap_token("joiner", "0123456789abcdef");
        self.wait_for_discovery(&token);
        token
    }

    /// Waits until `cluster-info` is signed for the token. Otherwise, `kubeadm join`, which polls every 5 seconds,
    /// would wait for the signature.
    #[track_caller]
    pub fn wait_for_discovery(&self, token: &BootstrapToken) {
        let resource = [
            "configmaps",
            "-n",
            "kube-public",
            "--field-selector=metadata.name=cluster-info",
        ];
        let signature = format!("jws-kubeconfig-{}", token.id());
        let what = format!("cluster-info with a signature for {}", token.id());
        self.kubectl()
            .wait_for(&resource, &what, DEADLINE, |cluster_info| {
                cluster_info["data"][&signature].is_string()
            });
    }

    /// Runs the real kubeadm as if on the control-plane node, with a configuration for this cluster and the
    /// administrator's kubeconfig: `cluster.kubeadm(["init", "phase", "bootstrap-token"])`.
    ///
    /// The arguments specify a command that accepts the flags `--config` and `--kubeconfig`.
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

    /// Creates all of kubeadm's bindings with `kubeadm init phase bootstrap-token`, and restores removed or changed
    /// bindings, as `kubeadm upgrade apply` does.
    ///
    /// # Panics
    ///
    /// Panics if kubeadm fails.
    #[track_caller]
    pub fn kubeadm_bootstrap_token_phase(&self) {
        self.kubeadm_phase(&["init", "phase", "bootstrap-token"]);
    }

    #[track_caller]
    fn kubeadm_phase(&self, arguments: &[&str]) {
        let output = self.kubeadm(arguments);
        assert!(
            output.status.success(),
            "kubeadm {} failed ({}): {}",
            arguments.join(" "),
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
            "nodeRegistration": { "name": CONTROL_PLANE, "criSocket": "unix:///run/none.sock" },
        });
        let cluster = json!({
            "apiVersion": API_VERSION,
            "kind": "ClusterConfiguration",
            "controlPlaneEndpoint": endpoint,
            // Without a version, kubeadm would fetch one from the Internet.
            "kubernetesVersion": version["serverVersion"]["gitVersion"],
            // If a directory contained only ca.crt, kubeadm would assume an external CA.
            "certificatesDir": self.directory("pki"),
        });
        [init, cluster, kubelet_configuration()]
            .map(|document: Value| document.to_string())
            .join("\n---\n")
    }
}

/// The configuration for kubelets that join with `kubeadm join`, in addition to kubeadm's own settings: for a machine
/// without cgroups, swap accounting or iptables.
pub(crate) fn kubelet_configuration() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // The path that `kubeadm join` uses. Otherwise, kubeadm would use the directory of the certificates above.
        "authentication": { "x509": { "clientCAFile": "/etc/kubernetes/pki/ca.crt" } },
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        // kubeadm drops an empty list, and the default is invalid without these cgroups.
        "enforceNodeAllocatable": ["none"],
        "failCgroupV1": false,
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        "resolvConf": "",
    })
}
