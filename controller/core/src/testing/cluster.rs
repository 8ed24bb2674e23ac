//! A cluster with two machines, `m1` and `m2`, which have their own tokens, and a machine that has no token.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::executor::block_on;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;

use crate::crd::ExemptNodes;
use crate::decide::{Context, Decision, decide};
use crate::identifiers::TokenId;
use crate::inventory::{Inventory, Machine, StaticInventory};
use crate::ledger::{LedgerPolicy, MemoryRecords, RecordLedger, Records};
use crate::nodes::{Node, Nodes};
use crate::refusal::{Denial, Refusal};
use crate::request::IssuedCertificate;
use crate::scope::Enforcement;
use crate::serving::ServingPolicy;
use crate::signer::Signer;
use crate::testing::ledger::Uids;
use crate::testing::nodes::MemoryNodes;
use crate::verifier::{
    Appraisal, Assurance, AttestedIdentity, Identity, InsecureVerifier, Verifier, Verifiers,
};

/// The maximum validity of certificates in the test clusters.
pub const WEEK: Duration = Duration::from_hours(7 * 24);

/// The current time in the tests: a day in 2027.
pub fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_hours(500_000)
}

/// A verifier that accepts the specified machine, or every claim.
#[derive(Debug)]
pub struct AcceptAllVerifier {
    pub sees: Option<ProviderId>,
    /// The name of the Node, if the platform reports it.
    pub node_name: Option<NodeName>,
    pub versions: Vec<EvidenceVersion>,
}

#[async_trait::async_trait]
impl Verifier for AcceptAllVerifier {
    fn provider(&self) -> &Provider {
        &Provider::NULL
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &self.versions
    }

    async fn verify(
        &self,
        appraisal: Appraisal<'_>,
        _now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        let provider_id = self.sees.as_ref().unwrap_or(appraisal.provider_id).clone();
        let identity = AttestedIdentity::vouched(Identity {
            node_name: self.node_name.clone(),
            ..Identity::of(provider_id)
        });
        Ok(Assurance::Attested(identity))
    }
}

pub fn machine(name: &str, node: &str, token: Option<&str>) -> Machine {
    let mut machine = Machine::new(name);
    machine.provider_id = Some(ProviderId::parse(&format!("metal:///rack/{name}")).unwrap());
    machine.node_name = Some(NodeName::parse(node).unwrap());
    machine.token_id = token.map(|token| TokenId::parse(token).unwrap());
    machine
}

pub fn cluster() -> Context {
    Parts::default().cluster()
}

/// The cluster that contains these Nodes.
pub fn cluster_of_nodes(nodes: Arc<dyn Nodes>) -> Context {
    Parts {
        nodes,
        ..Parts::default()
    }
    .cluster()
}

pub fn cluster_seen_by(witness: AcceptAllVerifier) -> Context {
    Parts {
        witness,
        ..Parts::default()
    }
    .cluster()
}

/// A Node whose Lease was renewed at this time.
pub fn node(uid: &str, ready: bool, renewed: SystemTime) -> Node {
    Node {
        uid: uid.to_owned(),
        ready,
        lease_renewed: Some(renewed),
        provider_id: None,
        created: None,
    }
}

/// The parts of a cluster.
pub struct Parts {
    pub witness: AcceptAllVerifier,
    pub inventory: Arc<dyn Inventory>,
    pub nodes: Arc<dyn Nodes>,
    pub records: Arc<dyn Records>,
}

impl Default for Parts {
    fn default() -> Self {
        let machines = vec![
            machine("m1", "n1", Some("abcdef")),
            machine("m2", "n2", Some("ghijkl")),
            machine("m3", "n3", None),
        ];
        Self {
            witness: AcceptAllVerifier {
                sees: None,
                node_name: None,
                versions: vec![EvidenceVersion::V1],
            },
            inventory: Arc::new(StaticInventory::new(machines).unwrap()),
            nodes: Arc::new(MemoryNodes::default()),
            records: Arc::new(MemoryRecords::default()),
        }
    }
}

impl Parts {
    pub fn cluster(self) -> Context {
        let Self {
            witness,
            inventory,
            nodes,
            records,
        } = self;
        let verifiers: [Arc<dyn Verifier>; 2] = [Arc::new(witness), Arc::new(InsecureVerifier)];
        let uid = std::array::from_fn(|index| u8::try_from(index).unwrap());
        let policy = LedgerPolicy::new(WEEK);
        let enforcement = Enforcement::default();
        let machines = inventory.clone();
        let ledger = RecordLedger::new(records, machines, nodes, policy, enforcement.clone())
            .with_uids(&Uids::from(uid));
        Context {
            verifiers: Verifiers::from_iter(verifiers),
            audiences: Vec::new(),
            inventory,
            ledger: Arc::new(ledger),
            signer: CA.clone(),
            longest_lifetime: WEEK,
            exempt_nodes: ExemptNodes::default(),
            enforcement,
            serving: ServingPolicy::default(),
        }
    }
}

static CA: LazyLock<Arc<Signer>> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let signer = Signer::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
    Arc::new(signer.unwrap())
});

pub fn decided(request: &CertificateSigningRequest, context: &Context) -> Decision {
    decided_at(request, context, now())
}

pub fn decided_at(
    request: &CertificateSigningRequest,
    context: &Context,
    now: SystemTime,
) -> Decision {
    block_on(decide(request, context, now, || Duration::ZERO)).decision
}

/// The certificate that this request gets at `now`.
#[track_caller]
pub fn issued_at(
    request: &CertificateSigningRequest,
    context: &Context,
    now: SystemTime,
) -> IssuedCertificate {
    let decision = decided_at(request, context, now);
    let Decision::Issue(certificate) = decision else {
        panic!("not issued: {decision:?}")
    };
    certificate
}

/// The cluster's denial of this request.
#[track_caller]
pub fn denied(request: &CertificateSigningRequest) -> Denial {
    let decision = decided(request, &cluster());
    let Decision::Deny(denial) = decision else {
        panic!("not denied: {decision:?}")
    };
    denial
}
