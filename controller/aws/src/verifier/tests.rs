//! Tests of the order of the checks, and of the calls that each check makes.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kubelet_attestation::evidence::Header;
use kubelet_attestation::evidence::aws::{Proof, ProofFields};
use kubelet_attestation::names::{Audience, NodeName};
use kubelet_authenticator_test_support::instance_identity::{Document, TestSigner};
use kubelet_authenticator_test_support::sts::{Principal, Signing, Sts as Service, sign};
use node_attestation_core::crd::AwsSettings;
use node_attestation_core::crd::conditions::ConditionStatus;
use node_attestation_core::inventory::Machine;
use node_attestation_core::refusal::Deferral;

mod foresight;
mod tenant;

use super::*;
use crate::credentials::CredentialsSource;
use crate::ec2::{Attachment, InstanceFacts, Limits, OutageKind, RootDevice};
use crate::sts::StsSettings;
use crate::testing::{ACCOUNT, FakeEc2, Fares, INSTANCE, PerAccount, REGION, facts};

const OTHER: &str = "i-0fedcba9876543210";

static SIGNER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new([1; 8]));
static STRANGER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new([1; 8]));

/// 2026-01-01T12:00:00Z. The document is 12 hours older than the request.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(490_908)
}

fn launch() -> SystemTime {
    now() - Duration::from_hours(12)
}

/// A request from an instance, and the state of the services with which it is verified.
struct Case {
    sts: Service,
    ec2: FakeEc2,
    policy: AwsPolicy,
    audience: &'static str,
    signer: &'static TestSigner,
    document: Document,
    claimed: String,
    principal: Principal,
    evidence: Option<Vec<u8>>,
}

impl Case {
    fn valid() -> Self {
        let sts = Service::start();
        sts.stop_clock(now());
        Self {
            sts,
            ec2: FakeEc2::with([instance()]),
            policy: AwsPolicy::new(&AwsSettings::default(), Some("prod".to_owned())),
            audience: "prod",
            signer: &SIGNER,
            document: Document::new(ACCOUNT, REGION, "eu-west-1a", INSTANCE),
            claimed: format!("aws:///eu-west-1a/{INSTANCE}"),
            principal: Principal::instance(ACCOUNT, INSTANCE),
            evidence: None,
        }
    }

    fn verifier(&self) -> AwsVerifier {
        let clients = self.clients(Arc::new(PerAccount));
        AwsVerifier::new(Arc::new(clients), self.policy.clone(), "")
    }

    fn clients(&self, source: Arc<dyn CredentialsSource>) -> AwsClients {
        let signers = SIGNER.signers_file(&[REGION]);
        let sts = StsSettings {
            endpoints: [(REGION.to_owned(), self.sts.host().parse().unwrap())].into(),
            authorities: Some(self.sts.ca_pem().as_bytes().to_vec()),
            ..StsSettings::default()
        };
        let ec2 = Arc::new(self.ec2.clone());
        AwsClients::new(
            Signers::embedded().with_file(&signers).unwrap(),
            Sts::new(sts).unwrap(),
            Instances::with(source, ec2, Limits::default()),
        )
    }

    async fn decide(&self) -> Result<Assurance, Refusal> {
        self.decide_by(&self.verifier()).await
    }

    async fn decide_by(&self, verifier: &AwsVerifier) -> Result<Assurance, Refusal> {
        let provider_id = ProviderId::parse(&self.claimed).unwrap();
        let node_name = NodeName::parse("ip-10-0-0-1.eu-west-1.compute.internal").unwrap();
        let spki = b"the key of the request";
        let document = self.document.to_json();
        let digest: [u8; 32] = sha2::Digest::finalize(
            <sha2::Sha256 as sha2::Digest>::new_with_prefix(document.as_bytes()),
        )
        .into();
        let audience = Audience::parse(self.audience).unwrap();
        let binding = KeyBinding::new(
            &Provider::AWS,
            &audience,
            &provider_id,
            &node_name,
            spki,
            &[&digest],
        );
        let evidence = self.evidence.clone().unwrap_or_else(|| {
            let evidence = AwsEvidence {
                header: Header {
                    version: EvidenceVersion::V1,
                    audience,
                },
                rsa2048: self.signer.sign(&self.document),
                sts: self.proof(&binding),
            };
            evidence.to_json()
        });
        let appraisal = Appraisal {
            evidence: Some(&evidence),
            audiences: &[Audience::parse("prod").unwrap()],
            provider_id: &provider_id,
            node_name: &node_name,
            spki,
            machine: &Machine::new("m1"),
            asked: now(),
        };
        verifier.verify(appraisal, now()).await
    }

