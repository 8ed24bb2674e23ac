//! An attacker who has a bootstrap token, and creates requests without the plugin.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::process::poll;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use crate::cluster::{self, Cluster};
use crate::controller::Decision;

/// The deadline for an outcome on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time for which the demo watches a request that should remain undecided.
const UNDECIDED: Duration = Duration::from_secs(2);

/// The number of the next request, so that each request has a different name.
static FILED: AtomicU32 = AtomicU32::new(1);

const CSRS: &str = "apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The signer for kubelets without evidence.
pub const INSECURE: &str = "cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure";

/// Kubernetes' own signer for kubelet client certificates.
pub const BUILT_IN: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// The outcome of a request.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// A certificate, PEM.
    Issued(String),
    /// The request has a condition of this type, with this reason and message.
    Refused {
        kind: String,
        reason: String,
        message: String,
    },
    /// The request has no outcome within the time limit.
    Undecided,
}

/// Counts the attacks with the expected outcome, and prints the number.
pub fn sum_up(met: usize, all: usize) {
    println!("\n  {met} of {all} attacks had the expected outcome.");
}

impl Verdict {
    /// Prints the result of an attack. Returns whether the controller refused the request with this condition and this
    /// reason. `decision` is the controller's log entry for a refusal with a reason.
    pub fn tell(&self, expected: (&str, &str), decision: impl FnOnce(&str) -> Decision) -> bool {
        let Self::Refused {
            kind,
            reason,
            message,
        } = self
        else {
            println!("      NOT REFUSED: {}", self.summary());
            return false;
        };
        let decision = decision(reason);
        let check = decision.checks.last().map_or("", |check| &check.name);
        println!(
            "      {} by the check \"{check}\" after {:.1} ms: {reason}",
            kind.to_lowercase(),
            decision.millis
        );
        println!("      the requester reads: {message}");
        println!("      the operator reads:  {}", decision.detail);
        let as_expected = (kind.as_str(), reason.as_str()) == expected;
        if !as_expected {
            println!("      EXPECTED {}: {}", expected.0, expected.1);
        }
        as_expected
    }
}

/// The contents of a request.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Organization of the subject.
    pub organization: &'static str,
    /// The node's name.
    pub node: &'static str,
    /// The claimed provider ID.
    pub provider_id: String,
    /// An address that is hidden in the request as a subject alternative name.
    pub address: Option<Ipv4Addr>,
    /// The name of the signer.
    pub signer: &'static str,
}

impl Wish {
    /// The permitted contents of a request from the node with this name.
    pub fn node(node: &'static str, signer: &'static str) -> Self {
        let provider_id = cluster::provider_id(node);
        Self {
            organization: "system:nodes",
            node,
            provider_id,
            address: None,
            signer,
        }
    }

    /// `spec.request` and the private key for these contents, both as PEM.
    pub fn request(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, self.organization);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("system:node:{}", self.node));
        params.subject_alt_names = self
            .address
            .map(|ip| SanType::IpAddress(IpAddr::V4(ip)))
            .into_iter()
            .collect();
        let id = self.provider_id.as_bytes();
        let utf8_string = [&[0x0c, u8::try_from(id.len()).unwrap()], id].concat();
        let oid = [1, 3, 6, 1, 4, 1, 11129, 2, 1, 21];
        params.custom_extensions = vec![CustomExtension::from_oid_content(&oid, utf8_string)];
        let request = params
            .serialize_request(&key)
            .unwrap()
            .pem()
            .unwrap()
            .replace("\r\n", "\n");
        (request, key.serialize_pem())
    }
}

/// A client of the API server that uses a bootstrap token.
pub struct Attacker {
    client: reqwest::blocking::Client,
    server: String,
    token: String,
    /// The time after which a request without an outcome is undecided.
    undecided: Duration,
}

impl Attacker {
    /// Creates a client of the cluster that uses the bootstrap token of this machine.
    pub fn holding(cluster: &Cluster, machine: &str) -> Self {
        Self::new(
            &cluster.server(),
            &cluster.ca_pem(),
            &cluster::token(machine),
        )
    }

