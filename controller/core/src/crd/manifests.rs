//! The custom resource definitions, in the format that an API server accepts.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;

use super::{
    AWSServiceAccountIdentity, KubeletAuthentication, NodeIdentity, RevokedNodeCredentials,
};

/// All custom resource definitions: first the definitions for the management cluster, then the definition for workload
/// clusters.
pub fn manifests() -> Vec<CustomResourceDefinition> {
    vec![
        prepared(KubeletAuthentication::crd()),
        identity_manifest(),
        prepared(AWSServiceAccountIdentity::crd()),
        workload_manifest(),
    ]
}

/// The definition of [`NodeIdentity`], which a workload cluster without a management cluster also needs.
pub fn identity_manifest() -> CustomResourceDefinition {
    prepared(NodeIdentity::crd())
}

/// The definition of [`RevokedNodeCredentials`], for workload clusters.
pub fn workload_manifest() -> CustomResourceDefinition {
    prepared(RevokedNodeCredentials::crd())
}

/// Serializes the definition as a YAML document, with its separator.
///
/// # Errors
///
/// Returns the error of the serializer. The definitions contain only values that YAML can represent.
pub fn yaml(definition: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(definition).map(|document| format!("---\n{document}"))
}

fn prepared(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        let validation = version.schema.as_mut();
        if let Some(root) = validation.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            prepare(root);
        }
    }
    definition
}

/// Removes `nullable` from every field, so that an API server drops a null before it sets defaults. The rules then do
/// not need to handle nulls. Also joins the lines of descriptions, because `kubectl explain` wraps them. Paragraphs are
/// kept.
fn prepare(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(description) = &mut schema.description {
        let paragraphs: Vec<_> = description
            .split("\n\n")
            .map(|text| text.replace('\n', " "))
            .collect();
        *description = paragraphs.join("\n\n");
    }
    subschemas(schema).for_each(prepare);
}

fn subschemas(schema: &mut JSONSchemaProps) -> impl Iterator<Item = &mut JSONSchemaProps> {
    let properties = schema.properties.iter_mut().flatten().map(|(_, one)| one);
    let items = match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(items.as_mut()),
        Some(JSONSchemaPropsOrArray::Schemas(_)) | None => None,
    };
    let values = match &mut schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(values)) => Some(values.as_mut()),
        Some(JSONSchemaPropsOrBool::Bool(_)) | None => None,
    };
    properties.chain(items).chain(values)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_manifest_files_match_the_types() {
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
        // The list of file names in kustomization.yaml must also match.
        let list = fs::read_to_string(folder.join("kustomization.yaml")).unwrap();
        let listed = |one: &CustomResourceDefinition| {
            list.contains(&format!("- {}.yaml\n", one.spec.names.plural))
        };
        assert!(all.iter().all(listed), "{list}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), all.len() + 1);
    }

    #[test]
    fn every_field_has_a_limit_and_an_explanation() {
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
                let path = format!("{path}.{name}");
                assert!(property.description.is_some(), "{path} is not explained");
                check(&path, property);
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
