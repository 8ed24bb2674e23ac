//! The identity of the instance, from its signed identity document.

use kubelet_attestation::ensure;
use kubelet_attestation::evidence::aws::{cms, is_region};
use kubelet_attestation::names::ProviderId;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::imds;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// The hint if a response does not come from AWS.
pub(crate) const NOT_AWS: &str =
    "check whether a proxy or an emulator answers instead of the instance metadata service";

/// The identity of the instance, and the signed message that contains it.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The signed message, unchanged.
    pub(crate) rsa2048: String,
    /// The SHA-256 digest of the bytes that the signature covers.
    pub(crate) digest: [u8; 32],
    pub(crate) instance_id: String,
    pub(crate) account: String,
    pub(crate) region: String,
    pub(crate) zone: String,
    /// `aws:///<zone>/<instance>`
    pub(crate) provider_id: ProviderId,
}

/// The fields of the document that the node needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    /// The account ID, which is used only in output for users.
    #[serde(default)]
    account_id: String,
    instance_id: String,
    availability_zone: String,
    region: String,
}

impl Identity {
    /// Parses the metadata's `rsa2048`.
    pub(crate) fn parse(rsa2048: &str) -> Result<Self, Failure> {
        let invalid = |why: String| {
            let what = "the signed identity document of the instance is invalid";
            Failure::new(Code::EvidenceInvalid, format!("{what}: {why}"), NOT_AWS)
        };
        let bytes = cms::content(rsa2048)
            .map_err(|why| invalid(format!("it is not a CMS message with content: {why}")))?;
        let document: Document = serde_json::from_slice(&bytes).map_err(|error| {
            invalid(format!(
                "the document is not an instance identity document in JSON: {error}"
            ))
        })?;
        let invalid = |field| invalid(format!("the document's {field} is invalid"));
        ensure!(is_instance_id(&document.instance_id), invalid("instanceId"));
        ensure!(is_region(&document.region), invalid("region"));
        let (zone, id) = (&document.availability_zone, &document.instance_id);
        let provider_id = imds::provider_id(zone, id).ok_or_else(|| invalid("availabilityZone"))?;
        Ok(Self {
            rsa2048: rsa2048.to_owned(),
            digest: Sha256::digest(&bytes).into(),
            instance_id: document.instance_id,
            account: document.account_id,
            region: document.region,
            zone: document.availability_zone,
            provider_id,
        })
    }
}

/// `i-` and 8 or 17 hexadecimal digits.
fn is_instance_id(id: &str) -> bool {
    id.strip_prefix("i-").is_some_and(|digits| {
        matches!(digits.len(), 8 | 17)
            && digits
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    const DOCUMENT: &str = "{\n  \"accountId\" : \"123456789012\",\n  \
        \"availabilityZone\" : \"eu-west-1a\",\n  \"instanceId\" : \"i-0123456789abcdef0\",\n  \
        \"region\" : \"eu-west-1\",\n  \"version\" : \"2017-09-30\"\n}";

    fn element(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
        let content = contents.concat();
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        let header = match content.len() {
            0..0x80 => vec![tag, length[1]],
            0x80..0x100 => vec![tag, 0x81, length[1]],
            _ => vec![tag, 0x82, length[0], length[1]],
        };
        [header, content].concat()
    }

    /// A CMS message with this content and no signature, in DER.
    fn message(content: &[u8]) -> Vec<u8> {
        let content = element(0xa0, &[&element(0x04, &[content])]);
        let content = element(
            0x30,
            &[b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01", &content],
        );
        let signed_data = element(0x30, &[b"\x02\x01\x01", &element(0x31, &[]), &content]);
        let kind = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
        element(0x30, &[kind, &element(0xa0, &[&signed_data])])
    }

    fn rsa2048(document: &str) -> String {
        let base64 = STANDARD.encode(message(document.as_bytes()));
        let (first, second) = base64.split_at(64);
        format!("{first}\n{second}")
    }

    /// The identity of `i-0123456789abcdef0` in `eu-west-1a`.
    pub(crate) fn identity() -> Identity {
        Identity::parse(&rsa2048(DOCUMENT)).unwrap()
    }

    #[test]
    fn the_instance_id_and_region_come_from_the_signed_document() {
        let identity = identity();

        assert_eq!(
            identity.provider_id.as_str(),
            "aws:///eu-west-1a/i-0123456789abcdef0"
        );
        assert_eq!(identity.region, "eu-west-1");
        assert_eq!(identity.digest, <[u8; 32]>::from(Sha256::digest(DOCUMENT)));
        assert_eq!(identity.rsa2048, rsa2048(DOCUMENT));
    }

    #[test]
    fn the_error_for_a_malformed_document_field_names_it() {
        for (field, valid, other) in [
            ("instanceId", "i-0123456789abcdef0", "i-0123456789abcdeF0"),
            ("instanceId", "i-0123456789abcdef0", "i-012345678"),
            ("instanceId", "i-0123456789abcdef0", "../../x"),
            ("region", "\"eu-west-1\"", "\"eu-west-1.evil.test\""),
            ("availabilityZone", "eu-west-1a", "eu west"),
            ("availabilityZone", "eu-west-1a", ""),
        ] {
            let document = DOCUMENT.replacen(valid, other, 1);
            let error = Identity::parse(&rsa2048(&document)).unwrap_err();
            assert_eq!(
                error.what(),
                format!(
                    "the signed identity document of the instance is invalid: the \
                     document's {field} is invalid"
                ),
                "{other}"
            );
        }
    }

    #[test]
    fn an_invalid_identity_document_is_reported_with_its_reason() {
        let other_json = rsa2048("{\"instanceId\": 1}");
        for (text, words) in [
            (
                "<html>",
                "it is not a CMS message with content: it is not base64",
            ),
            (
                "PGh0bWw+",
                "it is not a CMS message with content: it is truncated",
            ),
            (&other_json, "the document is not an instance identity"),
        ] {
            let error = Identity::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
