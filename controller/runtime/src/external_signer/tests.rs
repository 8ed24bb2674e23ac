//! Tests of signer programs that do not behave correctly, and of the effect on a request.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use kubelet_attestation::errors::error_chain;
use node_attestation_core::decide::{Context, Decision, decide};
use node_attestation_core::refusal::Deferral;
use node_attestation_core::signer::Signer;
use node_attestation_core::testing::{cluster, now, valid};
use node_attestation_signer_api::external_signer_server::{
    ExternalSigner as Served, ExternalSignerServer,
};
use node_attestation_signer_api::{SignRequest, SignResponse, StatusRequest, StatusResponse};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, SigningKey as _};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;
use crate::metrics::Format;

/// The behavior of a program when it receives a request for a signature.
#[derive(Debug, Clone, Copy)]
enum Does {
    Sign,
    Hang,
    /// Hangs for the cluster with this name.
    HangFor(&'static str),
    /// Hangs for the clusters in this namespace.
    HangForAll(&'static str),
    AnswerTooMuch,
    Fail(Code, &'static str),
}

#[derive(Debug, Clone)]
struct Program {
    key: Arc<KeyPair>,
    does: Does,
    version: &'static str,
    health: &'static str,
    problems: &'static [&'static str],
    asked: Arc<Mutex<Vec<SignRequest>>>,
}

#[tonic::async_trait]
impl Served for Program {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new(StatusResponse {
            version: self.version.to_owned(),
            health: self.health.to_owned(),
            problems: self.problems.iter().map(|&text| text.to_owned()).collect(),
            problem_count: u32::try_from(self.problems.len()).unwrap(),
        }))
    }

    async fn sign(&self, request: Request<SignRequest>) -> Result<Response<SignResponse>, Status> {
        let request = request.into_inner();
        self.asked.lock().push(request.clone());
        let signature = match self.does {
            Does::Hang => std::future::pending().await,
            Does::HangFor(name) if request.cluster_name == name => std::future::pending().await,
            Does::HangForAll(name) if request.cluster_namespace == name => {
                std::future::pending().await
            }
            Does::Sign | Does::HangFor(_) | Does::HangForAll(_) => {
                self.key.sign(&request.tbs_certificate).unwrap()
            }
            Does::AnswerTooMuch => vec![0; 8 * 1024],
            Does::Fail(code, message) => return Err(Status::new(code, message)),
        };
        Ok(Response::new(SignResponse { signature }))
    }
}

/// A CA whose key is in another program.
struct Bed {
    folder: TempDir,
    certificate: String,
    program: Program,
    metrics: Metrics,
    signer: ExternalSigner,
}

impl Bed {
    fn new(does: Does) -> Self {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        let socket = folder.path().join("signer.sock");
        let endpoint = format!("unix://{}", socket.display()).parse().unwrap();
        let metrics = Metrics::new("1");
        Self {
            folder,
            certificate,
            program: Program {
                key: Arc::new(key),
                does,
                version: "v1alpha1",
                health: "ok",
                problems: &[],
                asked: Arc::default(),
            },
            signer: ExternalSigner::new(endpoint, metrics.clone()),
            metrics,
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("signer.sock")
    }

    /// Starts the program. It replaces the previous program, if any.
    fn serve(&self) -> JoinHandle<()> {
        drop(std::fs::remove_file(self.socket()));
        let listener = UnixListener::bind(self.socket()).unwrap();
        let service = ExternalSignerServer::new(self.program.clone());
        let server = Server::builder().add_service(service);
        tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            server.serve_with_incoming(incoming).await.unwrap();
        })
    }

    fn cluster(&self, name: &str) -> Context {
        self.cluster_of("tenant-a", name)
    }

    fn cluster_of(&self, namespace: &str, name: &str) -> Context {
        let key = self.signer.key(namespace, name);
        let signer = Signer::with_external_key(self.certificate.as_bytes(), key).unwrap();
        Context {
            signer: Arc::new(signer),
            ..cluster()
        }
    }
}

