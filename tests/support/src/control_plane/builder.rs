use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Duration;

use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize};

use super::{ControlPlane, DEADLINE, Kubeconfig, Kubectl, User, write};
use crate::binaries::control_plane_binary;
use crate::pki::{CertificateAuthority, Contents, KeyAndCertificate, Subject};
use crate::process::{Launch, Process, Scratch, free_port, poll};

/// The maximum number of attempts to start a control plane, if another process has taken one of its ports each time.
const ATTEMPTS: usize = 5;

/// The maximum time to wait for the start of other control planes.
const TURN_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// The message that every component prints if its port is already used.
const PORT_TAKEN: &str = "address already in use";

/// The common name of the cluster's certificate authority, as in kubeadm.
const CA_NAME: &str = "kubernetes";

/// The API server's names.
const SERVER_NAMES: &[&str] = &[
    "127.0.0.1",
    "10.96.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
];

/// The file with the CA certificates for the client certificates that the API server accepts. The cluster's CA
/// certificate is in a separate file, because kube-controller-manager cannot sign with a file that contains several
/// certificates.
pub(super) const CLIENT_CAS: &str = "client-ca.crt";

/// The user name that the API server uses to forward requests to other API servers.
const FRONT_PROXY: &str = "front-proxy-client";

/// The controllers for certificates, tokens and root certificates.
const CERTIFICATES: &str = "certificatesigningrequest-signing-controller,\
    certificatesigningrequest-approving-controller,\
    certificatesigningrequest-cleaner-controller,\
    bootstrap-signer-controller,token-cleaner-controller,\
    serviceaccount-controller,serviceaccount-token-controller,\
    root-ca-certificate-publisher-controller";

/// The controllers that run in kubeadm's clusters.
const DEFAULT: &str = "*,bootstrap-signer-controller,token-cleaner-controller";

/// The set of controllers that kube-controller-manager runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Controllers {
    /// No controllers, and no kube-controller-manager.
    #[default]
    None,
    /// The controllers for certificate signing requests, bootstrap tokens and service accounts.
    Certificates,
    /// All controllers of kubeadm's clusters.
    Default,
}

/// The key type of the cluster's certificate authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CaKey {
    /// ECDSA P-256.
    #[default]
    Ecdsa,
    /// RSA, 2048 bits.
    Rsa,
}

/// A builder for a control plane.
#[derive(Debug, Clone, Default)]
#[must_use = "nothing is started before `start`"]
pub struct ControlPlaneBuilder {
    controllers: Controllers,
    ca_key: CaKey,
    ca: Option<KeyAndCertificate>,
    apiserver_args: Vec<String>,
    controller_manager_args: Vec<String>,
}

/// Another process has taken a port between its selection and its use.
struct PortTaken;

impl ControlPlaneBuilder {
    /// Selects the controllers. The default is none.
    pub fn controllers(mut self, controllers: Controllers) -> Self {
        self.controllers = controllers;
        self
    }

    /// Sets the key type of the certificate authority.
    pub fn ca_key(mut self, kind: CaKey) -> Self {
        self.ca_key = kind;
        self
    }

    /// Uses the certificate authority of another control plane, as in a cluster that is recreated from a backup of its
    /// PKI.
    pub fn ca_of(mut self, other: &ControlPlane) -> Self {
        self.ca = Some(other.ca().pair().clone());
        self
    }

    /// Adds a flag for kube-apiserver. The flag overrides the fixture's own flag with the same name.
    pub fn apiserver_arg(mut self, argument: impl Into<String>) -> Self {
        self.apiserver_args.push(argument.into());
        self
    }

    /// Adds a flag for kube-controller-manager. The flag overrides the fixture's own flag with the same name.
    pub fn controller_manager_arg(mut self, argument: impl Into<String>) -> Self {
        self.controller_manager_args.push(argument.into());
        self
    }

