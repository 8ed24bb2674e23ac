//! Tests for C1 to C9, C12 and C19: calls that a node could try to cause.

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::evidence::aws::AwsEvidence;
use serde_json::{Value, json};

use super::super::request::rebuild;
use super::fixture::*;

fn evidence(node: &Node) -> Value {
    let proof = node.proof();
    json!({
        "version": "v1",
        "audience": "prod",
        "rsa2048": "MIAG",
        "sts": {
            "region": &proof.region,
            "accessKeyId": &proof.access_key_id,
            "sessionToken": &proof.session_token,
            "amzDate": &proof.amz_date,
            "signature": &proof.signature,
        },
    })
}

fn is_read(evidence: &Value) -> bool {
    AwsEvidence::parse(evidence.to_string().as_bytes()).is_ok()
}

#[tokio::test]
async fn valid_evidence_is_verified_with_one_sts_call() {
    let bed = Bed::start();
    let node = bed.instance();
    assert!(is_read(&evidence(&node)));

    bed.verify(&node).await.unwrap();

    assert_eq!(bed.outcomes(), ["OK"]);
}

#[tokio::test]
async fn the_user_agent_of_the_call_for_a_node_has_the_controller_version() {
    let bed = Bed::start();

    bed.verify(&bed.instance()).await.unwrap();

    let calls = bed.service.calls();
    let agent = concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION"));
    assert_eq!(calls[0].header("user-agent"), Some(agent));
}

#[tokio::test]
async fn oversized_or_malformed_evidence_is_not_read() {
    let bed = Bed::start();
    let valid = evidence(&bed.instance());
    for (field, value) in [
        ("sessionToken", "A".repeat(4097)),
        ("sessionToken", String::new()),
        ("sessionToken", "not base64!".into()),
        ("accessKeyId", "AKIAABCDEFGHIJKLMNOP".into()),
        ("accessKeyId", "ASIAABCDEFGHIJKLMNO".into()),
        ("signature", "0".repeat(63)),
        ("signature", "A".repeat(64)),
        ("amzDate", "2026-01-01T12:00:00Z".into()),
    ] {
        let mut changed = valid.clone();
        changed["sts"][field] = value.clone().into();

        assert!(!is_read(&changed), "{field} = {value}");
    }
    let mut large = valid;
    large["rsa2048"] = "A".repeat(33 * 1024).into();
    assert!(!is_read(&large));
    assert_eq!(bed.outcomes(), [""; 0]);
}

#[tokio::test]
async fn evidence_that_names_a_host_is_refused() {
    let bed = Bed::start();
    let valid = evidence(&bed.instance());
    for name in ["url", "host", "endpoint", "scheme", "port"] {
        let mut changed = valid.clone();
        changed["sts"][name] = "https://sts.evil.test".into();

        assert!(!is_read(&changed), "{name}");
    }
    for region in [
        "evil.test",
        "eu-west-1.evil.test",
        "evil.test/eu-west-1",
        "eu-west-1@evil.test",
        "user:secret@eu-west-1",
        "eu-west-1:8443",
        "eu-west-1#",
        "eu-west-1?x=y",
        "http://eu-west-1",
        "EU-WEST-1",
        "eu\u{2010}west\u{2010}1",
    ] {
        let mut changed = valid.clone();
        changed["sts"]["region"] = region.into();

        assert!(!is_read(&changed), "{region}");
    }
}

#[tokio::test]
async fn evidence_for_another_sts_region_is_denied_without_a_call() {
    let bed = Bed::start();
    for region in ["us-east-1", "cn-north-1", "us-gov-west-1", "us-iso-east-1"] {
        let node = Node {
            region: region.to_owned(),
            ..bed.instance()
        };

        let denied = denial(bed.verify(&node).await);

        let expected = AwsDenial::CallerRegionMismatch {
            claimed: region.into(),
            region: REGION.into(),
        };
        assert_eq!(denied, expected);
    }
    assert_eq!(bed.outcomes(), [""; 0]);
}

