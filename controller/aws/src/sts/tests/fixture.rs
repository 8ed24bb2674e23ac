//! A service, a verifier that calls it, and instances.

use std::error::Error as _;
pub(super) use std::time::{Duration, SystemTime};

use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
pub(super) use kubelet_authenticator_test_support::sts::Principal;
use kubelet_authenticator_test_support::sts::{Credentials, Signing, Sts as Service, sign};
pub(super) use node_attestation_core::refusal::Denial;
use node_attestation_core::refusal::{Deferral, Failure};

pub(super) use kubelet_attestation::evidence::aws::ProofFields;

pub(super) use super::super::{
    AwsDenial, EndpointHost, InvalidRole, KeyDigest, ProfileRole, Proof, Refusal, Sts, StsSettings,
};
use super::super::{KeyBinding, VerifiedDocument};
pub(super) use crate::proxy::Proxy;

pub(super) const ACCOUNT: &str = "123456789012";
/// The cluster to which the requests belong.
pub(super) const CLUSTER: &str = "one";

pub(super) const REGION: &str = "eu-west-1";
pub(super) const INSTANCE: &str = "i-0123456789abcdef0";
pub(super) const OTHER_INSTANCE: &str = "i-0fedcba9876543210";

/// 2026-01-01T12:00:00Z.
pub(super) const NOON: &str = "20260101T120000Z";

/// The time of every clock that the test does not set.
pub(super) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(490_908)
}

pub(super) fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

/// A service, and a verifier that calls it for [`REGION`].
pub(super) struct Bed {
    pub(super) service: Service,
    pub(super) verifier: Sts,
}

impl Bed {
    pub(super) fn start() -> Self {
        Self::with(|_| {})
    }

    /// A test bed with different settings.
    pub(super) fn with(change: impl FnOnce(&mut StsSettings)) -> Self {
        let service = Service::start();
        service.stop_clock(now());
        let mut settings = settings(&service);
        change(&mut settings);
        let verifier = Sts::new(settings).unwrap();
        Self { service, verifier }
    }

    /// An instance that has the credentials of its instance identity role.
    pub(super) fn instance(&self) -> Node {
        self.node(Principal::instance(ACCOUNT, INSTANCE))
    }

    /// [`INSTANCE`], according to its document, with the credentials of this principal.
    pub(super) fn node(&self, principal: Principal) -> Node {
        Node {
            host: self.service.host(),
            credentials: self.service.credentials(principal),
            document: document(INSTANCE),
            spki: b"the key of the request".to_vec(),
            date: NOON.to_owned(),
            region: REGION.to_owned(),
        }
    }

    /// Makes the verifier decide on evidence that `node` has just signed.
    pub(super) async fn verify(&self, node: &Node) -> Result<(), Refusal> {
        self.show(&node.proof(), node).await
    }

    /// Verifies the evidence in a cluster other than [`CLUSTER`].
    pub(super) async fn verify_in(&self, cluster: &str, node: &Node) -> Result<(), Refusal> {
        self.verify_of("tenant-a", cluster, node).await
    }

    /// Verifies the evidence in another namespace.
    pub(super) async fn verify_of(
        &self,
        namespace: &str,
        cluster: &str,
        node: &Node,
    ) -> Result<(), Refusal> {
        let (document, binding, proof) = (&node.document, &node.binding(), node.proof());
        self.verifier
            .of_cluster(namespace, cluster)
            .verify(&proof, document, binding, &node.spki, now(), now())
            .await
    }

    /// Makes the verifier decide on this proof in a request from `node`.
    pub(super) async fn show(&self, proof: &Proof, node: &Node) -> Result<(), Refusal> {
        self.show_at(proof, node, now(), now()).await
    }

    pub(super) async fn show_at(
        &self,
        proof: &Proof,
        node: &Node,
        asked: SystemTime,
        now: SystemTime,
    ) -> Result<(), Refusal> {
        let (document, binding) = (&node.document, &node.binding());
        self.verifier
            .of_cluster("tenant-a", CLUSTER)
            .verify(proof, document, binding, &node.spki, asked, now)
            .await
    }