    /// Starts the control plane, and waits until all of its components are ready.
    #[track_caller]
    pub fn start(self) -> ControlPlane {
        for _ in 0..ATTEMPTS {
            if let Ok(started) = self.attempt() {
                return started;
            }
        }
        panic!(
            "no control plane started in {ATTEMPTS} attempts: another process had taken a port each time"
        );
    }

    #[track_caller]
    fn attempt(&self) -> Result<ControlPlane, PortTaken> {
        let _turn = turn();
        let scratch = Scratch::new("cluster");
        let ca = self.certificate_authority();
        ca.pair().write(scratch.path(), "ca");
        scratch.write(CLIENT_CAS, ca.certificate_pem());

        let etcd_url = format!("http://127.0.0.1:{}", free_port());
        let port = free_port();
        let server = format!("https://127.0.0.1:{port}");
        let etcd = etcd(&scratch, &etcd_url);
        let apiserver = self.apiserver(&scratch, &ca, &etcd_url, port);

        let kubeconfig = write_admin_kubeconfig(&scratch, &server, &ca);
        let mut cluster = ControlPlane {
            controller_manager: None,
            apiserver: RwLock::new(apiserver),
            etcd: RwLock::new(etcd),
            server,
            admin: Kubectl::new(kubeconfig, scratch.path()),
            ca,
            made: AtomicU32::new(0),
            scratch,
        };
        cluster.become_ready()?;
        if self.controllers != Controllers::None {
            self.start_controllers(&mut cluster)?;
        }
        Ok(cluster)
    }

    fn certificate_authority(&self) -> CertificateAuthority {
        if let Some(pair) = &self.ca {
            return CertificateAuthority::of_pair(CA_NAME, pair);
        }
        let key = match self.ca_key {
            CaKey::Ecdsa => KeyPair::generate(),
            CaKey::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        };
        CertificateAuthority::with_key(CA_NAME, key.expect("a key can be generated"))
    }

    fn apiserver(
        &self,
        scratch: &Scratch,
        ca: &CertificateAuthority,
        etcd_url: &str,
        port: u16,
    ) -> Process {
        let (certificate, key) = write_serving_certificate(scratch, ca);
        let client = ca.issue(&Contents::client(Subject {
            organization: Some("system:masters".to_owned()),
            ..Subject::user("kube-apiserver-kubelet-client")
        }));
        let (client_certificate, client_key) = client.write(scratch.path(), "kubelet-client");
        let front_proxy_ca = CertificateAuthority::new("front-proxy-ca");
        let (front_proxy_ca_path, _) = front_proxy_ca
            .pair()
            .write(scratch.path(), "front-proxy-ca");
        let front_proxy = Contents::client(Subject::user(FRONT_PROXY));
        let front_proxy = front_proxy_ca.issue(&front_proxy);
        let (front_proxy, front_proxy_key) = front_proxy.write(scratch.path(), FRONT_PROXY);
        let accounts = KeyPair::generate().expect("a key can be generated");
        let public = scratch.write("service-accounts.pub", accounts.public_key_pem());
        let accounts = scratch.write("service-accounts.key", accounts.serialize_pem());

        Launch::new("kube-apiserver", control_plane_binary("kube-apiserver"))
            .arg(format!("--etcd-servers={etcd_url}"))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .arg(format!("--secure-port={port}"))
            .arg("--endpoint-reconciler-type=none")
            .args([
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
            ])
            .args(["--enable-bootstrap-token-auth", "--anonymous-auth=false"])
            .arg("--service-cluster-ip-range=10.96.0.0/24")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(flag("--service-account-key-file", &public))
            .arg(flag("--service-account-signing-key-file", &accounts))
            .arg(flag("--client-ca-file", &scratch.join(CLIENT_CAS)))
            .arg(flag(
                "--kubelet-certificate-authority",
                &scratch.join("ca.crt"),
            ))
            .arg(flag("--kubelet-client-certificate", &client_certificate))
            .arg(flag("--kubelet-client-key", &client_key))
            // These are the same flags as in kubeadm, for the API server of an APIService.
            .arg(flag("--requestheader-client-ca-file", &front_proxy_ca_path))
            .arg(format!("--requestheader-allowed-names={FRONT_PROXY}"))
            .arg("--requestheader-username-headers=X-Remote-User")
            .arg("--requestheader-group-headers=X-Remote-Group")
            .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
            .arg(flag("--proxy-client-cert-file", &front_proxy))
            .arg(flag("--proxy-client-key-file", &front_proxy_key))
            // The node names do not have DNS entries.
            .arg("--kubelet-preferred-address-types=InternalIP")
            .arg(flag("--tls-cert-file", &certificate))
            .arg(flag("--tls-private-key-file", &key))
            .arg(flag("--cert-dir", scratch.path()))
            .arg("--profiling=false")
            // Each API server runs only for seconds. Without garbage collection, it uses 25 % less processor time.
            .env("GOGC", "off")
            .env("GOMEMLIMIT", "640MiB")
            .args(&self.apiserver_args)
            .spawn(&scratch.join("kube-apiserver.log"))
    }

