//! The systemd units of a machine, in the machine's `/usr/lib/systemd/system`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::SYSTEMD;

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
const WANTED: [(&str, &str); 4] = [
    ("multi-user.target.wants", "fakecri.service"),
    ("sockets.target.wants", "systemd-journald-dev-log.socket"),
    ("sockets.target.wants", "systemd-journald.socket"),
    ("sysinit.target.wants", "systemd-journald.service"),
];

/// From the package kubelet (kubernetes/release, cmd/krel/templates/latest/kubelet).
const KUBELET: &str = "[Unit]
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

/// From the package kubeadm (kubernetes/release, cmd/krel/templates/latest/kubeadm).
const KUBEADM: &str = r#"[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"#;

/// The name of the Unix socket in `/run/machine` that forwards to a server on the host.
pub(super) fn socket(server: SocketAddr) -> String {
    format!("{}.sock", server.port())
}

/// Writes the units into `directory`. `reached` contains the servers on the host to which the machine can connect at
/// their own addresses. `runtime` is the socket of the container runtime.
#[track_caller]
pub(super) fn write(directory: &Path, reached: &[SocketAddr], runtime: &str) {
    for unit in OF_SYSTEMD {
        let source = Path::new(SYSTEMD).join("system").join(unit);
        fs::copy(&source, directory.join(unit)).unwrap_or_else(|error| {
            panic!("a machine needs systemd with {}: {error}", source.display())
        });
    }
    put(directory, "kubelet.service", KUBELET);
    put(directory, "kubelet.service.d/10-kubeadm.conf", KUBEADM);
    // The unit is started only after the socket is listening, because kubeadm queries the runtime immediately.
    let listens = format!("until [ -S {runtime} ]; do sleep 0.05; done");
    let fakecri = format!(
        "[Service]\nExecStart=/usr/bin/fakecri --socket {runtime}\n\
         ExecStartPost=/bin/sh -c '{listens}'\n"
    );
    put(directory, "fakecri.service", &fakecri);
    for (wants, unit) in WANTED {
        want(directory, wants, unit);
    }
    for server in reached {
        forward(directory, *server);
    }
}

/// Writes the units that forward this server's address to the server on the host.
#[track_caller]
fn forward(directory: &Path, server: SocketAddr) {
    let unit = format!("host-{}", server.port());
    // Units that run before `basic.target`, such as cloud-init, also connect to the server.
    let listens = format!(
        "[Unit]\nDefaultDependencies=no\nConflicts=shutdown.target\n\
         Before=sockets.target cloud-init-local.service shutdown.target\n\n\
         [Socket]\nListenStream={server}\n"
    );
    put(directory, &format!("{unit}.socket"), &listens);
    let socket = socket(server);
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