    /// The outcomes of all calls.
    pub(super) fn outcomes(&self) -> Vec<String> {
        let calls = self.service.calls();
        calls.into_iter().map(|call| call.outcome).collect()
    }
}

pub(super) fn settings(service: &Service) -> StsSettings {
    StsSettings {
        endpoints: [(REGION.to_owned(), service.host().parse().unwrap())].into(),
        authorities: Some(service.ca_pem().as_bytes().to_vec()),
        ..StsSettings::default()
    }
}

pub(super) fn document(instance: &str) -> VerifiedDocument {
    VerifiedDocument {
        account: ACCOUNT.to_owned(),
        region: REGION.to_owned(),
        availability_zone: format!("{REGION}a"),
        instance: instance.to_owned(),
        pending_time: now() - minutes(2),
        digest: [7; 32],
    }
}

/// A node's signature, and the request that contains it.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) credentials: Credentials,
    pub(super) document: VerifiedDocument,
    pub(super) spki: Vec<u8>,
    pub(super) date: String,
    pub(super) region: String,
}

impl Node {
    pub(super) fn binding(&self) -> KeyBinding {
        let id = format!("aws:///{REGION}a/{}", self.document.instance);
        KeyBinding::new(
            &Provider::AWS,
            &Audience::parse("prod").unwrap(),
            &ProviderId::parse(&id).unwrap(),
            &NodeName::parse("ip-10-0-0-7.eu-west-1.compute.internal").unwrap(),
            &self.spki,
            &[&self.document.digest],
        )
    }

    /// The headers that must be signed, as the wire format defines them.
    pub(super) fn headers(&self) -> Vec<(String, String)> {
        [
            ("accept", "application/json"),
            (
                "content-type",
                "application/x-www-form-urlencoded; charset=utf-8",
            ),
            ("host", &self.host),
            ("x-amz-date", &self.date),
            ("x-amz-security-token", &self.credentials.session_token),
            ("x-kubelet-attestation", &self.binding().to_hex()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    pub(super) fn proof(&self) -> Proof {
        self.proof_over(&self.headers())
    }

    /// A proof whose signature covers these headers.
    pub(super) fn proof_over(&self, headers: &[(String, String)]) -> Proof {
        let body = b"Action=GetCallerIdentity&Version=2011-06-15";
        self.proof_of("POST", "/", "", headers, body)
    }

    /// A proof whose signature covers this request.
    pub(super) fn proof_of(
        &self,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(String, String)],
        body: &[u8],
    ) -> Proof {
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let signing = Signing {
            method,
            path,
            query,
            headers,
            signed_headers: &names,
            body,
            time: &self.date,
            region: &self.region,
            service: "sts",
        };
        let signature = sign(&signing, &self.credentials.secret_access_key);
        Proof::new(ProofFields {
            region: self.region.clone(),
            access_key_id: self.credentials.access_key_id.clone(),
            session_token: self.credentials.session_token.clone(),
            amz_date: self.date.clone(),
            signature,
        })
        .unwrap()
    }
}

pub(super) fn denial(decided: Result<(), Refusal>) -> AwsDenial {
    match decided {
        Err(Refusal::Deny(Denial::Evidence(denial))) => {
            denial.downcast_ref::<AwsDenial>().unwrap().clone()
        }
        other => panic!("{other:?}"),
    }
}

pub(super) fn mismatch() -> AwsDenial {
    AwsDenial::CallerRefused("SignatureDoesNotMatch".into())
}

/// Asserts that the request waits. Returns the reasons with their causes.
pub(super) fn outage(decided: Result<(), Refusal>) -> String {
    match decided {
        Err(Refusal::Retry(deferral @ Deferral::VerifierUnavailable { .. })) => {
            let mut words = deferral.to_string();
            let mut cause = deferral.source();
            while let Some(error) = cause {
                words = format!("{words}: {error}");
                cause = error.source();
            }
            words
        }
        other => panic!("{other:?}"),
    }
}

pub(super) fn assert_expired(decided: &Result<(), Refusal>) {
    assert!(
        matches!(decided, Err(Refusal::Fail(Failure::EvidenceExpired))),
        "{decided:?}"
    );
}
