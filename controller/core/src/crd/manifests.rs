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

/// The definition as a YAML document, with its separator.
///
/// # Errors
///
/// None that is known: the types have nothing that YAML has not.
pub fn yaml(definition: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(definition).map(|document| format!("---\n{document}"))
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_files_have_the_definitions_that_the_types_have() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/crds");
        let all = manifests();
        let expected = || {
            all.iter().map(|one| {
                let path = folder.join(format!("{}.yaml", one.spec.names.plural));
                (path, yaml(one).unwrap())
            })
        };
        if std::env::var_os("UPDATE").is_some() {
            for (path, document) in expected() {
                fs::write(path, document).unwrap();
            }
        }

        for (path, document) in expected() {
            assert!(
                fs::read_to_string(&path).unwrap_or_default() == document,
                "{} is stale: run this test with UPDATE=1",
                path.display()
            );
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), all.len());
    }

    #[test]
    fn what_is_limited_nowhere_is_in_no_schema() {
        fn check(path: &str, schema: &JSONSchemaProps) {
            let kind = schema.type_.as_deref().unwrap_or_default();
            let limited = match kind {
                "string" => {
                    schema.max_length.is_some()
                        || schema.enum_.is_some()
                        || schema.format.as_deref() == Some("date-time")
                }
                "array" => schema.max_items.is_some(),
                "object" => {
                    schema.additional_properties.is_none() || schema.max_properties.is_some()
                }
                _ => true,
            };
            assert!(limited, "{path} has no limit");
            assert_ne!(schema.nullable, Some(true), "{path} may be null");
            for (name, property) in schema.properties.iter().flatten() {
                check(&format!("{path}.{name}"), property);
            }
            if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
                check(&format!("{path}[]"), items);
            }
            if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
                check(&format!("{path}{{}}"), values);
            }
        }

        for one in manifests() {
            for version in &one.spec.versions {
                let schema = version.schema.as_ref().unwrap();
                check(
                    &one.spec.names.kind,
                    schema.open_api_v3_schema.as_ref().unwrap(),
                );
            }
        }
    }
}
