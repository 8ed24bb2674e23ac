//! The container runtime of a machine: one whose containers are processes of the machine, or containerd with runc.

use std::path::Path;

use serde_json::{Value, json};

use super::{Machine, MachineBuilder, RUNTIME};

/// The directory of Debian's CNI plugins.
const NETWORK_PLUGINS: &str = "/usr/lib/cni";

/// The name of the image that keeps the namespaces of a Pod. `tests/containerd/pause` gives its archive this name.
pub const PAUSE: &str = concat!("pause.test/pause:v", env!("CARGO_PKG_VERSION"));

/// The bridge of the Pods, and their addresses. The machine forwards between the bridge and its own network, but no other
/// machine has a route to these addresses.
const BRIDGE: (&str, &str) = ("pods", "10.85.0.0/16");

/// The container runtime of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runtime {
    /// fakecri, whose containers are processes of the machine.
    Processes,
    /// The containerd of the host.
    Containerd,
}

impl Runtime {
    /// The name and the text of the runtime's unit. The unit is started only after its socket is listening, because
    /// kubeadm queries the runtime immediately.
    pub(super) fn unit(self) -> (&'static str, String) {
        match self {
            Self::Processes => {
                let listens = format!("until [ -S {RUNTIME} ]; do sleep 0.05; done");
                let text = format!(
                    "[Service]\nExecStart=/usr/bin/fakecri --socket {RUNTIME}\n\
                     ExecStartPost=/bin/sh -c '{listens}'\n"
                );
                ("fakecri.service", text)
            }
            // From Debian's package.
            Self::Containerd => (
                "containerd.service",
                "[Service]\nExecStart=/usr/bin/containerd --config /etc/containerd/config.toml\n\
                 Type=notify\nDelegate=yes\nKillMode=process\n"
                    .to_owned(),
            ),
        }
    }
}

/// containerd's configuration. The data is in `/run`, because the machine's `/var/lib` can show the containers of the
/// host. Root on a test host can lack `CAP_SYS_RESOURCE`. Without `restrict_oom_score_adj`, runc then cannot start the
/// sandbox of a Pod, and does not name the reason.
fn configuration() -> String {
    format!(
        r#"version = 2
root = "/run/containerd-root"
state = "/run/containerd"
[grpc]
address = "{RUNTIME}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{NETWORK_PLUGINS}"
conf_dir = "/etc/cni/net.d"
"#
    )
}

/// The configuration of CNI, in which each Pod has a separate address behind a bridge.
pub fn pod_network() -> Value {
    let (bridge, addresses) = BRIDGE;
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": bridge,
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": addresses }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

impl MachineBuilder {
    /// Replaces the container runtime with the host's containerd, runc and CNI plugins. Each Pod has a network of its
    /// own, and can connect to the machine. NetworkPolicies have no effect.
    ///
    /// The machine does not pull images: see [`Machine::import_image`].
    ///
    /// # Panics
    ///
    /// Panics if a program is missing.
    #[track_caller]
    pub fn containerd(self) -> Self {
        for program in [
            "/usr/bin/containerd",
            "/usr/bin/containerd-shim-runc-v2",
            "/usr/bin/ctr",
            "/usr/lib/cni/bridge",
        ] {
            assert!(
                Path::new(program).exists(),
                "a machine with containerd needs {program}: run tests/prerequisites containerd"
            );
        }
        self.runtime(Runtime::Containerd)
            .file("/etc/containerd/config.toml", 0o644, configuration())
            .file(
                "/etc/cni/net.d/10-pods.conflist",
                0o644,
                pod_network().to_string(),
            )
    }
}

impl Machine {
    /// Imports an image from this archive on the host, for a machine with [`MachineBuilder::containerd`]. The Pods of the
    /// machine need the image of `tests/containerd/pause`.
    ///
    /// # Panics
    ///
    /// Panics if containerd rejects the archive.
    #[track_caller]
    pub fn import_image(&self, archive: &Path) {
        let content = std::fs::read(archive)
            .unwrap_or_else(|error| panic!("no image {}: {error}", archive.display()));
        let file = "/run/image.tar";
        self.write(file, 0o600, content);
        self.ctr(&["images", "import", file]);
        self.remove(file);
    }

    /// Kills the first process of a container with this ID, as if the kernel had run out of memory.
    ///
    /// # Panics
    ///
    /// Panics if the container does not run.
    #[track_caller]
    pub fn kill_container(&self, id: &str) {
        self.ctr(&["tasks", "kill", "--signal", "SIGKILL", id]);
    }

    /// The output of all containers of the machine's Pods.
    #[track_caller]
    pub fn pod_logs(&self) -> String {
        let output = self.run(&["sh", "-c", "tail -n 50 /var/log/pods/*/*/*.log"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[track_caller]
    fn ctr(&self, words: &[&str]) {
        let ctr = ["ctr", "--address", RUNTIME, "--namespace", "k8s.io"];
        self.ok(&[&ctr[..], words].concat());
    }
}
