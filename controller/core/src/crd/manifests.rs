//! The definitions of our resources, as an API server takes them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;

use super::{KubeletAuthentication, NodeIdentity, RevokedNodeCredentials};

/// The definitions for the management cluster, and then the one for workload clusters.
pub fn manifests() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        KubeletAuthentication::crd(),
        NodeIdentity::crd(),
        RevokedNodeCredentials::crd(),
    ];
    for version in all.iter_mut().flat_map(|one| &mut one.spec.versions) {
        let validation = version.schema.as_mut();
        if let Some(root) = validation.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            without_null(root);
        }
    }
    all
}

/// Takes `nullable` off every field: an API server then drops a null before it sets defaults, and
/// no rule has to think of it.
fn without_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    for property in schema.properties.iter_mut().flatten() {
        without_null(property.1);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        without_null(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        without_null(values);
    }
}
