use super::*;

fn state(status: &Value) -> Result<CsrState, String> {
    let object = json!({
        "metadata": {
            "name": "n", "uid": "u", "resourceVersion": "7",
            "annotations": {
                SUPPORTED_VERSIONS_ANNOTATION: "v1,v2", CHALLENGE_ANNOTATION: "open this",
            },
        },
        "spec": {"request": "cmVxdWVzdA==", "signerName": "example.com/s", "usages": ["client auth"]},
        "status": status,
    });
    let object: Result<CsrObject, _> = serde_json::from_value(object);
    object
        .map(|object| object.state)
        .map_err(|error| error.to_string())
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "Why", "message": "because"})
}

#[test]
fn a_request_is_issued_once_approved_and_signed() {
    let certificate = STANDARD.encode("PEM");
    let approved = condition("Approved", "True");

    for (conditions, certificate, issued) in [
        (vec![approved.clone()], Some(certificate.clone()), true),
        (
            vec![condition("Approved", "")],
            Some(certificate.clone()),
            true,
        ),
        (
            vec![condition("Approved", "False")],
            Some(certificate.clone()),
            false,
        ),
        (
            vec![condition("Seen", "True")],
            Some(certificate.clone()),
            false,
        ),
        (vec![], Some(certificate), false),
        (vec![approved.clone()], None, false),
        (vec![approved], Some(String::new()), false),
    ] {
        let status = json!({"conditions": conditions, "certificate": certificate});
        let expected = if issued {
            CsrState::Issued {
                chain_pem: "PEM".to_owned(),
            }
        } else {
            CsrState::Pending
        };
        assert_eq!(state(&status), Ok(expected), "{status}");
    }
}

#[test]
fn a_denial_takes_precedence_over_a_certificate() {
    let (reason, message) = ("Why".to_owned(), "because".to_owned());
    let status = json!({
        "conditions": [condition("Approved", "True"), condition("Denied", "True")],
        "certificate": STANDARD.encode("PEM"),
    });

    assert_eq!(state(&status), Ok(CsrState::Denied { reason, message }));
}

#[test]
fn a_failure_contains_the_supported_versions_and_the_challenge() {
    let status = json!({"conditions": [condition("Failed", "True")]});

    assert_eq!(
        state(&status),
        Ok(CsrState::Failed {
            reason: "Why".to_owned(),
            message: "because".to_owned(),
            supported_versions: EvidenceVersion::parse_list("v1,v2"),
            challenge: Some("open this".to_owned()),
        })
    );
    assert_eq!(EvidenceVersion::parse_list("v1,v2").len(), 2);
}

#[test]
fn an_undecodable_certificate_is_reported_with_its_field() {
    for certificate in ["?".to_owned(), STANDARD.encode([0xff])] {
        let status = json!({
            "conditions": [condition("Approved", "True")], "certificate": certificate,
        });
        let malformed = Malformed("status.certificate").to_string();
        assert_eq!(state(&status), Err(malformed));
    }
}

#[test]
fn a_request_without_status_is_pending() {
    for status in [json!({}), json!({"conditions": null})] {
        assert_eq!(state(&status), Ok(CsrState::Pending));
    }
}
