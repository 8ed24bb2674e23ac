//! Tests of predictions for instances that have not sent evidence yet.

use super::*;
use crate::credentials::NoCredentials;
use node_attestation_core::refusal::NotCalled;

async fn foreseen_by(case: &Case, verifier: &AwsVerifier) -> Result<Foresight, Refusal> {
    let id = ProviderId::parse(&case.claimed).unwrap();
    verifier.foresee(&Machine::new("m1"), &id, now()).await
}

async fn foreseen(case: &Case) -> Result<Foresight, Refusal> {
    foreseen_by(case, &case.verifier()).await
}

type Change = fn(&mut Case);

#[tokio::test]
async fn a_prediction_has_the_checks_of_the_instance_and_its_name() {
    let case = Case::valid();

    let foresight = foreseen(&case).await.unwrap();

    assert_eq!(foresight.identity.instance.as_deref(), Some(INSTANCE));
    let name = foresight.identity.node_name.unwrap();
    assert_eq!(name.as_str(), "ip-10-0-0-1.eu-west-1.compute.internal");
    assert!(foresight.unknown.is_none(), "{:?}", foresight.unknown);
    assert_eq!(foresight.first_claim_only, None);
    assert_eq!(case.asked().0, 0);

    let changes: [(Change, &str); 5] = [
        (
            |case| case.policy.settings.regions = ["us-east-1".to_owned()].into(),
            "RegionNotAllowed",
        ),
        (
            |case| case.policy.settings.accounts = ["999999999999".to_owned()].into(),
            "AccountNotAllowed",
        ),
        (
            |case| case.policy.cluster = Some("other".to_owned()),
            "TagMismatch",
        ),
        (
            |case| {
                let state = "stopped".to_owned();
                case.ec2.knows([InstanceFacts {
                    state,
                    ..instance()
                }]);
            },
            "InstanceNotRunning",
        ),
        (
            |case| case.claimed = "metal:///rack-1/7".to_owned(),
            "EvidenceMissing",
        ),
    ];
    for (change, expected) in changes {
        let mut case = Case::valid();
        change(&mut case);
        match foreseen(&case).await {
            Err(Refusal::Deny(denial)) => assert_eq!(denial.reason(), expected),
            other => panic!("not denied: {expected} {other:?}"),
        }
    }
}

#[tokio::test]
async fn without_a_call_to_ec2_a_prediction_checks_only_the_region() {
    let mut case = Case::valid();
    let clients = Arc::new(case.clients(Arc::new(NoCredentials)));
    let verifier = AwsVerifier::new(clients.clone(), case.policy.clone(), "");

    let foresight = foreseen_by(&case, &verifier).await.unwrap();

    assert_eq!(foresight.identity.instance.as_deref(), Some(INSTANCE));
    assert_eq!(foresight.identity.node_name, None);
    let unknown = foresight.unknown.unwrap();
    assert!(unknown.cause::<NotCalled>().is_some(), "{unknown:?}");
    case.policy.settings.regions = ["us-east-1".to_owned()].into();
    let verifier = AwsVerifier::new(clients, case.policy.clone(), "");
    match foreseen_by(&case, &verifier).await {
        Err(Refusal::Deny(denial)) => assert_eq!(denial.reason(), "RegionNotAllowed"),
        other => panic!("not denied: {other:?}"),
    }
}

#[tokio::test]
async fn a_prediction_has_the_denial_of_a_moved_root_volume() {
    let case = Case::valid();
    let moved = Attachment {
        time: Some(launch() + Duration::from_hours(1)),
    };
    case.ec2.knows([InstanceFacts {
        root: RootDevice::Volume(Some(moved)),
        ..instance()
    }]);

    let foresight = foreseen(&case).await.unwrap();

    let denial = foresight.first_claim_only.unwrap();
    assert_eq!(denial.reason(), "RootVolumeMoved");
}
