//! Tests for C14 and C15: STS responses without an identity.

use hyper::StatusCode;
use kubelet_authenticator_test_support::sts::{Fault, Times};
use node_attestation_core::refusal::Failure;
use node_attestation_runtime::metrics::{CloudResult, Format, Metrics};
use serde_json::json;
use tokio::time::{advance, pause, resume};

use super::super::answer::{read, result};
use super::fixture::*;

/// The result if STS returns this response once. A minute later, the same evidence is verified.
async fn decided(fault: Fault) -> Result<(), Refusal> {
    let bed = Bed::start();
    let node = bed.instance();
    bed.service.inject(Times::once(), fault);
    let decided = bed.verify(&node).await;
    // The refusal cache uses the monotonic clock.
    pause();
    advance(minutes(1)).await;
    resume();
    let (proof, later) = (node.proof(), now() + minutes(1));
    bed.show_at(&proof, &node, now(), later).await.unwrap();
    decided
}

#[tokio::test]
async fn a_throttled_or_failed_sts_call_is_reported_as_an_outage() {
    for (fault, words) in [
        (Fault::throttling(), "400 and Throttling"),
        (Fault::too_many_requests(), "429"),
        (Fault::internal_failure(), "500"),
        (Fault::service_unavailable(), "503"),
        (Fault::error(504, "GatewayTimeout", ""), "504"),
        (
            Fault::error(403, "RequestLimitExceeded", ""),
            "403 and RequestLimitExceeded",
        ),
        (
            Fault::error(400, "ThrottlingException", ""),
            "400 and ThrottlingException",
        ),
        // STS is disabled in this region for the account, or the policy of a VPC endpoint denies the call. An operator
        // can fix both problems, and neither contradicts the evidence.
        (
            Fault::error(403, "RegionDisabledException", ""),
            "403 and RegionDisabledException",
        ),
        (
            Fault::error(403, "AccessDenied", ""),
            "403 and AccessDenied",
        ),
        (
            Fault::error(403, "NewCodeOfTomorrow", ""),
            "403 and NewCodeOfTomorrow",
        ),
        (
            Fault::error(403, "<b>\r\n", ""),
            "403 and an invalid error code",
        ),
        (
            Fault::error(403, "Almost-1", ""),
            "403 and an invalid error code",
        ),
        (
            Fault::error(403, "lowerCase", ""),
            "403 and an invalid error code",
        ),
        (
            Fault::error(403, &"A".repeat(64), ""),
            &*format!("403 and {}", "A".repeat(64)),
        ),
        (
            Fault::error(403, &"A".repeat(65), ""),
            "403 and an invalid error code",
        ),
        (Fault::error(403, "", ""), "403 and an invalid error code"),
        (Fault::error(404, "SignatureDoesNotMatch", ""), "404"),
        (Fault::error(500, "SignatureDoesNotMatch", ""), "500"),
        (Fault::error(204, "", ""), "204"),
    ] {
        let said = outage(decided(fault).await);

        assert!(said.ends_with(words), "{said}");
    }
}

#[tokio::test]
async fn a_denial_by_sts_contains_only_the_error_code() {
    for code in [
        "SignatureDoesNotMatch",
        "InvalidClientTokenId",
        "IncompleteSignature",
        "MissingAuthenticationToken",
        "UnrecognizedClientException",
    ] {
        let message = "The Canonical String for this request should have been secret";

        let denied = denial(decided(Fault::error(403, code, message)).await);

        assert_eq!(denied, AwsDenial::CallerRefused(code.into()));
        assert!(!denied.to_string().contains("Canonical"));
    }
}

#[test]
fn xml_errors_are_parsed_like_json_errors() {
    let xml = |code: &str, message: &str| {
        format!(
            "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n  <Error>\n    \
             <Type>Sender</Type>\n    <Code>{code}</Code>\n    <Message>{message}</Message>\n  \
             </Error>\n  <RequestId>x</RequestId>\n</ErrorResponse>\n"
        )
    };
    let meaning = |body: String| read(StatusCode::FORBIDDEN, body.as_bytes()).unwrap_err();

    assert!(matches!(
        meaning(xml("SignatureDoesNotMatch", "The request signature we calculated")),
        Refusal::Deny(denial) if denial == AwsDenial::CallerRefused("SignatureDoesNotMatch".to_owned()).into()
    ));
    for (code, message) in [
        (
            "SignatureDoesNotMatch",
            "Signature expired: 20260101T000000Z is now earlier",
        ),
        (
            "SignatureDoesNotMatch",
            "Signature not yet current: 20260101T000000Z is still later",
        ),
        (
            "ExpiredToken",
            "The security token included in the request is expired",
        ),
        ("RequestExpired", ""),
    ] {
        assert!(matches!(
            meaning(xml(code, message)),
            Refusal::Fail(Failure::EvidenceExpired)
        ));
    }
    for garbage in [
        xml("Throttling", "Rate exceeded"),
        xml("SignatureDoesNotMatch</Code><Code>x", ""),
        xml("<b>SignatureDoesNotMatch</b>", ""),
        "<html>SignatureDoesNotMatch</html>".to_owned(),
        String::new(),
    ] {
        assert!(matches!(meaning(garbage), Refusal::Retry(_)));
    }
}

/// A response about [`INSTANCE`], with this value for its account.
fn answer(account: &str) -> String {
    format!(
        "{{\"GetCallerIdentityResponse\":{{\"GetCallerIdentityResult\":{{\"Account\":{account},\
         \"Arn\":\"arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}\",\
         \"UserId\":\"{ACCOUNT}:aws:ec2-instance:{INSTANCE}\"}}}}}}"
    )
}

