//! A controller under test: its files, its process, and requests to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::CLIENT_USAGES;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::names::{Audience, Provider, csr_name};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::pki::{Subject, certificate_request};
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, poll};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use serde_json::{Value, json};

/// For what takes milliseconds; long, since the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A machine of a test's inventory.
///
/// Where suites share a cluster, each test has machines of its own, and a controller that knows no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Its name, and its Node's.
    pub name: &'static str,
    /// The public half of its bootstrap token.
    pub token: &'static str,
}

impl Machine {
    /// What the infrastructure calls it.
    pub fn provider_id(self) -> String {
        format!("test:///{}", self.name)
    }
}

/// The inventory of these machines.
pub fn inventory(machines: &[Machine]) -> String {
    let machines: Vec<Value> = machines
        .iter()
        .map(|machine| {
            json!({
                "name": machine.name,
                "providerID": machine.provider_id(),
                "tokenID": machine.token,
            })
        })
        .collect();
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineInventory",
        "machines": machines,
    })
    .to_string()
}

/// A program that answers requests, with the files that it is started with.
#[derive(Debug)]
pub struct Setup {
    launch: Launch,
    scratch: Arc<Scratch>,
}

impl Setup {
    /// `node-attestation-controller run`, or a program with its options, for these machines.
    pub fn new(
        program: &Path,
        kubeconfig: &Path,
        (ca_cert, ca_key): (&Path, &Path),
        machines: &[Machine],
    ) -> Self {
        let scratch = Arc::new(Scratch::new("controller"));
        let file = scratch.write("machines.yaml", inventory(machines));
        let launch = Launch::new("controller", program)
            .arg("run")
            .arg("--workload-kubeconfig")
            .arg(kubeconfig)
            .arg("--ca-cert")
            .arg(ca_cert)
            .arg("--ca-key")
            .arg(ca_key)
            .arg("--inventory")
            .arg(file)
            .args(["--log-format", "json", "--verbose"]);
        Self { launch, scratch }
    }

    /// With more arguments.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.launch = self.launch.args(arguments);
        self
    }

    /// Replaces the inventory.
    pub fn write_inventory(&self, text: &str) {
        // In one step, as an operator's editor or a mounted volume does.
        let new = self.scratch.write("machines.new", text);
        std::fs::rename(new, self.scratch.join("machines.yaml")).unwrap();
    }

    /// Starts it.
    #[track_caller]
    pub fn start(&self) -> Controller {
        self.start_with(&[])
    }

    /// Starts it with more arguments, only this time.
    #[track_caller]
    pub fn start_with(&self, arguments: &[&str]) -> Controller {
        let launch = self.launch.clone().args(arguments);
        Controller {
            process: launch.spawn(&self.log()),
            _files: self.scratch.clone(),
        }
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("controller.log")
    }
}

/// A running controller.
#[derive(Debug)]
pub struct Controller {
    /// The process.
    pub process: Process,
    // It reads them while it runs.
    _files: Arc<Scratch>,
}

impl Controller {
    /// Every line that it logged since it was started.
    pub fn lines(&self) -> Vec<Value> {
        lines(&self.process)
    }

    /// Waits for a line with this message that `matches` accepts, and gives its fields.
    #[track_caller]
    pub fn wait_for_line(&mut self, message: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let what = format!("log {message:?}");
        self.process.poll_alive(&what, PATIENCE, |process| {
            lines(process)
                .into_iter()
                .map(|mut line| line["fields"].take())
                .find(|fields| fields["message"] == message && matches(fields))
        })
    }

    /// Waits until the request is decided on, and gives the line that says so.
    #[track_caller]
    pub fn wait_for_decision(&mut self, csr: &str) -> Value {
        self.wait_for_line("decided", |fields| fields["csr"] == csr)
    }

    /// Waits until it watches.
    #[track_caller]
    pub fn wait_until_it_watches(&mut self) {
        self.wait_for_line("watching", |_| true);
    }

