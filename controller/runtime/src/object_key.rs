//! The key of a namespaced object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::ensure;

/// The namespace and the name of an object.
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[display("{namespace}/{name}")]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// Creates the key of the object with this name in this namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of the object with this metadata. `None` if the name or the namespace is missing.
    pub(crate) fn of(metadata: &ObjectMeta) -> Option<Self> {
        Some(Self {
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
        })
    }
}

/// The text is not the key of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be NAMESPACE/NAME")]
#[non_exhaustive]
pub struct InvalidObjectKey;

impl std::str::FromStr for ObjectKey {
    type Err = InvalidObjectKey;

    fn from_str(text: &str) -> Result<Self, InvalidObjectKey> {
        let (namespace, name) = text.split_once('/').ok_or(InvalidObjectKey)?;
        let is_valid = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
        ensure!(is_valid, InvalidObjectKey);
        Ok(Self::new(namespace, name))
    }
}
