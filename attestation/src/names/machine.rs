//! Names of machines and clusters.

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::text::{as_text, parsed_from_text};

/// The prefix of node user names.
pub const NODE_USER_PREFIX: &str = "system:node:";

/// The group of all nodes, and the organization in a node certificate.
pub const NODES_GROUP: &str = "system:nodes";

/// The maximum length of a DNS-1123 subdomain, as Kubernetes validates names.
const MAX_NODE_NAME_LEN: usize = 253;

/// The maximum length of a provider ID. The limit keeps claims small. All known clouds have shorter provider IDs.
const MAX_PROVIDER_ID_LEN: usize = 512;

/// The maximum length of an audience: long enough for a digest with a prefix, or a URL.
const MAX_AUDIENCE_LEN: usize = 256;

/// A string that is not a valid name of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The text is not a node name.
    #[error(
        "a node name must have at most {MAX_NODE_NAME_LEN} characters: lower-case letters, digits, '-' and '.'; each \
         part must begin and end with a letter or digit"
    )]
    NodeName,
    /// The text is not a provider ID.
    #[error(
        "a provider ID must have the form <provider>://<path>, with at most {MAX_PROVIDER_ID_LEN} printable ASCII \
         characters and without spaces"
    )]
    ProviderId,
    /// The text is not an audience.
    #[error(
        "an audience must have 1 to {MAX_AUDIENCE_LEN} printable ASCII characters, without spaces"
    )]
    Audience,
}

/// The name of a Node: a DNS-1123 subdomain.
#[derive(derive_more::Display, Serialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeName(String);

impl NodeName {
    /// Parses a node name. Does not trim the text or change its case.
    pub fn parse(name: &str) -> Result<Self, InvalidName> {
        if is_dns_subdomain(name) {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidName::NodeName)
        }
    }

    /// Parses the name in a node's user name, `system:node:<name>`.
    pub fn from_user_name(user: &str) -> Option<Self> {
        Self::parse(user.strip_prefix(NODE_USER_PREFIX)?).ok()
    }

    /// The node's user name, which is also the common name of its certificate: `system:node:<name>`.
    pub fn user_name(&self) -> String {
        format!("{NODE_USER_PREFIX}{}", self.0)
    }
}

/// Whether `text` is a DNS-1123 subdomain, the form of most object names.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_NODE_NAME_LEN && text.split('.').all(is_dns_label)
}

/// Whether the text has the characters of a DNS-1123 label. The length is not checked.
pub fn is_dns_label(label: &str) -> bool {
    let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = label.as_bytes();
    bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|b| alphanumeric(b) || *b == b'-')
}

/// The ID of a machine in its infrastructure, as in `Node.spec.providerID`.
#[derive(derive_more::Display, Serialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProviderId(String);

impl ProviderId {
    /// Parses a provider ID. Does not trim the text or change its case.
    pub fn parse(id: &str) -> Result<Self, InvalidName> {
        let has_parts = id.split_once("://").is_some_and(|(provider, path)| {
            !provider.is_empty()
                && provider
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
                && !path.trim_matches('/').is_empty()
        });
        if has_parts && id.len() <= MAX_PROVIDER_ID_LEN && is_graphic(id) {
            Ok(Self(id.to_owned()))
        } else {
            Err(InvalidName::ProviderId)
        }
    }
}

/// The identifier of the cluster for which evidence is created.
#[derive(derive_more::Display, Serialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Audience(String);

impl Audience {
    /// Parses an audience. Does not trim the text or change its case.
    pub fn parse(audience: &str) -> Result<Self, InvalidName> {
        if audience.is_empty() || audience.len() > MAX_AUDIENCE_LEN || !is_graphic(audience) {
            return Err(InvalidName::Audience);
        }
        Ok(Self(audience.to_owned()))
    }

    /// The default audience of a cluster, derived from the DER of its CA certificate.
    pub fn of_ca(certificate_der: &[u8]) -> Self {
        let digest = Sha256::digest(certificate_der);
        let digest = data_encoding::HEXLOWER.encode(&digest);
        Self(format!("ca-sha256:{digest}"))
    }
}

fn is_graphic(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_graphic())
}

as_text!(NodeName, ProviderId, Audience);
parsed_from_text!(NodeName, ProviderId, Audience);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_are_dns_subdomains() {
        for name in [
            "n1",
            "ip-10-0-0-1.eu-west-1.compute.internal",
            "0",
            "a-b",
            &"a".repeat(253),
        ] {
            assert_eq!(NodeName::parse(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn an_invalid_node_name_is_refused() {
        for name in [
            "",
            "N1",
            "n1.",
            ".n1",
            "-n1",
            "n1-",
            "a..b",
            "n_1",
            "n1\n",
            "n1/x",
            "n\u{e4}",
            "n1\0",
            &"a".repeat(254),
        ] {
            assert_eq!(
                NodeName::parse(name),
                Err(InvalidName::NodeName),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_user_name_contains_the_node_name() {
        let name = NodeName::from_user_name("system:node:n1").unwrap();

        assert_eq!(name.user_name(), "system:node:n1");
        for user in ["system:node:", "system:nodes:n1", "n1", "system:node:N1"] {
            assert_eq!(NodeName::from_user_name(user), None, "{user:?}");
        }
    }

    #[test]
    fn provider_ids_name_a_provider_and_a_machine() {
        for id in [
            "aws:///eu-west-1a/i-0123456789abcdef0",
            "tpm://00ff",
            "kind://docker/c/n",
            &format!("a://{}", "x".repeat(508)),
        ] {
            assert_eq!(ProviderId::parse(id).unwrap().as_str(), id);
        }
        for id in [
            "",
            "aws",
            "://x",
            "aws://",
            "aws:///",
            "a b://x",
            "aws:///a b",
            "aws:///\u{e9}",
            &format!("a://{}", "x".repeat(509)),
        ] {
            assert_eq!(
                ProviderId::parse(id),
                Err(InvalidName::ProviderId),
                "{id:?}"
            );
        }
    }

    #[test]
    fn the_audience_of_a_cluster_is_its_ca_digest() {
        let empty = "ca-sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

        assert_eq!(Audience::of_ca(b"").as_str(), empty);
        assert_eq!(Audience::parse(empty).unwrap(), Audience::of_ca(b""));
        let longest = "a".repeat(256);
        assert_eq!(Audience::parse(&longest).unwrap().as_str(), longest);
        for audience in ["", "a b", "\u{e9}", &"a".repeat(257)] {
            assert_eq!(
                Audience::parse(audience),
                Err(InvalidName::Audience),
                "{audience:?}"
            );
        }
    }
}
