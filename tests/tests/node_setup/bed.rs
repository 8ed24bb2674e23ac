//! A machine's files, and runs of `setup` on it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use kubelet_authenticator::testing::Kubeconfig;
use kubelet_authenticator_test_support::api_server::{ApiServer, Signer, TOKEN};
use kubelet_authenticator_tests::node::{NULL, Node, Run};
use kubelet_authenticator_tests::program;

/// The kubelet's arguments in the environment file, without the kubeconfig.
const ARGUMENTS: &str = "--rotate-certificates=false";

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

    /// Runs `setup` as before a start of the kubelet.
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

#[track_caller]
pub fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}
