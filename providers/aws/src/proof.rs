//! The proof: a signature over an STS call, with the key binding in a header.

use std::time::SystemTime;

use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::InvalidField;
use kubelet_attestation::evidence::aws::{
    BINDING_HEADER, Proof, ProofFields, STS_ACCEPT, STS_BODY, STS_CONTENT_TYPE, STS_SERVICE,
};

use crate::credentials::Credentials;
use crate::sigv4::Request;

/// Signs an STS call to `region`. `host` is the value of the `host` header.
///
/// # Errors
///
/// The credentials do not have the syntax of temporary AWS credentials.
pub(crate) fn prove(
    region: &str,
    host: &str,
    credentials: &Credentials,
    binding: &KeyBinding,
    now: SystemTime,
) -> Result<Proof, InvalidField> {
    let amz_date = amz_date(now);
    let binding = binding.to_hex();
    let session_token = credentials.session_token.expose();
    let request = Request {
        method: "POST",
        headers: &[
            ("accept", STS_ACCEPT),
            ("content-type", STS_CONTENT_TYPE),
            ("host", host),
            ("x-amz-date", &amz_date),
            ("x-amz-security-token", session_token),
            (BINDING_HEADER, &binding),
        ],
        body: STS_BODY,
        region,
        service: STS_SERVICE,
        amz_date: &amz_date,
    };
    let signature = request.sign(&credentials.secret_access_key);
    Proof::new(ProofFields {
        region: region.to_owned(),
        access_key_id: credentials.access_key_id.expose().clone(),
        session_token: session_token.clone(),
        amz_date,
        signature,
    })
}

/// `YYYYMMDDTHHMMSSZ`
fn amz_date(now: SystemTime) -> String {
    humantime::format_rfc3339_seconds(now)
        .to_string()
        .replace(['-', ':'], "")
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;
    use kubelet_attestation::evidence::aws::SIGNED_HEADERS;
    use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::credentials::tests::credentials;

    fn binding(spki: &[u8]) -> KeyBinding {
        KeyBinding::new(
            &Provider::AWS,
            &Audience::parse("prod").unwrap(),
            &ProviderId::parse("aws:///eu-west-1a/i-1").unwrap(),
            &NodeName::parse("n1").unwrap(),
            spki,
            &[&[0; 32]],
        )
    }

    fn proof(spki: &[u8]) -> Proof {
        let host = "sts.eu-west-1.amazonaws.com";
        let now = humantime::parse_rfc3339("2026-01-01T01:02:03.9Z").unwrap();
        prove("eu-west-1", host, &credentials(), &binding(spki), now).unwrap()
    }

    /// HMAC, computed step by step as in RFC 2104.
    fn hmac(key: &[u8], text: &str) -> Vec<u8> {
        let mut block = [0; 64];
        block[..key.len()].copy_from_slice(key);
        let inner = Sha256::digest([&block.map(|byte| byte ^ 0x36), text.as_bytes()].concat());
        Sha256::digest([&block.map(|byte| byte ^ 0x5c)[..], inner.as_slice()].concat()).to_vec()
    }

    #[test]
    fn the_signed_sts_request_matches_the_documented_wire_format() {
        let hex = |text: &str| HEXLOWER.encode(&Sha256::digest(text));
        let canonical = format!(
            "POST\n/\n\naccept:application/json\n\
             content-type:application/x-www-form-urlencoded; charset=utf-8\n\
             host:sts.eu-west-1.amazonaws.com\nx-amz-date:20260101T010203Z\n\
             x-amz-security-token:IQoJb3JpZ2luX2Vj+/=\nx-kubelet-attestation:{}\n\n{SIGNED_HEADERS}\n{}",
            binding(b"spki").to_hex(),
            hex("Action=GetCallerIdentity&Version=2011-06-15"),
        );
        let text = format!(
            "AWS4-HMAC-SHA256\n20260101T010203Z\n20260101/eu-west-1/sts/aws4_request\n{}",
            hex(&canonical)
        );
        let secret = b"AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let key = ["20260101", "eu-west-1", "sts", "aws4_request"]
            .iter()
            .fold(secret.to_vec(), |key, part| hmac(&key, part));
        let expected = HEXLOWER.encode(&hmac(&key, &text));

        let proof = proof(b"spki");

        assert_eq!(proof.signature, expected);
        assert_eq!(proof.amz_date, "20260101T010203Z");
        assert_eq!(proof.access_key_id, "ASIA0123456789ABCDEF");
    }

    #[test]
    fn a_proof_for_a_different_key_has_a_different_signature() {
        assert_ne!(proof(b"spki").signature, proof(b"spkj").signature);
    }
}
