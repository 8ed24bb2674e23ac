//! Machines with Debian: systemd, containerd, and a kubelet with the files that kubeadm and the plugin's package
//! install.

use std::process::Command;

use kubelet_authenticator_test_support::binaries::control_plane_binary;
use kubelet_authenticator_test_support::machine::{
    KUBEADM_DROP_IN, KUBELET_UNIT, PAUSE, pod_network,
};
use kubelet_authenticator_test_support::virtual_machine::VirtualMachine;
use serde_json::{Value, json};

use super::{BOOTSTRAP, Host, new_tpm};
use crate::program;
use crate::scene::Scene;
use crate::tpm::PLUGIN;

/// The path at which packages install the plugin.
const INSTALLED: &str = "/usr/bin/kubelet-authenticator-tpm";

/// The bootstrap kubeconfig that kubeadm writes, and that `setup` copies.
const OF_KUBEADM: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

/// The directory of the kubelet's drop-ins.
const DROP_INS: &str = "/etc/systemd/system/kubelet.service.d";

/// The drop-in that writes the output of the kubelet and of `setup` to the report.
const REPORTED: &str =
    "[Service]\nStandardOutput=append:/report/kubelet\nStandardError=append:/report/kubelet\n";

/// A shell script that starts the kubelet, and waits until its Node is ready. The script ends with the end of the
/// kubelet's log if the kubelet fails three times, or if the Node does not become ready.
pub const NODE_STARTS: &str = r#"
systemctl start kubelet
ready=
for try in $(seq 240); do
  if grep -qE 'just became ready' /report/kubelet; then ready=yes; break; fi
  [ "$(systemctl show --property=NRestarts --value kubelet)" -lt 3 ] || break
  sleep 2
done
if [ ! "$ready" ]; then
  tail -n 40 /report/kubelet >&2
  exit 1
fi
"#;

/// A function of the shell that runs `renew --force` of the plugin. The arguments are the plugin, and the command that
/// starts it. During a back-off, while the API server does not respond, and while the request is pending, the function
/// repeats the command.
pub const RENEW: &str = r#"
renew() {
  for run in $(seq 20); do
    "$@" renew --force && return
    status=$?
    case $status in 8 | 11 | 17) sleep 1 ;; *) return "$status" ;; esac
  done
  return "$status"
}
"#;

impl<'a> Host<'a> {
    /// Creates a Machine with Debian, on which the plugin's packages are installed. The bootstrap kubeconfig is at the
    /// plugin's default path. No kubelet is installed.
    #[track_caller]
    pub fn debian(scene: &'a Scene, name: &str) -> Self {
        Self::with_packages(scene, name, BOOTSTRAP)
    }

    /// Creates a Machine with Debian in the state in which `kubeadm join` starts the kubelet. The kubelet's unit has
    /// the plugin's drop-in.
    #[track_caller]
    pub fn debian_node(scene: &'a Scene, name: &str) -> Self {
        let host = Self::with_packages(scene, name, OF_KUBEADM);
        let hardware = &host.hardware;
        hardware.program("/usr/bin/kubelet", &control_plane_binary("kubelet"));
        let configuration = configuration().to_string();
        hardware.file("/var/lib/kubelet/config.yaml", 0o644, configuration);
        hardware.file(
            "/etc/default/kubelet",
            0o644,
            "KUBELET_EXTRA_ARGS=\"-v=2 --node-ip=10.96.0.15\"\n",
        );
        hardware.file("/etc/systemd/system/kubelet.service", 0o644, KUBELET_UNIT);
        let rendered = drop_in();
        for (name, text) in [
            ("10-kubeadm", KUBEADM_DROP_IN),
            ("20-kubelet-authenticator", rendered.as_str()),
            ("30-report", REPORTED),
        ] {
            hardware.file(&format!("{DROP_INS}/{name}.conf"), 0o644, text);
        }
        hardware.file("/etc/containerd/config.toml", 0o644, runtime());
        let network = pod_network().to_string();
        hardware.file("/etc/cni/net.d/10-pods.conflist", 0o644, network);
        host
    }

    #[track_caller]
    fn with_packages(scene: &'a Scene, name: &str, bootstrap: &str) -> Self {
        let (tpm, provider_id) = new_tpm();
        let plane = scene.cluster.control_plane();
        let hardware = VirtualMachine::debian(name, plane, &tpm);
        hardware.program(INSTALLED, &program(PLUGIN));
        Self::of(scene, name, hardware, &provider_id, bootstrap)
    }
}

/// The plugin, and the command that starts it in the confined domain of `tests/boots/debian/kubelet.cil`.
pub fn confined() -> String {
    format!("runcon system_u:system_r:confined_kubelet_t:s0 {INSTALLED}")
}

/// The plugin's drop-in for the kubelet's unit.
#[track_caller]
fn drop_in() -> String {
    let output = Command::new(program(PLUGIN))
        .args(["render", "--command", INSTALLED, "kubelet-drop-in"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The kubelet's configuration. kubeadm sets `rotateCertificates`.
fn configuration() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": false },
        },
        "authorization": { "mode": "AlwaysAllow" },
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "makeIPTablesUtilChains": false,
        "resolvConf": "",
        "rotateCertificates": true,
        "staticPodPath": "/etc/kubernetes/manifests",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    })
}

/// containerd's configuration.
fn runtime() -> String {
    format!(
        r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
"#
    )
}
