//! `IAMRoleSelector` of AWS Controllers for Kubernetes, which follows CARM.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::allowed_namespaces::Labels;

/// The group of the resource that stands for the instances of a cluster: `Instance` of the controller for EC2.
const GROUP: &str = "ec2.services.k8s.aws";
const VERSION: &str = "v1alpha1";
const KIND: &str = "Instance";

/// `spec` of an `IAMRoleSelector`. A field that is not known could narrow what it matches.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoleSelector {
    /// The role's ARN.
    #[serde(default)]
    pub arn: String,
    /// The namespaces; every one if it is empty.
    #[serde(default)]
    pub namespace_selector: NamespaceSelector,
    /// The types of resources, one of which must match; every one if it is empty.
    #[serde(default)]
    pub resource_type_selector: Option<Vec<ResourceType>>,
    /// The labels of the resource; all if it is empty.
    #[serde(default)]
    pub resource_label_selector: MatchLabels,
}

/// The namespaces of a selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamespaceSelector {
    /// Their names.
    #[serde(default)]
    pub names: Option<Vec<String>>,
    /// Their labels, which must match too.
    #[serde(default)]
    pub label_selector: MatchLabels,
}

/// Labels with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MatchLabels {
    /// All must match.
    #[serde(default)]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// A type of resources. An empty field matches anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceType {
    /// Its group.
    #[serde(default)]
    pub group: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Its kind.
    #[serde(default)]
    pub kind: String,
}

impl RoleSelector {
    /// Whether it matches the instances of a cluster in this namespace.
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

    /// As the runtime of AWS Controllers for Kubernetes checks it.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let names = self.namespace_selector.names.as_deref().unwrap_or_default();
        let types = self.resource_type_selector.as_deref().unwrap_or_default();
        let selectors = [
            &self.namespace_selector.label_selector,
            &self.resource_label_selector,
        ];
        if names.iter().any(String::is_empty) {
            return Err("a name of a namespace is empty");
        }
        if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            return Err("a name of a namespace is repeated");
        }
        if types.contains(&ResourceType::default()) {
            return Err("a type of resources is empty");
        }
        if types.iter().collect::<BTreeSet<_>>().len() < types.len() {
            return Err("a type of resources is repeated");
        }
        let mut keys = selectors
            .into_iter()
            .flat_map(|selector| selector.match_labels.iter().flatten());
        if keys.any(|(key, _)| key.is_empty()) {
            return Err("the key of a label is empty");
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