    /// Creates a client of the API server with this CA, which uses a bootstrap token.
    pub fn new(server: &str, ca_pem: &str, token: &str) -> Self {
        let ca = reqwest::Certificate::from_pem(ca_pem.as_bytes()).unwrap();
        let client = reqwest::blocking::Client::builder()
            .tls_certs_only([ca])
            .no_proxy()
            .timeout(PATIENCE)
            .build()
            .unwrap();
        Self {
            client,
            server: server.to_owned(),
            token: token.to_owned(),
            undecided: PATIENCE,
        }
    }

    /// If `undecided` is true, expects no outcome for any request, and therefore waits only a short time for an outcome.
    #[must_use]
    pub fn expecting_no_outcome(mut self, undecided: bool) -> Self {
        if undecided {
            self.undecided = UNDECIDED;
        }
        self
    }

    /// Creates a request, and waits for its outcome.
    pub fn ask(&self, wish: &Wish) -> Verdict {
        self.file(wish.signer, &wish.request().0)
    }

    /// Sends these bytes as `spec.request`, and waits for the outcome.
    pub fn file(&self, signer: &str, request: &str) -> Verdict {
        match self.send(signer, request) {
            Ok(name) => self.await_verdict(&name),
            Err(refused) => refused,
        }
    }

    /// Sends these bytes as `spec.request`. Returns the name of the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the API server rejects the request.
    pub fn send(&self, signer: &str, request: &str) -> Result<String, Verdict> {
        let number = FILED.fetch_add(1, Ordering::Relaxed);
        let name = format!("kubelet-authenticator-attack-{number}");
        let body = json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": base64(request.as_bytes()),
                "signerName": signer,
                "usages": ["digital signature", "client auth"],
            },
        });
        let url = format!("{}/{CSRS}", self.server);
        let answer = self
            .client
            .post(url)
            .bearer_auth(&self.token)
            .body(body.to_string());
        let answer = answer
            .header("content-type", "application/json")
            .send()
            .unwrap();
        let status = answer.status();
        let body: Value = serde_json::from_str(&answer.text().unwrap()).unwrap();
        if !status.is_success() {
            let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
            return Err(Verdict::Refused {
                kind: format!("HTTP {}", status.as_u16()),
                reason: text("reason"),
                message: text("message"),
            });
        }
        Ok(name)
    }

    /// The bytes of another client's request. Anyone with a bootstrap token can read them.
    pub fn read_request(&self, name: &str) -> String {
        let csr = self.get(&format!("{CSRS}/{name}"));
        let request = csr["spec"]["request"]
            .as_str()
            .expect("the request is readable");
        String::from_utf8(unbase64(request)).unwrap()
    }

    /// An annotation on another client's request. Anyone with a bootstrap token can also read it.
    pub fn read_annotation(&self, name: &str, annotation: &str) -> Option<String> {
        let csr = self.get(&format!("{CSRS}/{name}"));
        let value = csr["metadata"]["annotations"][annotation].as_str();
        value.map(str::to_owned)
    }

    /// Waits for the outcome of this request.
    pub fn await_verdict(&self, name: &str) -> Verdict {
        let start = Instant::now();
        let verdict = poll(PATIENCE, || {
            let csr = self.get(&format!("{CSRS}/{name}"));
            if let Some(certificate) = csr["status"]["certificate"].as_str() {
                let certificate = String::from_utf8(unbase64(certificate)).unwrap();
                return Some(Verdict::Issued(certificate));
            }
            let conditions = csr["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let refusal = conditions
                .iter()
                .find(|condition| condition["type"] != "Approved");
            if let Some(refusal) = refusal {
                let text = |field: &str| refusal[field].as_str().unwrap_or_default().to_owned();
                return Some(Verdict::Refused {
                    kind: text("type"),
                    reason: text("reason"),
                    message: text("message"),
                });
            }
            let is_undecided = conditions.is_empty() && start.elapsed() > self.undecided;
            is_undecided.then_some(Verdict::Undecided)
        });
        verdict.unwrap_or(Verdict::Undecided)
    }

    fn get(&self, path: &str) -> Value {
        let url = format!("{}/{path}", self.server);
        let answer = self
            .client
            .get(url)
            .bearer_auth(&self.token)
            .send()
            .unwrap();
        serde_json::from_str(&answer.text().unwrap()).unwrap()
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::prelude::*;
    BASE64_STANDARD.encode(bytes)
}

fn unbase64(text: &str) -> Vec<u8> {
    use base64::prelude::*;
    BASE64_STANDARD.decode(text).unwrap()
}