    #[track_caller]
    fn start_controllers(&self, cluster: &mut ControlPlane) -> Result<(), PortTaken> {
        let controllers = match self.controllers {
            Controllers::None => return Ok(()),
            Controllers::Certificates => CERTIFICATES,
            Controllers::Default => DEFAULT,
        };
        let kubeconfig = write_manager_kubeconfig(&cluster.scratch, &cluster.server, &cluster.ca);
        let port = free_port();
        let launch = Launch::new(
            "kube-controller-manager",
            control_plane_binary("kube-controller-manager"),
        );
        let mut process = launch
            .arg(flag("--kubeconfig", &kubeconfig))
            .arg(flag("--authentication-kubeconfig", &kubeconfig))
            .arg(flag("--authorization-kubeconfig", &kubeconfig))
            .args(["--bind-address=127.0.0.1", &format!("--secure-port={port}")])
            .args([
                "--leader-elect=false",
                "--use-service-account-credentials=true",
            ])
            .arg(format!("--controllers={controllers}"))
            .arg(flag("--cluster-signing-cert-file", &cluster.ca_cert_path()))
            .arg(flag("--cluster-signing-key-file", &cluster.ca_key_path()))
            .arg(flag("--root-ca-file", &cluster.ca_cert_path()))
            .arg(flag(
                "--service-account-private-key-file",
                &cluster.scratch.join("service-accounts.key"),
            ))
            .arg(flag("--cert-dir", cluster.scratch.path()))
            .arg("--profiling=false")
            .args(&self.controller_manager_args)
            .spawn(&cluster.scratch.join("kube-controller-manager.log"));

        let health = super::unverified(
            &format!("https://127.0.0.1:{port}"),
            &cluster.client_certificate("admin", Some("system:masters")),
            &cluster.new_file("kubeconfig"),
        );
        let health = cluster.kubectl_with(health);
        ready("kube-controller-manager", &mut [&mut process], || {
            TcpStream::connect(("127.0.0.1", port)).is_ok() && answers_ok(&health, "/healthz")
        })?;
        cluster.controller_manager = Some(RwLock::new(process));
        Ok(())
    }
}

impl ControlPlane {
    #[track_caller]
    pub(super) fn wait_until_ready(&self) {
        assert!(
            self.become_ready().is_ok(),
            "another process has taken the API server's port"
        );
    }

    /// Waits until the API server is ready, and until the namespace for bootstrap tokens exists. The API server creates
    /// this namespace after it reports that it is ready.
    #[track_caller]
    fn become_ready(&self) -> Result<(), PortTaken> {
        let admin = &self.admin;
        let address = self.server.trim_start_matches("https://");
        ready(
            "the API server",
            &mut [&mut *write(&self.etcd), &mut *write(&self.apiserver)],
            || {
                // Check the port first, because this check does not need a program.
                TcpStream::connect(address).is_ok()
                    && answers_ok(admin, "/readyz")
                    && admin.raw("/api/v1/namespaces/kube-system").is_ok()
            },
        )
    }
}

