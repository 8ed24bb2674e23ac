//! The key binding, which ties evidence to one request.

use crate::framing::FramedDigest;
use crate::names::{Audience, NodeName, Provider, ProviderId};

/// The prefix that separates the key binding from other digests. The provider and the version follow the prefix.
const DOMAIN: &str = "cluster.x-k8s.io/kubelet-authenticator/";

/// The digest that evidence must cover. The digest covers all claims of the request.
///
/// Any holder of a bootstrap token can read every certificate signing request. Without the private key for that
/// request, evidence with this digest is useless. The digest is never sent: the node computes the digest from the
/// request that it creates, and the verifier computes the digest from the request that it receives.
#[derive(derive_more::Debug, Clone, Copy, PartialEq, Eq)]
#[debug("KeyBinding({})", self.to_hex())]
pub struct KeyBinding([u8; 32]);

impl KeyBinding {
    /// Creates the binding of `spki` (DER of the request's `SubjectPublicKeyInfo`) to the cluster, the machine and the
    /// node name.
    ///
    /// `parts` contains additional fields from the provider: for `aws`, the digest of the identity document; for `tpm`,
    /// the challenge.
    pub fn new(
        provider: &Provider,
        audience: &Audience,
        provider_id: &ProviderId,
        node_name: &NodeName,
        spki: &[u8],
        parts: &[&[u8]],
    ) -> Self {
        let prefix = format!("{DOMAIN}{provider}/v1\0");
        let fields = FramedDigest::with_prefix(prefix.as_bytes())
            .field(audience.as_str().as_bytes())
            .field(provider_id.as_str().as_bytes())
            .field(node_name.as_str().as_bytes())
            .field(spki);
        let fields = parts.iter().fold(fields, |digest, part| digest.field(part));
        Self(fields.finish())
    }

    /// The digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The digest in lower-case hexadecimal.
    pub fn to_hex(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(audience: &str, id: &str, name: &str, spki: &[u8], parts: &[&[u8]]) -> KeyBinding {
        KeyBinding::new(
            &Provider::AWS,
            &Audience::parse(audience).unwrap(),
            &ProviderId::parse(id).unwrap(),
            &NodeName::parse(name).unwrap(),
            spki,
            parts,
        )
    }

    #[test]
    fn the_binding_matches_the_documented_wire_format() {
        let mut expected = b"cluster.x-k8s.io/kubelet-authenticator/aws/v1\0".to_vec();
        for field in [
            &b"prod"[..],
            b"aws:///eu-west-1a/i-1",
            b"n1",
            b"spki",
            b"part",
        ] {
            expected.extend([0, 0, 0, u8::try_from(field.len()).unwrap()]);
            expected.extend(field);
        }
        let expected: [u8; 32] = <sha2::Sha256 as sha2::Digest>::digest(expected).into();

        let actual = binding("prod", "aws:///eu-west-1a/i-1", "n1", b"spki", &[b"part"]);

        assert_eq!(actual.as_bytes(), &expected);
        let hex = data_encoding::HEXLOWER.encode(&expected);
        assert_eq!(actual.to_hex(), hex);
        assert_eq!(format!("{actual:?}"), format!("KeyBinding({hex})"));
    }

    #[test]
    fn every_field_changes_the_binding() {
        let valid = binding("prod", "aws:///a/i-1", "n1", b"spki", &[b"p"]);

        for other in [
            binding("test", "aws:///a/i-1", "n1", b"spki", &[b"p"]),
            binding("prod", "aws:///a/i-2", "n1", b"spki", &[b"p"]),
            binding("prod", "aws:///a/i-1", "n2", b"spki", &[b"p"]),
            binding("prod", "aws:///a/i-1", "n1", b"spkj", &[b"p"]),
            binding("prod", "aws:///a/i-1", "n1", b"spki", &[b"q"]),
            binding("prod", "aws:///a/i-1", "n1", b"spki", &[]),
            binding("prod", "aws:///a/i-1", "n1", b"spki", &[b"p", b""]),
        ] {
            assert_ne!(valid, other);
        }
    }

    #[test]
    fn moving_bytes_between_fields_changes_the_binding() {
        assert_ne!(
            binding("prod", "aws:///a/i-1", "n1", b"ab", &[b"c"]),
            binding("prod", "aws:///a/i-1", "n1", b"a", &[b"bc"])
        );
    }
}