    /// Waits until it has died by itself.
    #[track_caller]
    pub fn wait_until_it_crashed(&mut self) {
        let status = self.process.wait(PATIENCE);
        assert!(!status.success(), "it ended well: {}", self.process.log());
    }

    /// Stops it as Kubernetes does, and gives its exit code.
    #[track_caller]
    pub fn stop(mut self) -> Option<i32> {
        self.process.signal(Signal::TERM);
        self.process.wait(PATIENCE).code()
    }
}

fn lines(process: &Process) -> Vec<Value> {
    process
        .log()
        .since(process.log_start())
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// A kubelet's request in the making: right as it begins.
#[derive(Debug, Clone)]
pub struct Application {
    provider: Provider,
    token: String,
    request: Vec<u8>,
    key_pem: String,
}

impl Application {
    /// Of a machine that proves nothing.
    pub fn insecure(machine: Machine) -> Self {
        Self::new(machine, Provider::INSECURE, None)
    }

    /// Of a machine with a rubber stamp for the cluster with this CA.
    pub fn null(machine: Machine, ca_pem: &str) -> Self {
        let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap();
        let evidence = Header {
            version: EvidenceVersion::v1(),
            audience: Audience::of_ca(&ca),
        };
        Self::new(machine, Provider::NULL, Some(evidence.to_json()))
    }

    /// With this provider and evidence.
    pub fn new(machine: Machine, provider: Provider, evidence: Option<Vec<u8>>) -> Self {
        let subject = Subject::node(machine.name);
        let (csr, key_pem) = certificate_request(&subject, Some(&machine.provider_id()));
        let csr = CertificateSigningRequestDer::from_pem_slice(csr.as_bytes()).unwrap();
        let envelope = Envelope {
            csr: csr.to_vec(),
            provider: Some(provider.clone()),
            evidence,
        };
        Self {
            provider,
            token: machine.token.to_owned(),
            request: envelope.encode(),
            key_pem,
        }
    }

    /// Made with another machine's bootstrap token.
    #[must_use]
    pub fn with_token_of(mut self, other: Machine) -> Self {
        other.token.clone_into(&mut self.token);
        self
    }

    /// Its name.
    pub fn name(&self) -> String {
        csr_name(
            &self.provider.client_signer(),
            &CLIENT_USAGES,
            &self.request,
        )
    }

    /// The bootstrap token's ID that it is made with.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The request's key, PKCS#8 PEM.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// What the node sends.
    pub fn to_json(&self) -> Value {
        json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": self.name()},
            "spec": {
                "signerName": self.provider.client_signer(),
                "usages": CLIENT_USAGES,
                "request": STANDARD.encode(&self.request),
            },
        })
    }

    /// Puts it into the in-memory API server as if the token's holder had sent it; gives its name.
    pub fn put(&self, server: &ApiServer) -> String {
        let mut object = self.to_json();
        object["spec"]["username"] = format!("system:bootstrap:{}", self.token).into();
        object["spec"]["groups"] = json!([
            "system:bootstrappers",
            "system:bootstrappers:kubeadm:default-node-token",
            "system:authenticated",
        ]);
        server.put_csr(object);
        self.name()
    }
}

/// The reason of the request's condition of this type.
pub fn reason_of<'a>(csr: &'a Value, condition: &str) -> Option<&'a str> {
    csr["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|found| found["type"] == condition)?["reason"]
        .as_str()
}

/// The certificate that was issued, as PEM.
pub fn certificate_of(csr: &Value) -> Option<String> {
    let encoded = csr["status"]["certificate"].as_str()?;
    Some(String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap())
}

/// Waits until the request in the in-memory API server is as `wanted`.
#[track_caller]
pub fn wait_for_csr(server: &ApiServer, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    poll(PATIENCE, || server.csr(name).filter(&wanted))
        .unwrap_or_else(|| panic!("it never came to that: {:#?}", server.csr(name)))
}
