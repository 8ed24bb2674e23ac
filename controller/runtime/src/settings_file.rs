//! A single `KubeletAuthentication` in a file: the settings of a cluster without a management cluster.
//!
//! # Guarantees
//!
//! - A file has the same meaning as an object in an API server: the schema of the custom resource provides the defaults
//!   and checks the values, including its CEL rules. Therefore no second list of checks is necessary.
//! - An unknown field is an error. An API server drops an unknown field with a warning, but in a file, a misspelled
//!   policy would silently have no effect.
//! - A field that requires a management cluster is an error ([`read`]).
//! - Enforcement starts only if the file sets it ([`read`]): without a management cluster, it does not wait for Nodes.
//!   Adoption and exempt Nodes are also off by default.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kubelet_attestation::ensure;
use node_attestation_core::crd::{
    self, Adoption, AutoApproveBindings, GROUP, KubeletAuthentication, KubeletAuthenticationSpec,
    LateProviderIds,
};
use serde_json::Value;

use self::rules::{Compiled, Rule};

mod removed;
mod rules;
mod schema;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// The kind of the object.
const KIND: &str = "KubeletAuthentication";

/// The maximum file size, which equals etcd's size limit for an object. The limit prevents reading all of a large file
/// that was specified by mistake.
const MAX_FILE_LEN: u64 = 1536 * 1024;

/// An invalid value in the file.
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq)]
#[display("{field}: {message}")]
#[non_exhaustive]
pub struct Fault {
    /// The path of the field, such as `spec.tpm.endorsementKeys.allowList[0].ekSha256`.
    pub field: String,
    /// The description of the error, and the value to use instead.
    pub message: String,
}

impl Fault {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// The text is not a valid `KubeletAuthentication`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSettings {
    /// The text is neither YAML nor JSON.
    #[error("it does not contain exactly one KubeletAuthentication in YAML or JSON")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// Some values are invalid.
    #[error("{}", list(.0))]
    Faults(Vec<Fault>),
}

/// A settings file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsFileError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("{} is invalid", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: InvalidSettings,
    },
}