async fn decided(context: &Context) -> Decision {
    decide(&valid(), context, now(), || Duration::ZERO)
        .await
        .decision
}

/// The message for a request that waits because the program is unavailable.
async fn unavailable(context: &Context) -> String {
    let decision = decided(context).await;
    let Decision::Retry(deferral @ Deferral::SignerUnavailable(_)) = decision else {
        panic!("{decision:?}")
    };
    let deferral: &dyn Error = &deferral;
    error_chain(deferral)
}

/// Advances the time until the last status is no longer valid.
async fn later() {
    time::pause();
    time::advance(Duration::from_secs(6)).await;
    time::resume();
}

fn is_issued(decision: &Decision) -> bool {
    matches!(decision, Decision::Issue(_))
}

#[tokio::test]
async fn the_external_signer_receives_the_ca_and_the_cluster_and_signs() {
    let bed = Bed::new(Does::Sign);
    let _server = bed.serve();

    let decision = decided(&bed.cluster("prod-1")).await;

    assert!(is_issued(&decision), "{decision:?}");
    let asked = bed.program.asked.lock();
    let [request] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    let der = pem::parse(&bed.certificate).unwrap().into_contents();
    assert_eq!(request.ca_certificate_sha256, Sha256::digest(der).to_vec());
    assert_eq!(request.cluster_namespace, "tenant-a");
    assert_eq!(request.cluster_name, "prod-1");
    assert_eq!(
        request.algorithm(),
        api::SignatureAlgorithm::EcdsaP256Sha256
    );
}

#[tokio::test]
async fn an_unavailable_external_signer_is_used_as_soon_as_it_returns() {
    let bed = Bed::new(Does::Sign);
    let cluster = bed.cluster("prod-1");

    let error = unavailable(&cluster).await;

    assert!(
        error.contains("Status of the external signer at"),
        "{error}"
    );
    assert_eq!(cluster.ledger.records().all().await.unwrap().len(), 0);
    let _server = bed.serve();
    later().await;
    assert!(is_issued(&decided(&cluster).await));
}

#[tokio::test]
async fn a_problem_of_one_ca_is_a_metric_and_stops_no_other_ca() {
    let mut bed = Bed::new(Does::Sign);
    let gauge = |bed: &Bed| {
        let text = bed.metrics.text(Format::OpenMetrics);
        let mut lines = text.lines();
        lines.find_map(|line| {
            Some(
                line.strip_prefix("node_attestation_signer_problems ")?
                    .to_owned(),
            )
        })
    };
    assert_eq!(gauge(&bed), None);
    bed.program.problems = &["2: it has no PEM certificate", "3: it is not UTF-8 text"];
    let _server = bed.serve();

    assert!(is_issued(&decided(&bed.cluster("prod-1")).await));

    assert_eq!(gauge(&bed), Some("2".to_owned()));
}