#[tokio::test]
async fn an_sts_response_over_16_kib_is_not_read() {
    let padded = |len: usize| format!("{:len$}", answer(&format!("\"{ACCOUNT}\"")));
    decided(Fault::body(padded(16 * 1024))).await.unwrap();

    let too_large = [
        Fault::body(padded(16 * 1024 + 1)),
        Fault::HugeBody {
            size: 10 * 1024 * 1024,
        },
    ];
    for fault in too_large {
        let said = outage(decided(fault).await);

        assert!(
            said.ends_with("the response from STS is too large"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn an_invalid_sts_response_is_reported_as_an_outage() {
    let other = Principal::instance(ACCOUNT, OTHER_INSTANCE);
    let valid = answer(&format!("\"{ACCOUNT}\""));
    assert!(read(StatusCode::OK, valid.as_bytes()).is_ok());
    for fault in [
        Fault::body(""),
        Fault::body("It works!"),
        Fault::body("{}"),
        Fault::body("[]"),
        Fault::body("null"),
        Fault::body("<html><body>It works!</body></html>"),
        Fault::body(
            "<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>x</Arn>\
             </GetCallerIdentityResult></GetCallerIdentityResponse>",
        ),
        Fault::body(format!("{valid} {valid}")),
        Fault::body(format!("{valid}x")),
        Fault::body(answer("123456789012")),
        Fault::body(answer("null")),
        Fault::body(answer(&format!("\"{ACCOUNT}\",\"Account\":\"{ACCOUNT}\""))),
        Fault::body(b"\xff\xfe{}".to_vec()),
        Fault::body("[".repeat(16 * 1024)),
        Fault::NoResult,
        Fault::TwoResults { other },
        Fault::Cut,
    ] {
        outage(decided(fault).await);
    }
    // None of these bodies is a valid error from AWS.
    for body in [
        "",
        "Forbidden",
        "{}",
        "{\"Error\":{}}",
        "{\"Error\":\"SignatureDoesNotMatch\"}",
    ] {
        let fault = Fault::Answer {
            status: 403,
            content_type: "text/html".into(),
            body: body.into(),
        };
        outage(decided(fault).await);
    }
}

#[tokio::test]
async fn an_error_contains_neither_the_response_nor_the_credentials() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    let secrets = [
        &proof.access_key_id,
        &proof.session_token,
        &proof.signature,
        &node.credentials.secret_access_key,
    ];
    let other_key = Node {
        spki: b"another".to_vec(),
        ..node.clone()
    };
    let faults = [
        None,
        Some(Fault::body(proof.session_token.as_str())),
        Some(Fault::body(format!("{{\"{}\":1}}", proof.session_token))),
        Some(Fault::error(403, &proof.signature, &proof.session_token)),
        Some(Fault::error(
            400,
            "SignatureDoesNotMatch",
            &proof.session_token,
        )),
        Some(Fault::Cut),
        Some(Fault::Redirect {
            to: format!("https://127.0.0.1/{}", proof.session_token),
        }),
    ];
    for fault in faults {
        let fault = fault.map(|fault| bed.service.inject(Times::once(), fault));

        let refused = bed.show(&proof, &other_key).await.unwrap_err();

        let mut words = format!("{refused:?} {refused}");
        let mut cause = std::error::Error::source(&refused);
        while let Some(error) = cause {
            words = format!("{words} {error:?} {error}");
            cause = error.source();
        }
        for secret in secrets {
            assert!(!words.contains(secret), "{fault:?}: {words}");
        }
    }
    let debug = format!(
        "{:?} {:?} {proof:?}",
        bed.verifier,
        bed.show(&proof, &node).await
    );
    for secret in secrets {
        assert!(!debug.contains(secret), "{debug}");
    }
}

#[test]
fn sts_results_are_counted_by_error_code_and_status() {
    let error = |code: &str| json!({"Error": {"Code": code, "Message": ""}}).to_string();
    for (status, body, expected) in [
        (200, "{}".to_owned(), CloudResult::Ok),
        (400, error("Throttling"), CloudResult::Throttled),
        (429, String::new(), CloudResult::Throttled),
        (403, error("SignatureDoesNotMatch"), CloudResult::Refused),
        (403, error("ExpiredToken"), CloudResult::Refused),
        (403, error("SomethingNew"), CloudResult::Failed),
        (403, "<html>".to_owned(), CloudResult::Failed),
        (503, String::new(), CloudResult::Failed),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(result(status, body.as_bytes()), expected, "{status} {body}");
    }
}

#[tokio::test]
async fn sts_calls_are_counted_by_their_result() {
    let metrics = Metrics::new("1");
    let mut bed = Bed::start();
    bed.verifier = bed.verifier.measured_by(metrics.clone());
    let node = bed.instance();
    bed.service.inject(Times::once(), Fault::throttling());
    outage(bed.verify(&node).await);

    let (proof, later) = (node.proof(), now() + minutes(1));
    bed.show_at(&proof, &node, now(), later).await.unwrap();

    let text = metrics.text(Format::Prometheus);
    let counted = |result: &str| {
        let of_result = format!("result=\"{result}\"");
        let mut calls = text
            .lines()
            .filter(|line| line.contains("GetCallerIdentity") && line.contains(&of_result));
        calls
            .next()
            .and_then(|line| line.rsplit(' ').next())
            .map(ToOwned::to_owned)
    };
    assert_eq!(counted("throttled").as_deref(), Some("1"), "{text}");
    assert_eq!(counted("ok").as_deref(), Some("1"), "{text}");
}
