//! Tests with the real SDK and a strict STS.

use data_encoding::BASE64URL_NOPAD;
use kubelet_authenticator_test_support::sts::{Fault, Times, Trust};
use node_attestation_runtime::capi::ObjectKey;
use serde_json::{Value, json};

use super::*;
use crate::proxy::Proxy;
use crate::tenancy::sessions::CredentialsError;
use crate::tenancy::sessions::testing::{CONTROLLER_USER, StrictSts, plan};
use crate::tenancy::testing::{arn, objects, put, role};

const REGION: &str = "eu-west-1";
const CONTROLLER: &str = "AWSClusterControllerIdentity/default";
const JUMP: &str = "AWSClusterRoleIdentity/jump";
const NODES: &str = "AWSClusterRoleIdentity/nodes";

/// Assumes the role `nodes` with these fields and the credentials of the role `jump`. STS requires `external_id` for
/// the outer role.
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
async fn the_outer_role_external_id_is_sent_only_with_its_own_call() {
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
        // Each role is assumed with exactly one call.
        assert_eq!(sts.parameters().len(), 2);
    }
}

#[tokio::test]
async fn session_policies_are_sent_only_with_their_own_role() {
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
fn only_a_refusal_by_sts_is_permanent() {
    let refused = |code| FailureKind::Refused {
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
    let throttled = FailureKind::Throttled("Throttling".to_owned());
    assert_eq!(of_code("Throttling", None), throttled);
    assert!(!throttled.is_refusal());
    let failed = of_code("InternalFailure\n<b>", None);
    let detail = "STS returned InternalFailureb".to_owned();
    assert_eq!(failed, FailureKind::Unavailable(detail));
}

/// Assumes a role from a session with the tags of EKS Pod Identity. The role allows `sts:TagSession` if `allows` is
/// true.
async fn assumed_with_tags(
    allows: bool,
    fields: &[(&str, Value)],
) -> (StrictSts, Result<Keys, CredentialsError>) {
    let sts = StrictSts::start(REGION);
    sts.service.tag_sessions_of(CONTROLLER_USER);
    for role in ["jump", "nodes"] {
        if allows {
            sts.service.allow_tag_session(&arn(role));
        }
    }
    let keys = assumed(&sts, None, fields).await;
    (sts, keys)
}

#[tokio::test]
async fn a_role_that_denies_session_tags_fails_with_the_denied_action() {
    let (sts, keys) = assumed_with_tags(false, &[]).await;

    let error = keys.unwrap_err();
    assert_eq!(&*error.step, arn("jump"));
    let expected = FailureKind::ActionDenied {
        action: "sts:TagSession".to_owned(),
        request_id: Some("01234567-89ab-cdef-0123-456789abcdef".to_owned()),
    };
    assert_eq!(error.kind, expected);
    assert_eq!(error.kind.reason(), "AssumeRoleDenied");
    assert_eq!(
        error.kind.to_string(),
        "AWS refuses sts:TagSession, which the call also requires (request 01234567-89ab-cdef-0123-456789abcdef)"
    );
    assert_eq!(sts.parameters().len(), 1);

    // Tags are transitive, so both roles of the chain must allow the action.
    let (_, keys) = assumed_with_tags(true, &[]).await;
    keys.unwrap();
}

#[tokio::test]
async fn session_policies_too_large_with_session_tags_are_denied() {
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Deny","Action":"{}","Resource":"*"}}]}}"#,
        "a".repeat(700)
    );
    let fields = [("inlinePolicy", json!(policy))];

    let (_, keys) = assumed_with_tags(true, &fields).await;

    let error = keys.unwrap_err();
    assert_eq!(error.kind.reason(), "AssumeRoleDenied");
    assert_eq!(
        error.kind.to_string(),
        "AWS refuses the call with PackedPolicyTooLarge (request 01234567-89ab-cdef-0123-456789abcdef): inlinePolicy, \
         policyARNs and the session tags together are too large; EKS Pod Identity adds tags, unless disableSessionTags \
         is set in its association"
    );
    // Without the tags, the policies fit into the space that AWS permits.
    let sts = StrictSts::start(REGION);
    assumed(&sts, None, &fields).await.unwrap();
}

/// A region that is available only after an account enables it.
const OPT_IN: &str = "me-south-1";

/// An STS client for a region, and another client for the partition's first region.
fn regions_of(sts: &StrictSts, region: &str) -> SdkSts {
    let authorities = sts.service.ca_pem().as_bytes().to_vec();
    let client = Proxy::default().http_client_trusting(authorities).unwrap();
    let endpoints = [region, "us-east-1"].map(|region| (region.to_owned(), sts.service.url()));
    SdkSts::new(StrictSts::own(), endpoints.into(), Some(client))
}

fn own_keys() -> Keys {
    Keys::new("AKIAOWN", "secret", None, None, "test")
}

/// The role `nodes`, which is assumed with the controller's own credentials.
fn nodes() -> Role {
    let mut objects = objects();
    put(&mut objects, NODES, &role(CONTROLLER, "nodes"));
    plan(&objects, NODES).roles.remove(0)
}

/// The outcomes of all calls so far.
fn outcomes(sts: &StrictSts) -> Vec<String> {
    let calls = sts.service.calls().into_iter();
    calls.map(|call| call.outcome).collect()
}

#[tokio::test]
async fn a_role_in_an_opt_in_region_is_assumed_in_the_home_region() {
    let sts = StrictSts::start(OPT_IN);
    sts.service.role(&arn("nodes"), Trust::of(CONTROLLER_USER));
    sts.service.not_enabled("999988887777", OPT_IN);
    let sdk = regions_of(&sts, OPT_IN);

    sdk.assume_role(&own_keys(), &nodes(), OPT_IN)
        .await
        .unwrap();
    let account = sdk.account(&own_keys(), OPT_IN).await.unwrap();

    assert_eq!(account, "999988887777");
    assert_eq!(
        outcomes(&sts),
        ["InvalidClientTokenId", "OK", "InvalidClientTokenId", "OK"]
    );
    // If the region is enabled, one call is sufficient.
    let sts = StrictSts::start(OPT_IN);
    sts.service.role(&arn("nodes"), Trust::of(CONTROLLER_USER));
    regions_of(&sts, OPT_IN)
        .assume_role(&own_keys(), &nodes(), OPT_IN)
        .await
        .unwrap();
    assert_eq!(sts.service.calls().len(), 1);
}

#[tokio::test]
async fn a_role_whose_account_has_no_sts_in_the_region_is_assumed_at_home() {
    let sts = StrictSts::start(OPT_IN);
    sts.service.role(&arn("nodes"), Trust::of(CONTROLLER_USER));
    // The account of the role has not enabled the region, but the account of the caller has.
    sts.service.not_enabled("111122223333", OPT_IN);

    let assumed = regions_of(&sts, OPT_IN)
        .assume_role(&own_keys(), &nodes(), OPT_IN)
        .await;

    assumed.unwrap();
    assert_eq!(outcomes(&sts), ["RegionDisabledException", "OK"]);
}

#[tokio::test]
async fn a_service_account_role_in_an_opt_in_region_is_assumed_at_home() {
    let sts = StrictSts::start(OPT_IN);
    let trust = Trust::of_service_account("tenant-a", "nodes");
    sts.service.role(&arn("nodes"), trust);
    // The call has no signature, so the service does not know its region.
    let disabled = Fault::error(403, "RegionDisabledException", "STS is not activated");
    sts.service.inject(Times::once(), disabled);
    let claims = json!({
        "sub": "system:serviceaccount:tenant-a:nodes",
        "aud": ["sts.amazonaws.com"],
        "exp": 4_102_444_800_u64,
    });
    let claims = BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
    let token = Secret::new(format!("e30.{claims}.c2ln"));

    let assumed = regions_of(&sts, OPT_IN)
        .assume_role_with_web_identity(&token, &nodes(), OPT_IN)
        .await;

    assumed.unwrap();
    let calls = sts.parameters();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
    assert_eq!(calls[0]["Action"], "AssumeRoleWithWebIdentity");
}

#[tokio::test]
async fn an_unknown_key_is_retried_once_and_only_in_the_home_region() {
    let keys = Keys::new("AKIAOTHER", "secret", None, None, "test");
    for (region, calls) in [(OPT_IN, 2), ("us-east-1", 1)] {
        let sts = StrictSts::start(region);
        let refused = regions_of(&sts, region)
            .assume_role(&keys, &nodes(), region)
            .await;

        let refused = refused.unwrap_err();
        assert!(refused.is_of_session(), "{refused:?}");
        assert_eq!(
            refused.to_string(),
            "AWS refuses the call with InvalidClientTokenId (request 01234567-89ab-cdef-0123-456789abcdef): the access key is \
             not valid, or its account has not enabled the STS region (--aws-sts-region)"
        );
        assert_eq!(sts.service.calls().len(), calls, "{region}");
    }
}

#[tokio::test]
async fn a_trust_policy_denial_is_not_retried_in_another_region() {
    let sts = StrictSts::start(OPT_IN);
    sts.service.role(
        &arn("nodes"),
        Trust::of("arn:aws:iam::999988887777:user/other"),
    );

    let refused = regions_of(&sts, OPT_IN)
        .assume_role(&own_keys(), &nodes(), OPT_IN)
        .await;

    let expected = FailureKind::Refused {
        code: "AccessDenied".to_owned(),
        request_id: Some("01234567-89ab-cdef-0123-456789abcdef".to_owned()),
    };
    assert_eq!(refused.unwrap_err(), expected);
    assert_eq!(sts.service.calls().len(), 1);
}

#[tokio::test]
async fn the_user_agent_of_each_sts_call_has_the_controller_version() {
    let sts = StrictSts::start(REGION);
    assumed(&sts, None, &[]).await.unwrap();
    let name = concat!(
        "app/node-attestation-controller-",
        env!("CARGO_PKG_VERSION")
    );
    let calls = sts.service.calls();
    assert_eq!(calls.len(), 2);
    for call in calls {
        let agent = call.header("user-agent").unwrap();
        assert!(agent.contains(name), "{agent}");
    }
}
