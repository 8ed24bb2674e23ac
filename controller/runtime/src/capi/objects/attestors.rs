//! The attestors that a Cluster authorizes itself.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::ensure;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The annotation with the attestors that a Cluster authorizes, separated by commas.
const ANNOTATION: &str = "attestation.cluster.x-k8s.io/authorized-attestors";

/// The topology variable with the same setting.
const VARIABLE: &str = "kubeletAuthentication";

/// The maximum length in bytes. A `KubeletAuthentication` has up to eight names of 32 bytes. The limit is higher, so
/// that values that are a little too long reach the API server, which reports the error.
const MAX_LEN: usize = 1024;

/// The maximum number of names. The names are stored as long as the Cluster exists. A name of one byte takes 24
/// additional bytes of memory.
const MAX_NAMES: usize = 32;

/// The attestors that a Cluster authorizes itself, with an annotation or a topology variable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OwnAttestors {
    /// The Cluster has neither the annotation nor an enabled variable.
    #[default]
    Unset,
    /// These names, without validation.
    Named(Vec<String>),
    /// The setting is invalid for this reason.
    Invalid(InvalidOwnAttestors),
}

/// The reason why a Cluster's own attestors are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOwnAttestors {
    /// The annotation and the variable differ.
    #[error(
        "the annotation {ANNOTATION} and the variable {VARIABLE} authorize different attestors"
    )]
    Contradictory,
    /// The variable has an invalid structure.
    #[error(
        "the variable {VARIABLE} does not have the form {{enabled: BOOLEAN, authorizedAttestors: \
         [STRING, ..]}}"
    )]
    Malformed,
    /// The names are too long, or too many.
    #[error(
        "the list of attestors is longer than {MAX_LEN} bytes, or has more than {MAX_NAMES} entries"
    )]
    TooLong,
}

/// The part of a Cluster's topology to decode.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::capi) struct Topology {
    variables: Option<Vec<Variable>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Variable {
    name: Option<String>,
    /// Any JSON. Only the value of the variable `kubeletAuthentication` is parsed.
    value: Option<Box<RawValue>>,
}

/// The value of the variable `kubeletAuthentication`.
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
    few(names.collect())
}

/// Checks the number of names.
fn few(names: Vec<String>) -> Result<Vec<String>, InvalidOwnAttestors> {
    ensure!(names.len() <= MAX_NAMES, InvalidOwnAttestors::TooLong);
    Ok(names)
}

/// The attestors in the variable, if it is enabled.
fn enabled(value: &RawValue) -> Result<Option<Vec<String>>, InvalidOwnAttestors> {
    let text = value.get();
    ensure!(text.len() <= MAX_LEN, InvalidOwnAttestors::TooLong);
    let setting: Option<Setting> =
        serde_json::from_str(text).map_err(|_| InvalidOwnAttestors::Malformed)?;
    let enabled = setting.filter(|setting| setting.enabled);
    let names = enabled.map(|setting| few(setting.authorized_attestors));
    names.transpose()
}

#[cfg(test)]
mod tests;