#[tokio::test]
async fn a_region_in_an_unknown_partition_has_no_sts_endpoint() {
    let bed = Bed::start();
    let mut node = bed.instance();
    node.region = "xx-west-1".into();
    node.document.region = "xx-west-1".into();

    let denied = denial(bed.verify(&node).await);

    let expected = AwsDenial::RegionUnknown("xx-west-1".into());
    assert_eq!(denied, expected);
    assert_eq!(bed.outcomes(), [""; 0]);
}

#[test]
fn the_rebuilt_request_contains_only_the_proof_and_fixed_headers() {
    let bed = Bed::start();
    for region in ["eu-west-1", "us-gov-west-1"] {
        let node = Node {
            region: region.to_owned(),
            ..bed.instance()
        };
        let host = EndpointHost::sts(region).unwrap();
        let proof = node.proof();

        let call = rebuild(&proof, &node.binding(), &host).unwrap();

        let shown = format!("{call:?}");
        assert!(!shown.contains(&proof.session_token), "{shown}");
        assert!(!shown.contains(&proof.signature), "{shown}");
        let request = call.request;
        assert_eq!(request.method(), "POST");
        assert_eq!(
            request.uri().to_string(),
            format!("https://sts.{region}.amazonaws.com/")
        );
        let headers: Vec<(&str, String)> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap().to_owned()))
            .collect();
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/20260101/{region}/sts/aws4_request, \
             SignedHeaders=accept;content-type;host;x-amz-date;x-amz-security-token;\
             x-kubelet-attestation, Signature={}",
            &proof.access_key_id, &proof.signature
        );
        let expected = [
            ("host", format!("sts.{region}.amazonaws.com")),
            ("accept", "application/json".into()),
            (
                "content-type",
                "application/x-www-form-urlencoded; charset=utf-8".into(),
            ),
            ("x-amz-date", NOON.into()),
            ("x-amz-security-token", proof.session_token.clone()),
            ("x-kubelet-attestation", node.binding().to_hex()),
            ("authorization", authorization),
        ];
        assert_eq!(headers, expected);
    }
}

#[test]
fn evidence_cannot_set_any_other_part_of_the_request() {
    let bed = Bed::start();
    let valid = evidence(&bed.instance());
    assert!(is_read(&valid));
    for name in [
        "path",
        "query",
        "parameters",
        "action",
        "method",
        "body",
        "headers",
        "signedHeaders",
        "binding",
    ] {
        let mut changed = valid.clone();
        changed["sts"][name] = "x".into();
        assert!(!is_read(&changed), "sts.{name}");

        let mut changed = valid.clone();
        changed[name] = "x".into();
        assert!(!is_read(&changed), "{name}");
    }
    let twice = valid
        .to_string()
        .replace("\"signature\":", "\"signature\":\"00\",\"signature\":");
    let error = error_chain(&AwsEvidence::parse(twice.as_bytes()).unwrap_err());
    assert!(error.contains("duplicate field `signature`"), "{error}");
}

/// Asserts that a proof that does not match the request has a different signature.
async fn assert_mismatch(bed: &Bed, node: &Node, proof: Proof, what: &str) {
    let calls = bed.outcomes().len();

    assert_eq!(denial(bed.show(&proof, node).await), mismatch(), "{what}");

    assert_eq!(bed.outcomes().len(), calls + 1, "{what}");
}

#[tokio::test]
async fn a_signature_for_another_request_is_refused() {
    let bed = Bed::start();
    let node = bed.instance();
    let headers = node.headers();
    let body = "Action=GetCallerIdentity&Version=2011-06-15";
    for (what, method, path, query, body) in [
        ("the path", "POST", "/x", "", body),
        ("a parameter", "POST", "/", "X-Amz-Expires=60", body),
        (
            "a second action",
            "POST",
            "/",
            "",
            "Action=GetCallerIdentity&Version=2011-06-15&action=AssumeRole",
        ),
        (
            "another action",
            "POST",
            "/",
            "",
            "Action=GetSessionToken&Version=2011-06-15",
        ),
        ("the method", "GET", "/", "", body),
    ] {
        let proof = node.proof_of(method, path, query, &headers, body.as_bytes());
        assert_mismatch(&bed, &node, proof, what).await;
    }
}

