//! The namespaces whose clusters are allowed to use an identity: `spec.allowedNamespaces`.
//!
//! The rules match the code of Cluster API Provider AWS. If its documentation differs, the code takes precedence:
//! `selector: {}` without a list allows every namespace, because the API server stores an empty `allowedNamespaces` in
//! this form.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Selector, SelectorExt as _};
use kubelet_attestation::names::is_dns_subdomain;
use serde::Deserialize;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The field `spec.allowedNamespaces` in an identity. A missing field and an empty field have different meanings.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct AllowedNamespaces {
    /// Names of namespaces. They are not patterns.
    pub list: Option<Vec<String>>,
    /// A selector on namespace labels.
    pub selector: Option<LabelSelector>,
}

/// The rule that allows a namespace to use an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Permission {
    /// Every namespace is allowed.
    #[display("allowedNamespaces is empty: every namespace is allowed")]
    Everybody,
    /// The list contains the namespace's name.
    #[display("allowedNamespaces.list contains the namespace")]
    Listed,
    /// The selector matches the namespace's labels.
    #[display("allowedNamespaces.selector selects the namespace")]
    Selected,
    /// The identity belongs to the namespace.
    #[display("it is in the Cluster's namespace")]
    OwnNamespace,
}

/// The reason why a label selector is invalid. Kubernetes also rejects such a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelector {
    /// The operator is unknown.
    #[error("{0:?} is not a label selector operator")]
    Operator(String),
    /// `In` or `NotIn` has no values. `NotIn` without values would select everything.
    #[error("the operator {operator} of label {key:?} requires values")]
    ValuesMissing {
        /// The operator.
        operator: String,
        /// The label's key.
        key: String,
    },
    /// `Exists` or `DoesNotExist` has values.
    #[error("the operator {operator} of label {key:?} does not accept values")]
    ValuesGiven {
        /// The operator.
        operator: String,
        /// The label's key.
        key: String,
    },
    /// The key is not a label key.
    #[error("{0:?} is not a valid label key")]
    Key(String),
    /// The value is not a label value.
    #[error("{0:?} is not a valid label value")]
    Value(String),
}

impl AllowedNamespaces {
    /// Returns the rule that allows the clusters in a namespace to use the identity. `None` if they are not allowed to
    /// use it. `labels` are the labels of the namespace, or `None` if the namespace does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the selector is invalid and the list does not contain the name.
    pub fn permits(
        &self,
        namespace: &str,
        labels: Option<&Labels>,
    ) -> Result<Option<Permission>, InvalidSelector> {
        let selector = self.selector.clone().unwrap_or_default();
        if self.list.is_none() && selector == LabelSelector::default() {
            return Ok(Some(Permission::Everybody));
        }
        if namespace.is_empty() {
            return Ok(None);
        }
        if self.list.iter().flatten().any(|name| name == namespace) {
            return Ok(Some(Permission::Listed));
        }
        let selector = checked(selector)?;
        let is_selected =
            !selector.selects_all() && labels.is_some_and(|labels| selector.matches(labels));
        Ok(is_selected.then_some(Permission::Selected))
    }
}

/// The conversion in kube-rs accepts `NotIn` without values and `Exists` with values. Kubernetes'
/// `LabelSelectorAsSelector` rejects both. `NotIn` without values would select everything.
fn checked(selector: LabelSelector) -> Result<Selector, InvalidSelector> {
    for (key, value) in selector.match_labels.iter().flatten() {
        is_key(key)?;
        is_value(value)?;
    }
    for requirement in selector.match_expressions.iter().flatten() {
        check(requirement)?;
    }
    let operator = |error: kube::core::ParseExpressionError| InvalidSelector::Operator(error.0);
    selector.try_into().map_err(operator)
}

fn check(requirement: &LabelSelectorRequirement) -> Result<(), InvalidSelector> {
    let LabelSelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    let values = values.as_deref().unwrap_or_default();
    let named = || (operator.clone(), key.clone());
    match (&**operator, values) {
        ("In" | "NotIn", []) => {
            let (operator, key) = named();
            return Err(InvalidSelector::ValuesMissing { operator, key });
        }
        ("Exists" | "DoesNotExist", [_, ..]) => {
            let (operator, key) = named();
            return Err(InvalidSelector::ValuesGiven { operator, key });
        }
        ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
        _ => return Err(InvalidSelector::Operator(operator.clone())),
    }
    is_key(key)?;
    values.iter().try_for_each(|value| is_value(value))
}

/// Checks that this is a label key: a name of at most 63 characters, with an optional prefix that consists of a DNS
/// subdomain and a slash.
fn is_key(key: &str) -> Result<(), InvalidSelector> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_prefix = prefix.is_none_or(is_dns_subdomain);
    if is_prefix && !name.is_empty() && is_name(name) {
        Ok(())
    } else {
        Err(InvalidSelector::Key(key.to_owned()))
    }
}

fn is_value(value: &str) -> Result<(), InvalidSelector> {
    if value.is_empty() || is_name(value) {
        Ok(())
    } else {
        Err(InvalidSelector::Value(value.to_owned()))
    }
}

fn is_name(name: &str) -> bool {
    let ends = [name.chars().next(), name.chars().next_back()];
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    name.len() <= 63
        && name.chars().all(is_inner)
        && ends.iter().flatten().all(char::is_ascii_alphanumeric)
}

#[cfg(test)]
mod tests;
