//! The real SDK against a strict STS.

use kubelet_authenticator_test_support::sts::Trust;
use node_attestation_runtime::capi::ObjectKey;
use serde_json::{Value, json};

use super::*;
use crate::sessions::CredentialsError;
use crate::sessions::testing::{CONTROLLER_USER, StrictSts, plan};
use crate::tenancy::testing::{arn, objects, put, role};

const REGION: &str = "eu-west-1";
const CONTROLLER: &str = "AWSClusterControllerIdentity/default";
const JUMP: &str = "AWSClusterRoleIdentity/jump";
const NODES: &str = "AWSClusterRoleIdentity/nodes";

/// Assumes the role `nodes` with these fields over the role `jump`, by STS that trusts each with `external_id` for the
/// outer one.
async fn assumed(
    sts: &StrictSts,
    external_id: Option<&str>,
    fields: &[(&str, Value)],
) -> Result<Keys, CredentialsError> {
    sts.service.role(&arn("jump"), Trust::of(CONTROLLER_USER));
    let trust = Trust::of(&arn("jump"));
    let trust = match external_id {
        Some(id) => trust.external_id(id),
        None => trust,
    };
    sts.service.role(&arn("nodes"), trust);
    let mut objects = objects();
    put(&mut objects, JUMP, &role(CONTROLLER, "jump"));
    let mut nodes = role(JUMP, "nodes");
    for (field, value) in fields {
        nodes[field] = value.clone();
    }
    put(&mut objects, NODES, &nodes);
    let sessions = sts.sessions();
    sessions
        .of_plan(
            &plan(&objects, NODES),
            REGION,
            &ObjectKey::new("tenant-a", "one"),
        )
        .keys()
        .await
}

#[tokio::test]
async fn the_external_id_of_the_outer_role_is_in_its_own_call_alone() {
    let sts = StrictSts::start(REGION);
    let fields = [("externalID", json!("outer-id"))];
    assumed(&sts, Some("outer-id"), &fields).await.unwrap();
    let calls = sts.parameters();
    let [inner, outer] = calls.as_slice() else {
        panic!("{calls:?}")
    };
    assert_eq!(
        (&inner["RoleArn"], inner.get("ExternalId")),
        (&arn("jump"), None)
    );
    assert_eq!(outer["RoleArn"], arn("nodes"));
    assert_eq!(outer["ExternalId"], "outer-id");
    let bodies = sts.service.calls();
    assert!(!bodies[0].body.contains("outer-id"), "{}", bodies[0].body);
}

#[tokio::test]
async fn the_external_id_of_another_tenant_is_refused() {
    for fields in [
        &[("externalID", json!("another-tenants-id"))][..],
        &[("externalID", json!("Outer-id"))],
        &[],
    ] {
        let sts = StrictSts::start(REGION);
        let error = assumed(&sts, Some("outer-id"), fields).await.unwrap_err();
        assert_eq!(&*error.step, arn("nodes"));
        let code = "AccessDenied".to_owned();
        assert!(
            matches!(&error.kind, FailureKind::Refused { code: told, .. } if *told == code),
            "{error:?}"
        );
        assert_eq!(error.kind.reason(), "AssumeRoleDenied");
        // One call of each role, and no more.
        assert_eq!(sts.parameters().len(), 2);
    }
}

#[tokio::test]
async fn session_policies_are_in_the_call_of_their_role_alone() {
    let sts = StrictSts::start(REGION);
    let policy = r#"{"Version":"2012-10-17","Statement":[]}"#;
    let arns = [
        "arn:aws:iam::aws:policy/ReadOnlyAccess",
        "arn:aws:iam::111122223333:policy/nodes",
    ];
    let fields = [
        ("inlinePolicy", json!(policy)),
        ("policyARNs", json!(arns)),
        ("sessionName", json!("of-the-nodes")),
        ("durationSeconds", json!(1800)),
    ];
    assumed(&sts, None, &fields).await.unwrap();
    let calls = sts.parameters();
    let mut sent = [
        calls[1]["PolicyArns.member.1.arn"].as_str(),
        calls[1]["PolicyArns.member.2.arn"].as_str(),
    ];
    sent.sort_unstable();
    assert_eq!(sent, [arns[1], arns[0]]);
    assert_eq!(calls[1]["Policy"], policy);
    assert_eq!(calls[1]["RoleSessionName"], "of-the-nodes");
    assert_eq!(calls[1]["DurationSeconds"], "1800");
    let inner: Vec<_> = calls[0].keys().map(String::as_str).collect();
    let expected = ["Action", "DurationSeconds", "RoleArn", "RoleSessionName"];
    assert_eq!(inner, expected);
}

#[test]
fn a_refusal_needs_a_change_and_other_codes_do_not() {
    let refused = |code| StsFailure::Refused {
        code,
        request_id: Some("1-2".to_owned()),
    };
    for code in [
        "AccessDenied",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
    ] {
        assert_eq!(of_code(code, Some("1-2")), refused(code.to_owned()));
        assert!(of_code(code, None).is_refusal());
    }
    let throttled = StsFailure::Throttled("Throttling".to_owned());
    assert_eq!(of_code("Throttling", None), throttled);
    assert!(!throttled.is_refusal());
    let failed = of_code("InternalFailure\n<b>", None);
    let detail = "it answers with InternalFailureb".to_owned();
    assert_eq!(failed, StsFailure::Unavailable(detail));
}
