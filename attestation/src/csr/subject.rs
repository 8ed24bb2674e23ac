//! The subject of a request for a kubelet client certificate.

use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::asn1::{ObjectIdentifier, PrintableStringRef, Utf8StringRef};
use x509_cert::der::{Tag, Tagged};
use x509_cert::name::Name;

use crate::csr::oid;
use crate::ensure;
use crate::names::{NODE_USER_PREFIX, NODES_GROUP, NodeName};

/// A subject that is not exactly `O=system:nodes, CN=system:node:<name>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSubject {
    /// The organization is missing or different, or the subject has several organizations.
    #[error("the subject's organization is not exactly {NODES_GROUP}")]
    Organization,
    /// The common name is missing, or has a different prefix.
    #[error("the subject's common name does not begin with '{NODE_USER_PREFIX}'")]
    CommonNamePrefix,
    /// The text after the prefix is not a node name.
    #[error("the subject's common name does not contain a valid node name")]
    NodeName,
    /// The subject has an unexpected attribute order or string type, or a part of the subject has several values.
    #[error("the subject is not in the required form")]
    NotCanonical,
    /// The subject contains an attribute other than organization and common name.
    #[error("the subject contains an attribute other than organization and common name")]
    ExtraAttribute,
}

/// Returns the node name in the subject of a request.
///
/// Two parsers must not read different names from the same subject. So only one form is accepted: two parts with one
/// value each, the organization first, as `UTF8String` or `PrintableString`.
pub fn node_name(subject: &Name) -> Result<NodeName, InvalidSubject> {
    let mut organizations = Vec::new();
    let mut common_names = Vec::new();
    for attribute in subject.iter() {
        match attribute.oid {
            oid::ORGANIZATION => organizations.push(text(attribute)?),
            oid::COMMON_NAME => common_names.push(text(attribute)?),
            _ => return Err(InvalidSubject::ExtraAttribute),
        }
    }
    ensure!(organizations == [NODES_GROUP], InvalidSubject::Organization);
    let name = match common_names.as_slice() {
        [name] => name
            .strip_prefix(NODE_USER_PREFIX)
            .ok_or(InvalidSubject::CommonNamePrefix)?,
        [] => return Err(InvalidSubject::CommonNamePrefix),
        _ => return Err(InvalidSubject::NotCanonical),
    };
    let parts: Vec<Vec<ObjectIdentifier>> = subject
        .iter_rdn()
        .map(|part| part.iter().map(|attribute| attribute.oid).collect())
        .collect();
    if parts != [[oid::ORGANIZATION], [oid::COMMON_NAME]] {
        return Err(InvalidSubject::NotCanonical);
    }
    NodeName::parse(name).map_err(|_| InvalidSubject::NodeName)
}

fn text(attribute: &AttributeTypeAndValue) -> Result<&str, InvalidSubject> {
    let value = &attribute.value;
    let text = if value.tag() == Tag::Utf8String {
        value
            .decode_as::<Utf8StringRef<'_>>()
            .map(|text| text.as_str())
    } else if value.tag() == Tag::PrintableString {
        value
            .decode_as::<PrintableStringRef<'_>>()
            .map(|text| text.as_str())
    } else {
        return Err(InvalidSubject::NotCanonical);
    };
    text.map_err(|_| InvalidSubject::NotCanonical)
}

#[cfg(test)]
mod tests;