/// Reads the settings for a cluster without a management cluster.
///
/// # Errors
///
/// Returns an error if the file cannot be read, if an API server would reject the object, or if a field requires a
/// management cluster.
pub fn read(path: &Path) -> Result<KubeletAuthentication, SettingsFileError> {
    let text = text(path).map_err(|source| SettingsFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    let invalid = |source| SettingsFileError::Invalid {
        path: path.to_owned(),
        source,
    };
    let mut authentication = parse(&text).map_err(invalid)?;
    let faults = of_management(&authentication);
    ensure!(faults.is_empty(), invalid(InvalidSettings::Faults(faults)));
    let spec = &mut authentication.spec;
    spec.auto_approve_bindings
        .get_or_insert(AutoApproveBindings::Report);
    spec.adoption.get_or_insert(Adoption::Refuse);
    spec.exempt_nodes.get_or_insert_default();
    Ok(authentication)
}

fn text(path: &Path) -> Result<String, io::Error> {
    let mut text = String::new();
    let mut file = File::open(path)?.take(MAX_FILE_LEN);
    file.read_to_string(&mut text)?;
    // Reads one byte more than the limit, to detect a file that is too long.
    file.set_limit(1);
    if file.read(&mut [0])? > 0 {
        let what = format!("longer than {MAX_FILE_LEN} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

/// Parses the text (YAML or JSON) as an API server with strict field validation does, including its defaults and its
/// checks.
///
/// # Errors
///
/// Returns an error if an API server would reject the object.
pub fn parse(text: &str) -> Result<KubeletAuthentication, InvalidSettings> {
    let options = serde_saphyr::options! { with_snippet: false };
    let mut object: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| InvalidSettings::Syntax(Box::new(error)))?;
    let schema = schema::of_authentication();
    let mut faults = identity(&object);
    ensure!(faults.is_empty(), InvalidSettings::Faults(faults));
    // The API server also drops the status when an object is created.
    if let Value::Object(fields) = &mut object {
        fields.remove("status");
    }
    schema::drop_nulls(&schema, &mut object);
    schema::fill_defaults(&schema, &mut object);
    schema::check(&schema, &object, &mut faults);
    // As in the API server, the rules are evaluated only if all types are valid, because a rule relies on the types of
    // its fields.
    if faults.is_empty() {
        rules::check(&schema, &object, &mut faults);
    }
    ensure!(faults.is_empty(), InvalidSettings::Faults(faults));
    serde_json::from_value(object)
        .map_err(|error| InvalidSettings::Faults(vec![Fault::new("spec", error.to_string())]))
}

/// Stored settings contradict each other, or have no effect together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}. Until it is corrected, the controller does not answer requests from the Cluster")]
pub(crate) struct Contradiction(Fault);

/// Checks the rules about combinations of settings for a stored object, because an earlier schema might have accepted
/// the object.
///
/// # Errors
///
/// Returns an error if the API server would reject a change to the object.
pub(crate) fn check_stored(spec: &KubeletAuthenticationSpec) -> Result<(), Contradiction> {
    static SCHEMA: LazyLock<Value> = LazyLock::new(schema::of_authentication);
    // The rules are compiled only once, because they are evaluated for every change to a Cluster.
    static RULES: LazyLock<Vec<Compiled<'static>>> = LazyLock::new(|| {
        let schema = SCHEMA.pointer("/properties/spec").unwrap_or(&Value::Null);
        rules::of(schema).map(Rule::compiled).collect()
    });
    let value = serde_json::to_value(spec).unwrap_or_default();
    let fault = RULES.iter().find_map(|rule| rule.fault(&value, "spec"));
    fault.map_or(Ok(()), |fault| Err(Contradiction(fault)))
}

/// The errors in the fields that all objects have.
fn identity(object: &Value) -> Vec<Fault> {
    let version = format!("{GROUP}/v1alpha1");
    let mut faults = Vec::new();
    for (field, expected) in [("apiVersion", version.as_str()), ("kind", KIND)] {
        if object.get(field).and_then(Value::as_str) != Some(expected) {
            faults.push(Fault::new(field, format!("must be {expected}")));
        }
    }
    faults
}

/// The fields that have no effect without a management cluster.
fn of_management(authentication: &KubeletAuthentication) -> Vec<Fault> {
    let mut faults = Vec::new();
    let spec = &authentication.spec;
    let aws = spec.aws.as_ref();
    if aws.is_some_and(|aws| aws.service_account_identity.is_some()) {
        faults.push(Fault::new(
            "spec.aws.serviceAccountIdentity",
            "references an object in a management cluster: remove this field, and give the controller its own AWS \
             credentials",
        ));
    }
    let tpm = spec.tpm.as_ref();
    if tpm.is_some_and(|tpm| !tpm.endorsement_keys.config_maps.is_empty()) {
        faults.push(Fault::new(
            "spec.tpm.endorsementKeys.configMaps",
            "references objects in a management cluster: list the keys in spec.tpm.endorsementKeys.allowList",
        ));
    }
    if tpm.is_some_and(|tpm| tpm.late_provider_ids == LateProviderIds::Allow) {
        faults.push(Fault::new(
            "spec.tpm.lateProviderIDs",
            "must be Refuse without a management cluster, because each machine in an inventory file has a provider ID",
        ));
    }
    faults
}

/// Example settings as YAML: a valid `KubeletAuthentication` for this cluster and attestation provider.
///
/// # Errors
///
/// Returns an error if the result would be invalid, for example because of an invalid cluster name.
pub fn example(cluster_name: &str, attestor: &str) -> Result<String, InvalidSettings> {
    let mut authentication = KubeletAuthentication::new(
        cluster_name,
        KubeletAuthenticationSpec::new(cluster_name, &[attestor]),
    );
    // clusterctl's labels have no effect in a file.
    authentication.metadata.labels = None;
    let spec = &mut authentication.spec;
    spec.auto_approve_bindings = Some(AutoApproveBindings::Report);
    spec.adoption = Some(Adoption::Refuse);
    spec.exempt_nodes = Some(Vec::new());
    match attestor {
        "aws" => spec.aws = Some(crd::AwsSettings::default()),
        "tpm" => spec.tpm = Some(crd::TpmSettings::default()),
        _ => {}
    }
    let text = serde_saphyr::to_string(&authentication).unwrap_or_default();
    parse(&text)?;
    Ok(text)
}

fn list(faults: &[Fault]) -> String {
    let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests;