#[tokio::test]
async fn an_external_signer_that_hangs_times_out() {
    let bed = Bed::new(Does::Hang);
    let _server = bed.serve();
    let cluster = bed.cluster("prod-1");
    bed.signer.key("tenant-a", "prod-1").check().await.unwrap();
    time::pause();

    let error = unavailable(&cluster).await;

    assert!(error.contains("no response within 10 s"), "{error}");
    let text = bed.metrics.text(Format::OpenMetrics);
    let line =
        r#"node_attestation_signer_requests_total{operation="Sign",code="DEADLINE_EXCEEDED"} 1"#;
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn the_slow_key_of_one_cluster_does_not_block_another_cluster() {
    let bed = Bed::new(Does::HangFor("slow"));
    let _server = bed.serve();
    let (slow, quick) = (bed.cluster("slow"), bed.cluster("quick"));
    let many = (0..client::CALLS.all * 2).map(|_| {
        let slow = slow.clone();
        tokio::spawn(async move { decided(&slow).await })
    });
    let many: Vec<_> = many.collect();
    while bed.program.asked.lock().len() < client::CALLS.of_cluster {
        tokio::task::yield_now().await;
    }

    let decision = decided(&quick).await;

    assert!(is_issued(&decision), "{decision:?}");
    assert_eq!(bed.program.asked.lock().len(), client::CALLS.of_cluster + 1);
    many.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn the_hanging_keys_of_one_namespace_do_not_block_another() {
    let bed = Bed::new(Does::HangForAll("tenant-a"));
    let _server = bed.serve();
    let quick = bed.cluster_of("tenant-b", "prod-1");
    let names = (0..20).map(|number| number.to_string());
    let hung: Vec<_> = names.map(|name| bed.cluster(&name)).collect();
    // A reconciliation of the cluster creates the cluster's key object again.
    let again: Vec<_> = (0..20).map(|_| bed.cluster("0")).collect();
    let many = hung.iter().chain(&again).flat_map(|hung| vec![hung; 8]);
    let many: Vec<_> = many
        .cloned()
        .map(|hung| tokio::spawn(async move { decided(&hung).await }))
        .collect();
    while bed.program.asked.lock().len() < client::CALLS.all / 2 {
        tokio::task::yield_now().await;
    }

    for more in 1..=10 {
        let decision = decided(&quick).await;

        assert!(is_issued(&decision), "{decision:?}");
        let expected = client::CALLS.all / 2 + more;
        assert_eq!(bed.program.asked.lock().len(), expected);
    }
    many.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn a_signature_with_another_key_is_refused() {
    let mut bed = Bed::new(Does::Sign);
    bed.program.key = Arc::new(KeyPair::generate().unwrap());
    let _server = bed.serve();

    let decision = decided(&bed.cluster("prod-1")).await;

    let expected = matches!(decision, Decision::Retry(Deferral::SignatureInvalid));
    assert!(expected, "{decision:?}");
}

#[tokio::test]
async fn an_oversized_signer_response_is_not_read() {
    let bed = Bed::new(Does::AnswerTooMuch);
    let _server = bed.serve();

    let error = unavailable(&bed.cluster("prod-1")).await;

    assert!(error.contains("OutOfRange"), "{error}");
}

#[tokio::test]
async fn a_refusal_by_the_signer_is_a_deferral_with_a_sanitized_message() {
    const WORDS: &str = "no\n\u{1b}[31mnever";
    let bed = Bed::new(Does::Fail(Code::PermissionDenied, WORDS));
    let _server = bed.serve();

    let decision = decided(&bed.cluster("prod-1")).await;

    let Decision::Retry(deferral @ Deferral::SignerRefused(_)) = decision else {
        panic!("{decision:?}")
    };
    let deferral: &dyn Error = &deferral;
    let error = error_chain(deferral);
    assert!(error.contains("no  [31mnever"), "{error}");
}

#[tokio::test]
async fn every_other_grpc_code_is_reported_as_an_outage() {
    for code in [
        Code::Unknown,
        Code::InvalidArgument,
        Code::NotFound,
        Code::FailedPrecondition,
        Code::Unimplemented,
        Code::Internal,
        Code::Unauthenticated,
    ] {
        let bed = Bed::new(Does::Fail(code, "why"));
        let _server = bed.serve();

        let error = unavailable(&bed.cluster("prod-1")).await;

        assert!(error.contains(&format!("{code:?}: why")), "{error}");
    }
}

#[tokio::test]
async fn no_node_name_is_claimed_with_an_unhealthy_or_unsupported_signer() {
    for (version, health, expected) in [
        ("v2", "ok", r#"its version is "v2" instead of "v1alpha1""#),
        ("v1alpha1", "the token is gone", "the token is gone"),
    ] {
        let mut bed = Bed::new(Does::Sign);
        (bed.program.version, bed.program.health) = (version, health);
        let _server = bed.serve();
        let cluster = bed.cluster("prod-1");

        let error = unavailable(&cluster).await;

        assert!(error.contains(expected), "{error}");
        assert_eq!(cluster.ledger.records().all().await.unwrap().len(), 0);
    }
}