/// Issues and writes the API server's serving certificate. Returns the paths of the certificate and its key.
pub(super) fn write_serving_certificate(
    scratch: &Scratch,
    ca: &CertificateAuthority,
) -> (PathBuf, PathBuf) {
    let serving = ca.issue(&Contents::server(SERVER_NAMES));
    serving.write(scratch.path(), "apiserver")
}

/// Issues and writes the kubeconfig for a member of `system:masters`. Returns its path.
pub(super) fn write_admin_kubeconfig(
    scratch: &Scratch,
    server: &str,
    ca: &CertificateAuthority,
) -> PathBuf {
    let admin = ca.issue(&Contents::client(Subject {
        organization: Some("system:masters".to_owned()),
        ..Subject::user("admin")
    }));
    let kubeconfig = Kubeconfig::new(server, ca.certificate_pem(), User::Certificate(admin));
    kubeconfig.write(&scratch.join("admin.kubeconfig"))
}

/// Issues and writes the kubeconfig for kube-controller-manager. Returns its path.
pub(super) fn write_manager_kubeconfig(
    scratch: &Scratch,
    server: &str,
    ca: &CertificateAuthority,
) -> PathBuf {
    let manager = ca.issue(&Contents::client(Subject::user(
        "system:kube-controller-manager",
    )));
    let kubeconfig = Kubeconfig::new(server, ca.certificate_pem(), User::Certificate(manager));
    kubeconfig.write(&scratch.join("kube-controller-manager.kubeconfig"))
}

/// Waits for a turn to start a control plane. The turn ends when the file is closed. All test programs together have as
/// many turns as the machine has processors. More concurrent starts would take so long that all of them would miss
/// their deadlines.
fn turn() -> File {
    let turns = thread::available_parallelism().map_or(1, usize::from);
    let programs = control_plane_binary("etcd");
    let programs = programs.parent().expect("the file is in a directory");
    let files: Vec<_> = (0..turns)
        .map(|number| programs.with_extension(format!("start-{number}")))
        .map(|path| File::create(&path).unwrap_or_else(|error| panic!("{path:?}: {error}")))
        .collect();
    let free = || files.iter().position(|file| file.try_lock().is_ok());
    let number = poll(TURN_DEADLINE, free).expect("a turn within the time of all tests");
    files.into_iter().nth(number).expect("it is one of them")
}

/// Waits until `condition` holds, while all `processes` run.
#[track_caller]
fn ready(
    what: &str,
    processes: &mut [&mut Process],
    condition: impl Fn() -> bool,
) -> Result<(), PortTaken> {
    let outcome = poll(DEADLINE, || {
        for process in &mut *processes {
            if let Some(status) = process.exit_status() {
                let taken = process
                    .log()
                    .since(process.log_start())
                    .contains(PORT_TAKEN);
                assert!(
                    taken,
                    "{} ended ({status}){}",
                    process.name(),
                    process.log()
                );
                return Some(Err(PortTaken));
            }
        }
        condition().then_some(Ok(()))
    });
    outcome.unwrap_or_else(|| {
        let logs: Vec<_> = processes
            .iter()
            .map(|process| process.log().to_string())
            .collect();
        panic!("{what} was not ready within {DEADLINE:?}{}", logs.concat())
    })
}

fn answers_ok(kubectl: &Kubectl, path: &str) -> bool {
    kubectl.raw(path).is_ok_and(|answer| answer == "ok")
}

fn etcd(scratch: &Scratch, url: &str) -> Process {
    let peer = format!("http://127.0.0.1:{}", free_port());
    Launch::new("etcd", control_plane_binary("etcd"))
        .args(["--name=test", "--unsafe-no-fsync", "--log-level=warn"])
        .arg(flag("--data-dir", &scratch.join("etcd")))
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=test={peer}"))
        .spawn(&scratch.join("etcd.log"))
}

fn flag(name: &str, path: &Path) -> String {
    let path = path.to_str().expect("TMPDIR is UTF-8");
    format!("{name}={path}")
}
