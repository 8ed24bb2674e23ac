//! `IAMRoleSelector` in AWS Controllers for Kubernetes, the successor of CARM.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::allowed_namespaces::Labels;

/// The group of the resource that represents a cluster's instances: `Instance` in the EC2 controller.
const GROUP: &str = "ec2.services.k8s.aws";
const VERSION: &str = "v1alpha1";
const KIND: &str = "Instance";

/// The `spec` of an `IAMRoleSelector`. Unknown fields are rejected, because they could restrict the match.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoleSelector {
    /// The role's ARN.
    #[serde(default)]
    pub arn: String,
    /// The namespaces. An empty selector matches all namespaces.
    #[serde(default)]
    pub namespace_selector: NamespaceSelector,
    /// The resource types, one of which must match. An empty list matches all resource types.
    #[serde(default)]
    pub resource_type_selector: Option<Vec<ResourceType>>,
    /// The labels of the resource. An empty selector matches all resources.
    #[serde(default)]
    pub resource_label_selector: MatchLabels,
}

/// The namespaces that a selector matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamespaceSelector {
    /// The names of the namespaces.
    #[serde(default)]
    pub names: Option<Vec<String>>,
    /// Their labels. Both the names and the labels must match.
    #[serde(default)]
    pub label_selector: MatchLabels,
}

/// Labels with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MatchLabels {
    /// The labels, all of which must match.
    #[serde(default)]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// A resource type. An empty field matches every value.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceType {
    /// The API group.
    #[serde(default)]
    pub group: String,
    /// The API version.
    #[serde(default)]
    pub version: String,
    /// The kind of the resource.
    #[serde(default)]
    pub kind: String,
}

impl RoleSelector {
    /// Whether the selector matches the instances of a cluster in this namespace.
    pub(super) fn matches(
        &self,
        namespace: &str,
        labels: Option<&Labels>,
        of_resource: &Labels,
    ) -> bool {
        let names = self.namespace_selector.names.as_deref().unwrap_or_default();
        let is_named = names.is_empty() || names.iter().any(|name| name == namespace);
        let types = self.resource_type_selector.as_deref().unwrap_or_default();
        let none = Labels::new();
        is_named
            && self
                .namespace_selector
                .label_selector
                .matches(labels.unwrap_or(&none))
            && (types.is_empty() || types.iter().any(ResourceType::matches))
            && self.resource_label_selector.matches(of_resource)
    }

    /// Checks the selector as the runtime of AWS Controllers for Kubernetes does.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let names = self.namespace_selector.names.as_deref().unwrap_or_default();
        let types = self.resource_type_selector.as_deref().unwrap_or_default();
        let selectors = [
            &self.namespace_selector.label_selector,
            &self.resource_label_selector,
        ];
        if names.iter().any(String::is_empty) {
            return Err("a namespace name is empty");
        }
        if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            return Err("a namespace name is repeated");
        }
        if types.contains(&ResourceType::default()) {
            return Err("a resource type is empty");
        }
        if types.iter().collect::<BTreeSet<_>>().len() < types.len() {
            return Err("a resource type is repeated");
        }
        let mut keys = selectors
            .into_iter()
            .flat_map(|selector| selector.match_labels.iter().flatten());
        if keys.any(|(key, _)| key.is_empty()) {
            return Err("a label key is empty");
        }
        Ok(())
    }
}

impl MatchLabels {
    fn matches(&self, labels: &Labels) -> bool {
        let mut wanted = self.match_labels.iter().flatten();
        wanted.all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl ResourceType {
    fn matches(&self) -> bool {
        let is = |wanted: &str, found| wanted.is_empty() || wanted == found;
        is(&self.group, GROUP) && is(&self.version, VERSION) && is(&self.kind, KIND)
    }
}