    /// The request, as signed by the node.
    fn proof(&self, binding: &KeyBinding) -> Proof {
        let credentials = self.sts.credentials(self.principal.clone());
        let (date, host) = ("20260101T120000Z", self.sts.host());
        let headers = [
            ("accept", "application/json"),
            (
                "content-type",
                "application/x-www-form-urlencoded; charset=utf-8",
            ),
            ("host", &host),
            ("x-amz-date", date),
            ("x-amz-security-token", &credentials.session_token),
            ("x-kubelet-attestation", &binding.to_hex()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let signing = Signing {
            method: "POST",
            path: "/",
            query: "",
            headers: &headers,
            signed_headers: &names,
            body: b"Action=GetCallerIdentity&Version=2011-06-15",
            time: date,
            region: REGION,
            service: "sts",
        };
        let signature = sign(&signing, &credentials.secret_access_key);
        let (id, token) = (&credentials.access_key_id, &credentials.session_token);
        Proof::new(ProofFields {
            region: REGION.to_owned(),
            access_key_id: id.clone(),
            session_token: token.clone(),
            amz_date: date.to_owned(),
            signature,
        })
        .unwrap()
    }

    /// The numbers of STS calls and EC2 calls.
    fn asked(&self) -> (usize, usize) {
        (self.sts.calls().len(), self.ec2.calls().len())
    }
}

fn instance() -> InstanceFacts {
    let attached = Attachment {
        time: Some(launch()),
    };
    InstanceFacts {
        launched: Some(launch()),
        first_interface: Some(attached),
        root: RootDevice::Volume(Some(attached)),
        ..facts()
    }
}

#[track_caller]
fn reason(decided: Result<Assurance, Refusal>) -> &'static str {
    match decided {
        Err(Refusal::Deny(denial)) => denial.reason(),
        other => panic!("not denied: {other:?}"),
    }
}

/// The faults, in the order of the checks.
#[derive(Debug, Clone, Copy)]
enum Wrong {
    Evidence,
    Audience,
    Signer,
    Account,
    Region,
    Machine,
    Caller,
    State,
}

const ORDER: [(Wrong, &str, (usize, usize)); 8] = [
    (Wrong::Evidence, "EvidenceMalformed", (0, 0)),
    (Wrong::Audience, "AudienceMismatch", (0, 0)),
    (Wrong::Signer, "DocumentSignatureInvalid", (0, 0)),
    (Wrong::Account, "AccountNotAllowed", (0, 0)),
    (Wrong::Region, "RegionNotAllowed", (0, 0)),
    (Wrong::Machine, "AnotherMachine", (0, 0)),
    (Wrong::Caller, "CallerIsAnotherInstance", (1, 0)),
    (Wrong::State, "InstanceNotRunning", (1, 1)),
];

impl Wrong {
    fn apply(self, case: &mut Case) {
        match self {
            Self::Evidence => case.evidence = Some(br#"{"version":"v1"}"#.to_vec()),
            Self::Audience => case.audience = "test",
            Self::Signer => case.signer = &STRANGER,
            Self::Account => case.policy.settings.accounts = ["999999999999".to_owned()].into(),
            Self::Region => case.policy.settings.regions = ["us-east-1".to_owned()].into(),
            Self::Machine => case.claimed = format!("aws:///eu-west-1a/{OTHER}"),
            Self::Caller => case.principal = Principal::instance(ACCOUNT, OTHER),
            Self::State => case.ec2.knows([InstanceFacts {
                state: "terminated".to_owned(),
                ..instance()
            }]),
        }
    }
}

#[tokio::test]
async fn a_valid_request_is_attested_with_one_sts_and_one_ec2_call() {
    let case = Case::valid();

    let assurance = case.decide().await.unwrap();

    let Assurance::Attested(attested) = &assurance else {
        panic!("{assurance:?}");
    };
    let identity = attested.identity();
    assert_eq!(identity.provider_id.as_str(), case.claimed);
    let name = identity.node_name.as_ref().unwrap();
    assert_eq!(name.as_str(), "ip-10-0-0-1.eu-west-1.compute.internal");
    assert_eq!(identity.instance.as_deref(), Some(INSTANCE));
    assert_eq!(attested.denied_unless_known(), None);
    assert_eq!(case.asked(), (1, 1));
}

#[tokio::test]
async fn each_contradiction_is_denied_without_unneeded_calls() {
    for (wrong, expected, asked) in ORDER {
        let mut case = Case::valid();
        wrong.apply(&mut case);

        assert_eq!(reason(case.decide().await), expected, "{wrong:?}");
        assert_eq!(case.asked(), asked, "{wrong:?}");
    }
}

#[tokio::test]
async fn the_cheapest_failing_check_decides() {
    for (first, (wrong, expected, asked)) in ORDER.into_iter().enumerate() {
        let mut case = Case::valid();
        for (also, ..) in ORDER.iter().skip(first) {
            also.apply(&mut case);
        }

        assert_eq!(reason(case.decide().await), expected, "{wrong:?}");
        assert_eq!(case.asked(), asked, "{wrong:?}");
    }
}

#[tokio::test]
async fn a_request_without_evidence_is_denied() {
    let case = Case::valid();
    let verifier = case.verifier();
    let provider_id = ProviderId::parse(&case.claimed).unwrap();
    let appraisal = Appraisal {
        evidence: None,
        audiences: &[],
        provider_id: &provider_id,
        node_name: &NodeName::parse("n1").unwrap(),
        spki: b"key",
        machine: &Machine::new("m1"),
        asked: now(),
    };

    let decided = verifier.verify(appraisal, now()).await;

    assert_eq!(reason(decided), "EvidenceMissing");
}

#[tokio::test]
async fn an_instance_unknown_to_ec2_is_denied() {
    let case = Case::valid();
    case.ec2.knows([]);

    assert_eq!(reason(case.decide().await), "InstanceNotFound");
    assert_eq!(case.asked(), (1, 1));
}

#[tokio::test]
async fn an_ec2_outage_keeps_the_request_pending_and_sets_the_condition() {
    let case = Case::valid();
    case.ec2.fares(
        REGION,
        Fares::Fails(OutageKind::Credentials("AuthFailure".to_owned())),
    );
    let verifier = case.verifier();

    let decided = case.decide_by(&verifier).await;

    assert!(
        matches!(
            decided,
            Err(Refusal::Retry(Deferral::VerifierUnavailable { .. }))
        ),
        "{decided:?}"
    );
    let reports = verifier.reports();
    let ready = reports.iter().find(|it| it.of == "AWSCredentialsReady");
    assert_eq!(ready.unwrap().holds, ConditionStatus::False);
}

#[tokio::test]
async fn a_moved_root_volume_blocks_only_a_first_claim() {
    let case = Case::valid();
    let late = Attachment {
        time: Some(launch() + Duration::from_mins(10)),
    };
    case.ec2.knows([InstanceFacts {
        root: RootDevice::Volume(Some(late)),
        ..instance()
    }]);

    let Assurance::Attested(attested) = case.decide().await.unwrap() else {
        panic!("not attested");
    };

    let denial = attested.denied_unless_known().unwrap();
    assert_eq!(denial.reason(), "RootVolumeMoved");
}

#[tokio::test]
async fn the_aws_verifier_lists_its_versions_and_denial_reasons() {
    let verifier = Case::valid().verifier();

    assert_eq!(verifier.versions(), [EvidenceVersion::V1]);
    assert_eq!(verifier.denials(), AwsDenial::CATALOGUE);
}

#[tokio::test]
async fn the_serving_names_of_an_instance_come_from_ec2() {
    let verifier = Case::valid().verifier();
    let names = async |provider_id: &str| {
        let provider_id = ProviderId::parse(provider_id).unwrap();
        verifier.serving_names(&provider_id).await.unwrap()
    };

    let InstanceFacts {
        addresses,
        dns_names,
        ..
    } = instance();
    let addresses = addresses.into_iter().map(ServingName::Ip);
    let expected: Vec<_> = addresses
        .chain(dns_names.into_iter().map(ServingName::Dns))
        .collect();
    assert!(!expected.is_empty());
    let own = format!("aws:///eu-west-1a/{INSTANCE}");
    assert_eq!(names(&own).await, Some(expected));
    assert_eq!(names("metal:///rack-1/7").await, None);
}
