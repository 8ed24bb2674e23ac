//! A machine's files, and the runs of `setup` on the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::subject;
use kubelet_authenticator::testing::Kubeconfig;
use kubelet_authenticator_test_support::api_server::{ApiServer, Signer, TOKEN};
use kubelet_authenticator_tests::node::{NULL, Node, Run, UNDER_TEST};
use kubelet_authenticator_tests::program;
use serde_json::Value;

/// The kubelet's arguments in the environment file, except the kubeconfig.
const ARGUMENTS: &str = "--rotate-certificates=false";

/// The file to which kubeadm writes the kubelet's arguments.
pub const FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";

/// The kubelet's configuration file, which `kubeadm reset` removes.
pub const CONFIGURATION: &str = "/var/lib/kubelet/config.yaml";

/// A shell script that sets the host name `$0`, and runs the remaining arguments in a shell that looks like a kubelet
/// with the argument `$1`.
const KUBELET: &str = r#"echo "$0" > /proc/sys/kernel/hostname
exec -a kubelet bash -c '"$@"; exit $?' "$@""#;

/// A machine with the files of kubeadm and the kubelet.
pub struct Host {
    pub node: Node,
    /// The directory that replaces `/etc/kubernetes`.
    pub etc: PathBuf,
}

impl Host {
    pub fn new(plugin: &str, server: &ApiServer) -> Self {
        let mut node = Node::new(plugin, server);
        let etc = node.scratch().directory("etc");
        node.set("bootstrapKubeconfig", etc.join("ours/bootstrap.kubeconfig"));
        let host = Self { node, etc };
        fs::write(host.kubeadm_flags(), "KUBELET_KUBEADM_ARGS=\"\"\n").unwrap();
        host
    }

    /// A machine on which `kubeadm join` has left its bootstrap kubeconfig.
    pub fn joining(server: &ApiServer) -> Self {
        let host = Self::new(NULL, server);
        server.kubeconfig().write(&host.from());
        host
    }

    /// A machine with a separate host name and separate files, on which `kubeadm join` has left its files.
    pub fn named(server: &ApiServer, host_name: &str) -> Self {
        let mut host = Self::new(UNDER_TEST, server);
        host.node.unset("nodeName");
        let root = host.node.scratch().directory("machine");
        host.node.set_env("MACHINE_ROOT", root);
        host.call(host_name);
        host.machine_file(FLAGS, "KUBELET_KUBEADM_ARGS=\n");
        host.machine_file(CONFIGURATION, "kind: KubeletConfiguration\n");
        server.kubeconfig().write(&host.from());
        host
    }

    /// Sets the machine's host name. After that, the plugin runs without a kubelet.
    pub fn call(&mut self, host_name: &str) {
        self.node.call(host_name);
    }

    /// Runs the plugin as a kubelet with this argument does, on a machine with this host name.
    #[track_caller]
    pub fn kubelet(&mut self, host_name: &str, argument: &str) -> Run {
        let wrapper = [
            "unshare", "--uts", "bash", "-c", KUBELET, host_name, argument,
        ];
        self.node.wrap(&wrapper);
        let run = self.node.run();
        self.call(host_name);
        run
    }

    /// The path of a file on the machine.
    pub fn machine_path(&self, path: &str) -> PathBuf {
        let root = self.node.scratch().join("machine");
        root.join(path.trim_start_matches('/'))
    }

