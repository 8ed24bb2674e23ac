//! The attestors that a Cluster authorizes by itself.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::ensure;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The annotation of a Cluster with the attestors that it authorizes, separated by commas.
const ANNOTATION: &str = "attestation.cluster.x-k8s.io/authorized-attestors";

/// The variable of a Cluster's topology with the same.
const VARIABLE: &str = "kubeletAuthentication";

/// The most that is read, in bytes: eight names of 32, which a `KubeletAuthentication` has at most,
/// and room for the API server to say what is wrong with more.
const MAX_LEN: usize = 1024;

/// The attestors that a Cluster authorizes by itself, by its annotation or a variable of its
/// topology.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OwnAttestors {
    /// No annotation, and no enabled variable.
    #[default]
    Unset,
    /// These names, in whatever form.
    Named(Vec<String>),
    /// Unknown attestors, for this reason.
    Invalid(InvalidOwnAttestors),
}

/// The Cluster does not say which attestors it authorizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOwnAttestors {
    /// Annotation and variable differ.
    #[error(
        "the annotation {ANNOTATION} and the variable {VARIABLE} authorize different attestors"
    )]
    Contradictory,
    /// The variable has another form.
    #[error(
        "the variable {VARIABLE} is not of the form {{enabled: BOOLEAN, authorizedAttestors: \
         [STRING, ..]}}"
    )]
    Malformed,
    /// The names are too long, or too many.
    #[error("the attestors are longer than {MAX_LEN} bytes")]
    TooLong,
}

/// The part of a Cluster's topology that is read.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::capi) struct Topology {
    variables: Option<Vec<Variable>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Variable {
    name: Option<String>,
    /// Any JSON; only the value of our variable is parsed.
    value: Option<Box<RawValue>>,
}

/// The value of our variable.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Setting {
    enabled: bool,
    authorized_attestors: Vec<String>,
}

impl OwnAttestors {
    pub(super) fn of(metadata: &ObjectMeta, topology: Option<Topology>) -> Self {
        let annotation = metadata.annotations.as_ref();
        let annotation = annotation.and_then(|all| all.get(ANNOTATION));
        let variables = topology.and_then(|topology| topology.variables);
        let variables = variables.unwrap_or_default().into_iter();
        let named = annotation.map(|text| annotated(text)).into_iter().chain(
            variables
                .filter(|variable| variable.name.as_deref() == Some(VARIABLE))
                .filter_map(|variable| enabled(&variable.value?).transpose()),
        );
        let agreed = |known: Result<Vec<String>, _>, other: Result<Vec<String>, _>| {
            let (known, other) = (known?, other?);
            ensure!(are_same(&known, &other), InvalidOwnAttestors::Contradictory);
            Ok(known)
        };
        match named.reduce(agreed) {
            None => Self::Unset,
            Some(Ok(attestors)) => Self::Named(attestors),
            Some(Err(invalid)) => Self::Invalid(invalid),
        }
    }
}

/// Whether two lists authorize the same attestors.
pub(crate) fn are_same(some: &[String], others: &[String]) -> bool {
    let [some, others] = [some, others].map(|all| all.iter().collect::<BTreeSet<_>>());
    some == others
}

fn annotated(text: &str) -> Result<Vec<String>, InvalidOwnAttestors> {
    ensure!(text.len() <= MAX_LEN, InvalidOwnAttestors::TooLong);
    let names = text.split(',').map(|name| name.trim().to_owned());
    Ok(names.collect())
}

/// The attestors of our variable, where it is enabled.
fn enabled(value: &RawValue) -> Result<Option<Vec<String>>, InvalidOwnAttestors> {
    let text = value.get();
    ensure!(text.len() <= MAX_LEN, InvalidOwnAttestors::TooLong);
    let setting: Option<Setting> =
        serde_json::from_str(text).map_err(|_| InvalidOwnAttestors::Malformed)?;
    let enabled = setting.filter(|setting| setting.enabled);
    Ok(enabled.map(|setting| setting.authorized_attestors))
}

#[cfg(test)]
mod tests;
