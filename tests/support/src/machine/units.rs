//! The systemd units of a machine, in the machine's `/usr/lib/systemd/system`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::SYSTEMD;
use super::containerd::Runtime;

/// Systemd's own units, copied from the host: other units of the host would run the host's services.
const OF_SYSTEMD: [&str; 15] = [
    "basic.target",
    "local-fs.target",
    "multi-user.target",
    "network-online.target",
    "network.target",
    "paths.target",
    "shutdown.target",
    "slices.target",
    "sockets.target",
    "sysinit.target",
    "systemd-journald-dev-log.socket",
    "systemd-journald.service",
    "systemd-journald.socket",
    "timers.target",
    "umount.target",
];

/// The links that enable units: `(directory, unit)`.
const WANTED: [(&str, &str); 3] = [
    ("sockets.target.wants", "systemd-journald-dev-log.socket"),
    ("sockets.target.wants", "systemd-journald.socket"),
    ("sysinit.target.wants", "systemd-journald.service"),
];

/// The kubelet's unit, from the package kubelet (kubernetes/release, cmd/krel/templates/latest/kubelet).
pub const KUBELET_UNIT: &str = "[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
";

/// The drop-in for the kubelet's unit, from the package kubeadm (kubernetes/release,
/// cmd/krel/templates/latest/kubeadm).
pub const KUBEADM_DROP_IN: &str = r#"[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"#;

/// An address in the machine that forwards to a server on the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reached {
    /// The address in the machine.
    pub(super) listen: SocketAddr,
    /// The server on the host.
    pub(super) server: SocketAddr,
}

impl Reached {
    /// The server at its own address.
    pub(super) fn itself(server: SocketAddr) -> Self {
        Self {
            listen: server,
            server,
        }
    }

    /// The name of the units.
    fn unit(&self) -> String {
        format!("host-{}-{}", self.listen.ip(), self.listen.port())
    }

    /// The name of the Unix socket in `/run/machine` that forwards to the server.
    pub(super) fn socket(&self) -> String {
        format!("{}.sock", self.unit())
    }
}

/// Writes the units into `directory`. `reached` contains the servers on the host to which the machine can connect.
#[track_caller]
pub(super) fn write(directory: &Path, reached: &[Reached], runtime: Runtime) {
    for unit in OF_SYSTEMD {
        let source = Path::new(SYSTEMD).join("system").join(unit);
        fs::copy(&source, directory.join(unit)).unwrap_or_else(|error| {
            panic!("a machine needs systemd with {}: {error}", source.display())
        });
    }
    put(directory, "kubelet.service", KUBELET_UNIT);
    put(
        directory,
        "kubelet.service.d/10-kubeadm.conf",
        KUBEADM_DROP_IN,
    );
    let (name, text) = runtime.unit();
    put(directory, name, &text);
    want(directory, "multi-user.target.wants", name);
    for (wants, unit) in WANTED {
        want(directory, wants, unit);
    }
    for reached in reached {
        forward(directory, *reached);
    }
}

/// Writes the units that forward an address in the machine to the server on the host.
#[track_caller]
fn forward(directory: &Path, reached: Reached) {
    let unit = reached.unit();
    let listen = reached.listen;
    // The machine does not have the address of a Service yet.
    let add = if listen == reached.server {
        String::new()
    } else {
        format!(
            "FreeBind=yes\nExecStartPre=/sbin/ip address replace {}/32 dev lo\n",
            listen.ip()
        )
    };
    // Units that run before `basic.target`, such as cloud-init, also connect to the server.
    let listens = format!(
        "[Unit]\nDefaultDependencies=no\nConflicts=shutdown.target\n\
         Before=sockets.target cloud-init-local.service shutdown.target\n\n\
         [Socket]\nListenStream={listen}\n{add}"
    );
    put(directory, &format!("{unit}.socket"), &listens);
    let socket = reached.socket();
    // Units that run before `basic.target` also wait for this unit.
    let forwards = format!(
        "[Unit]\nDefaultDependencies=no\nConflicts=shutdown.target\nBefore=shutdown.target\n\n\
         [Service]\nExecStart={SYSTEMD}/systemd-socket-proxyd /run/machine/{socket}\n"
    );
    put(directory, &format!("{unit}.service"), &forwards);
    want(directory, "sockets.target.wants", &format!("{unit}.socket"));
}

#[track_caller]
fn put(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    let parent = path.parent().expect("it is in the directory");
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(&path, text))
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

#[track_caller]
fn want(directory: &Path, wants: &str, unit: &str) {
    let wants = directory.join(wants);
    fs::create_dir_all(&wants)
        .and_then(|()| symlink(Path::new("..").join(unit), wants.join(unit)))
        .unwrap_or_else(|error| panic!("cannot link in {}: {error}", wants.display()));
}