    /// Writes a file on the machine.
    pub fn machine_file(&self, path: &str, text: &str) {
        let path = self.machine_path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Removes the files that `kubeadm reset` removes.
    pub fn reset_by_kubeadm(&self) {
        let _ = fs::remove_file(self.from());
        fs::remove_file(self.kubelet_conf()).unwrap();
        fs::remove_file(self.kubeadm_flags()).unwrap();
        fs::remove_dir_all(self.machine_path("/var/lib/kubelet")).unwrap();
    }

    /// Writes the files that `kubeadm join` writes, in the same order, with the arguments last.
    pub fn join_by_kubeadm(&self, server: &ApiServer) {
        server.kubeconfig().write(&self.from());
        self.machine_file(CONFIGURATION, "kind: KubeletConfiguration\n");
        self.machine_file(FLAGS, "KUBELET_KUBEADM_ARGS=\n");
        fs::write(self.kubeadm_flags(), "KUBELET_KUBEADM_ARGS=\"\"\n").unwrap();
    }

    /// The text of the kubelet's kubeconfig.
    #[track_caller]
    pub fn conf(&self) -> String {
        fs::read_to_string(self.kubelet_conf()).unwrap()
    }

    pub fn from(&self) -> PathBuf {
        self.etc.join("bootstrap-kubelet.conf")
    }

    pub fn kubelet_conf(&self) -> PathBuf {
        self.etc.join("kubelet.conf")
    }

    pub fn environment(&self) -> PathBuf {
        self.etc.join("ours/kubelet.env")
    }

    pub fn bootstrap(&self) -> PathBuf {
        self.etc.join("ours/bootstrap.kubeconfig")
    }

    pub fn kubeadm_flags(&self) -> PathBuf {
        self.etc.join("kubeadm-flags.env")
    }

    pub fn pair(&self) -> PathBuf {
        self.etc.join("pki/kubelet-client-current.pem")
    }

    /// Runs `setup` in the same way as before a kubelet start.
    pub fn setup(&self) -> Run {
        self.setup_with(&["--from", self.from().to_str().unwrap()])
    }

    pub fn undo(&self) -> Run {
        self.setup_with(&["--undo"])
    }

    pub fn setup_with(&self, options: &[&str]) -> Run {
        let (conf, environment) = (self.kubelet_conf(), self.environment());
        let (flags, cert_dir) = (self.kubeadm_flags(), self.etc.join("pki"));
        let mut words = vec!["setup"];
        for (flag, path) in [
            ("--kubelet-kubeconfig", &conf),
            ("--environment-file", &environment),
            ("--kubeadm-flags", &flags),
            ("--cert-dir", &cert_dir),
        ] {
            words.extend([flag, path.to_str().unwrap()]);
        }
        let run = self.node.command(&[&words, options].concat());
        for secret in [TOKEN, "PRIVATE KEY"] {
            assert!(
                !run.stderr.contains(secret) && !run.stdout.contains(secret),
                "{run:#?}"
            );
        }
        run
    }

    /// Asserts that the kubelet's next start uses the plugin.
    #[track_caller]
    pub fn is_set_up(&self, plugin: &str) {
        let command = Kubeconfig::read_exec_command(&self.kubelet_conf()).unwrap();
        assert_eq!(command, Some(program(plugin).display().to_string()));
        let conf = self.kubelet_conf();
        let expected = format!(
            "KUBELET_KUBECONFIG_ARGS=\"--kubeconfig={} {ARGUMENTS}\"",
            conf.display()
        );
        let environment = fs::read_to_string(self.environment()).unwrap();
        assert_eq!(environment.lines().last(), Some(&*expected));
    }

    /// Asserts that the kubelet's next start uses kubeadm's arguments.
    #[track_caller]
    pub fn is_left_to_kubeadm(&self) {
        assert!(!self.environment().exists());
    }
}

pub fn issuing() -> ApiServer {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    server
}

/// The node name in the last request.
#[track_caller]
pub fn asked(server: &ApiServer) -> String {
    let body: Value = serde_json::from_slice(server.created_bodies().last().unwrap()).unwrap();
    let request = STANDARD.decode(body["spec"]["request"].as_str().unwrap());
    let envelope = Envelope::parse(&request.unwrap()).unwrap();
    let request = CertificationRequest::from_der(&envelope.csr).unwrap();
    let name = subject::node_name(request.subject()).unwrap();
    name.as_str().to_owned()
}

#[track_caller]
pub fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}
