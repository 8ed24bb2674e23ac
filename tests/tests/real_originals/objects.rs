//! The objects of a case, in the form in which the controller's watches pass them to the resolution.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use node_attestation_aws::tenancy::{Identity, IdentityKind, Namespace, Objects, access_key};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The namespace of Cluster API Provider AWS.
pub const CAPA_NAMESPACE: &str = "capa-system";

/// The namespace of AWS Controllers for Kubernetes.
pub const ACK_NAMESPACE: &str = "ack-system";

/// The objects of a case.
pub fn objects(stored: &[Value]) -> Objects {
    let mut objects = Objects {
        capa_namespace: CAPA_NAMESPACE.to_owned(),
        ..Objects::default()
    };
    for object in stored {
        put(&mut objects, object);
    }
    objects
}

/// A field, or its default if it is missing.
pub fn read<T: DeserializeOwned + Default>(value: &Value) -> T {
    if value.is_null() {
        T::default()
    } else {
        T::deserialize(value).unwrap()
    }
}

fn put(objects: &mut Objects, object: &Value) {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap();
    let is_in = |namespace: &str| metadata["namespace"] == namespace;
    match object["kind"].as_str().unwrap() {
        "Namespace" => {
            let (labels, annotations) = (read(&metadata["labels"]), read(&metadata["annotations"]));
            let namespace = Namespace::new(&labels, &annotations);
            objects.namespaces.insert(name.to_owned(), namespace);
        }
        "Secret" if is_in(CAPA_NAMESPACE) => {
            let data: BTreeMap<String, String> = read(&object["data"]);
            let data: BTreeMap<&str, Vec<u8>> = data
                .iter()
                .map(|(key, value)| (&**key, BASE64_STANDARD.decode(value).unwrap()))
                .collect();
            let data = data.iter().map(|(key, value)| (*key, &**value)).collect();
            let key = access_key(&data).map(Arc::new);
            objects.access_keys.insert(name.to_owned(), key);
        }
        "ConfigMap" if is_in(ACK_NAMESPACE) => {
            objects.put_config_map(name, Some(read(&object["data"])));
        }
        "IAMRoleSelector" => {
            objects.put_role_selector(name, Some(&object["spec"].to_string()));
        }
        "Secret" | "ConfigMap" => {}
        kind => {
            let kind = IdentityKind::named(kind).unwrap_or_else(|| panic!("{object:#}"));
            let identity = Identity::parse(kind, &object["spec"].to_string());
            objects.put_identity("", name, identity);
        }
    }
}