#[tokio::test]
async fn the_signed_binding_must_match_the_request() {
    let bed = Bed::start();
    let node = bed.instance();
    let signed = node.headers();

    let unsigned: Vec<_> = signed[..5].to_vec();
    assert_mismatch(&bed, &node, node.proof_over(&unsigned), "unsigned").await;

    let mut wrong = signed.clone();
    wrong[5].1 = "00".repeat(32);
    assert_mismatch(&bed, &node, node.proof_over(&wrong), "wrong").await;

    let mut elsewhere = signed;
    elsewhere[2].1 = "sts.eu-west-1.amazonaws.com".into();
    assert_mismatch(&bed, &node, node.proof_over(&elsewhere), "another endpoint").await;
}

#[tokio::test]
async fn evidence_from_another_request_is_refused() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    let attacker = Node {
        spki: b"the attacker's key".to_vec(),
        ..node.clone()
    };

    assert_mismatch(&bed, &attacker, proof.clone(), "another key").await;

    let mut copied = node.clone();
    copied.document.digest = [8; 32];
    assert_mismatch(&bed, &copied, proof.clone(), "another document").await;

    let mut renamed = node.clone();
    renamed.document.instance = OTHER_INSTANCE.into();
    assert_mismatch(&bed, &renamed, proof.clone(), "another provider ID").await;

    // The refusal does not affect the owner of the evidence.
    bed.show(&proof, &node).await.unwrap();
}

#[tokio::test]
async fn no_evidence_field_can_inject_a_header() {
    let bed = Bed::start();
    let node = bed.instance();
    let (proof, token) = (node.proof(), node.credentials.session_token.clone());
    for smuggled in [
        format!("{token}\r\nX-Amz-Mallory-Header: x"),
        format!("{token}\nHost: evil.test"),
        format!("{token}\r\nTransfer-Encoding: chunked"),
        format!("{token}\0"),
        format!("{token} "),
    ] {
        let refused = Proof::new(ProofFields {
            session_token: smuggled.clone(),
            ..(*proof).clone()
        });
        let rule = refused.unwrap_err().to_string();
        assert_eq!(
            rule, "sts.sessionToken is not a valid session token",
            "{smuggled:?}"
        );
    }

    bed.verify(&node).await.unwrap();

    let calls = bed.service.calls();
    let mut names: Vec<&str> = calls[0]
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    names.sort_unstable();
    let expected = [
        "accept",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        "x-amz-date",
        "x-amz-security-token",
        "x-kubelet-attestation",
    ];
    assert_eq!(names, expected);
    let agent = concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION"));
    assert_eq!(calls[0].header("user-agent"), Some(agent));
    assert_eq!(
        (calls[0].method.as_str(), calls[0].target.as_str()),
        ("POST", "/")
    );
}

#[tokio::test]
async fn credentials_that_do_not_belong_together_are_refused() {
    let bed = Bed::start();
    let node = bed.instance();
    let mut wrong_secret = node.clone();
    wrong_secret.credentials.secret_access_key = "0".repeat(40);
    assert_mismatch(&bed, &wrong_secret, wrong_secret.proof(), "the secret").await;

    let other = bed.instance().credentials;
    let mut wrong_token = node.clone();
    wrong_token.credentials.session_token = other.session_token;
    let mut unknown = node;
    unknown.credentials.access_key_id = "ASIAAAAAAAAAAAAAAAAA".into();
    for node in [wrong_token, unknown] {
        let expected = AwsDenial::CallerRefused("InvalidClientTokenId".into());
        assert_eq!(denial(bed.verify(&node).await), expected);
    }
}
