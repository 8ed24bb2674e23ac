//! Objects of which one that cannot be read does not keep all others from being read.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde_json::Value;

/// A custom resource as it was answered.
///
/// A list is read whole or not at all. A schema lets more pass than its Rust type reads: a word of a
/// later version, a time that the API server takes for one. Whoever may write one object could keep
/// a controller from all.
#[derive(Debug, Clone)]
pub(crate) struct Lenient<K> {
    metadata: ObjectMeta,
    /// The object; `None` where it is not what its type says.
    pub(crate) object: Option<K>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let metadata = value.get("metadata").unwrap_or(&Value::Null);
        let metadata = ObjectMeta::deserialize(metadata).map_err(D::Error::custom)?;
        Ok(Self {
            metadata,
            object: K::deserialize(value).ok(),
        })
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Lenient<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::KubeletAuthentication;

    #[test]
    fn one_object_that_cannot_be_read_keeps_no_other_from_being_read() {
        let object = |name: &str, adoption: &str| {
            json!({
                "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
                "kind": "KubeletAuthentication",
                "metadata": {"name": name, "namespace": "a"},
                "spec": {
                    "clusterName": name, "authorizedAttestors": ["aws"], "adoption": adoption,
                },
            })
        };
        let list = json!([object("one", "WordOfALaterVersion"), object("two", "Allow")]);

        let list: Vec<Lenient<KubeletAuthentication>> = serde_json::from_value(list).unwrap();

        assert!(list[0].object.is_none());
        assert_eq!(list[0].meta().name.as_deref(), Some("one"));
        assert!(list[1].object.is_some());
    }
}
