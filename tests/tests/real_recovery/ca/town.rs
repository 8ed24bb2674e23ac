//! A cluster whose CA is replaced, its node, and an operator who works on both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use base64::prelude::*;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Kubeconfig, Kubectl, User};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents, Subject};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::settings::flag;
use kubelet_authenticator_tests::controller::certificate_of;
use kubelet_authenticator_tests::management::{
    Management, WorkloadCluster, workload_kubeconfig_of_ca,
};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};
use x509_parser::pem::parse_x509_pem;

use crate::bed::{Authentication, authorize, management};
use crate::witness::{PATIENCE, record, wait_for_certificate, workload};

pub const INSECURE: &str = "kubelet-authenticator-insecure";

/// The name of both CAs, as in kubeadm.
const NAME: &str = "kubernetes";

/// A cluster, and the CA that replaces its CA.
pub struct Town {
    pub management: Management,
    pub cluster: WorkloadCluster,
    pub plane: Arc<ControlPlane>,
    pub new: CertificateAuthority,
}

impl Town {
    pub fn start() -> Self {
        let management = management();
        let plane = Arc::new(workload());
        let cluster = management.cluster("prod-1").workload(plane.clone());
        Self {
            cluster: cluster.create(),
            management,
            plane,
            new: CertificateAuthority::new(NAME),
        }
    }

    #[track_caller]
    pub fn authorize(&self, attestor: &str) -> Authentication {
        let authentication = authorize(&self.management, &self.cluster, &[attestor], json!({}));
        authentication.wait_until_ready(self.management.kubectl());
        authentication
    }

    pub fn former(&self) -> &CertificateAuthority {
        self.plane.ca()
    }

    /// Copies of the previous CA and of the new CA.
    pub fn authorities(&self) -> (CertificateAuthority, CertificateAuthority) {
        let copy = |ca: &CertificateAuthority| CertificateAuthority::of_pair(NAME, ca.pair());
        (copy(self.former()), copy(&self.new))
    }

    /// Writes the Secret with the CA certificates and with the key of `signer`.
    pub fn write_secret(&self, certificates: &str, signer: &CertificateAuthority) {
        let key = &signer.pair().key_pem;
        self.cluster.write_ca(certificates, Some(key));
    }

    /// Replaces the other certificates of the control plane and the controller's kubeconfig.
    #[track_caller]
    pub fn replace_other_certificates(&self) {
        self.plane.issue_again(&self.new);
        let kubeconfig = workload_kubeconfig_of_ca(self.cluster.name(), &self.plane, &self.new);
        self.cluster.write_kubeconfig(&kubeconfig);
    }

    /// kubectl for a member of `system:masters` that has a certificate from this CA and trusts the API server.
    pub fn master(&self, ca: &CertificateAuthority) -> Kubectl {
        let pair = ca.issue(&Contents::client(Subject {
            organization: Some("system:masters".to_owned()),
            ..Subject::user("master")
        }));
        let trusted = bundle([self.former(), &self.new]);
        let kubeconfig = Kubeconfig::new(self.plane.server(), &trusted, User::Certificate(pair));
        let path = self.plane.directory("master").join("kubeconfig");
        self.plane.kubectl_with(kubeconfig.write(&path))
    }

    /// A certificate for the node, in addition to the first `known` certificates, for a request from this user.
    #[track_caller]
    pub fn certificate(&self, node: &Node, known: usize, user: &str) -> Value {
        wait_for_certificate(&self.plane, node.name(), known, |csr| {
            csr["spec"]["username"] == *user
        })
    }

    pub fn record(&self, node: &Node) -> Value {
        record(self.management.kubectl(), "default", "prod-1", node.name())
    }
}

/// The certificates of these CAs in one text.
pub fn bundle(cas: [&CertificateAuthority; 2]) -> String {
    cas.map(CertificateAuthority::certificate_pem).concat()
}

/// A node, and an operator who works on it.
pub struct Node {
    plugin: &'static str,
    pub kubelet: Kubelet,
}

impl Node {
    #[track_caller]
    pub fn join(plugin: &'static str, kubelet: Kubelet) -> Self {
        kubelet.wait_until_ready();
        Self { plugin, kubelet }
    }

    pub fn name(&self) -> &str {
        self.kubelet.name()
    }

    pub fn has_evidence(&self) -> bool {
        self.plugin != INSECURE
    }

    /// The plugin settings in the kubelet's kubeconfig.
    fn settings(&self) -> Vec<String> {
        let kubeconfig = read(self.kubelet.kubeconfig());
        let arguments = &kubeconfig["users"][0]["user"]["exec"]["args"];
        serde_json::from_value(arguments.clone()).unwrap()
    }

    fn bootstrap_kubeconfig(&self) -> PathBuf {
        let option = format!("{}=", flag("bootstrapKubeconfig"));
        let settings = self.settings();
        let path = settings.iter().find_map(|it| it.strip_prefix(&option));
        PathBuf::from(path.unwrap())
    }

    /// Writes these CA certificates into both kubeconfigs.
    pub fn put(&self, cas: &str) {
        for path in [
            self.kubelet.kubeconfig().to_owned(),
            self.bootstrap_kubeconfig(),
        ] {
            let mut kubeconfig = read(&path);
            let cluster = &mut kubeconfig["clusters"][0]["cluster"];
            cluster["certificate-authority-data"] = BASE64_STANDARD.encode(cas).into();
            fs::write(&path, kubeconfig.to_string()).unwrap();
        }
    }

    /// Like [`put`](Self::put), but also restarts the kubelet.
    #[track_caller]
    pub fn trust(&mut self, cas: &str) {
        self.put(cas);
        self.kubelet.restart();
    }

    /// Runs a command of the plugin.
    fn run(&self, words: &[&str]) -> Output {
        let state = self.kubelet.var_lib().join("kubelet-authenticator");
        Command::new(program(self.plugin))
            .args(self.settings())
            .arg(flag("stateDirectory"))
            .arg(state)
            .args(words)
            .output()
            .unwrap()
    }

    /// Runs `renew` with the cluster in the kubelet's kubeconfig.
    pub fn renew(&self, words: &[&str]) -> Output {
        let kubeconfig = self.kubelet.kubeconfig().to_str().unwrap();
        self.run(&[&["renew", "--kubelet-kubeconfig", kubeconfig], words].concat())
    }

    /// The serial number of the certificate in the output of `status`.
    #[track_caller]
    fn serial(&self) -> String {
        let output = self.run(&["status", "-o", "json"]);
        assert!(output.status.success(), "{output:?}");
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        status["certificate"]["serial"].as_str().unwrap().to_owned()
    }

    /// Waits until `status` shows the certificate of this request.
    #[track_caller]
    pub fn wait_until_stored(&self, csr: &Value) {
        let pem = certificate_of(csr).unwrap();
        let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
        let serial = pem.parse_x509().unwrap().raw_serial_as_string();
        let serial = serial.replace(':', "");
        let stored = poll(PATIENCE, || (self.serial() == serial).then_some(()));
        assert!(stored.is_some(), "{} is not {serial}", self.serial());
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}
