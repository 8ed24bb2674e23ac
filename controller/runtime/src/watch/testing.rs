//! Test access to the decoder for an object in a watch.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use serde::de::DeserializeOwned;

use super::Lenient;

/// The metadata of an object, and the object or the reason why it cannot be decoded.
pub fn lenient<K>(json: &[u8]) -> serde_json::Result<(ObjectMeta, Result<K, String>)>
where
    K: DeserializeOwned + kube::Resource<DynamicType = ()> + 'static,
{
    let read: Lenient<K> = serde_json::from_slice(json)?;
    let metadata = read.meta().clone();
    Ok((metadata, read.object.map_err(|error| error.to_string())))
}
