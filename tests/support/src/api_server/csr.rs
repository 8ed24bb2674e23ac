//! The rules for certificate signing requests (`certificates.k8s.io/v1`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate, X509CertificationRequest};

use super::pem::first_block;
use super::status::FieldError;
use super::timestamp;
use crate::clock::now;

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Checks the spec of a new request. Returns the errors.
pub(super) fn check_spec(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(why) = check_request(spec["request"].as_str().unwrap_or_default()) {
        errors.push(FieldError::invalid("spec.request", "[]byte{...}", &why));
    }
    let usages: Vec<&str> = spec["usages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if usages.is_empty() {
        errors.push(FieldError::required("spec.usages", ""));
    }
    for (index, usage) in usages.iter().enumerate() {
        let field = format!("spec.usages[{index}]");
        if !USAGES.contains(usage) {
            errors.push(FieldError::not_supported(&field, usage, &USAGES));
        }
        if usages[..index].contains(usage) {
            errors.push(FieldError::duplicate(&field, usage));
        }
    }
    errors.extend(check_signer_name(
        spec["signerName"].as_str().unwrap_or_default(),
    ));
    if let Some(seconds) = spec["expirationSeconds"]
        .as_i64()
        .filter(|seconds| *seconds < 600)
    {
        errors.push(FieldError::invalid(
            "spec.expirationSeconds",
            &seconds.to_string(),
            "may not specify a duration less than 600 seconds (10 minutes)",
        ));
    }
    errors
}

/// Checks only the first block. The data after the block is stored, but never parsed.
fn check_request(encoded: &str) -> Result<(), String> {
    let bytes = STANDARD
        .decode(encoded)
        .map_err(|_| "illegal base64 data".to_owned())?;
    let block = first_block(&bytes)
        .map(|(block, _)| block)
        .filter(|block| block.label == "CERTIFICATE REQUEST")
        .ok_or("PEM block type must be CERTIFICATE REQUEST")?;
    let (rest, request) = X509CertificationRequest::from_der(&block.contents)
        .map_err(|_| "asn1: structure error".to_owned())?;
    if !rest.is_empty() {
        return Err("asn1: syntax error: trailing data".into());
    }
    request
        .verify_signature()
        .map_err(|_| "x509: ECDSA verification failure".to_owned())
}

fn check_signer_name(name: &str) -> Vec<FieldError> {
    let field = "spec.signerName";
    let quoted = format!("{name:?}");
    let invalid = |why: &str| vec![FieldError::invalid(field, &quoted, why)];
    if name.is_empty() {
        return vec![FieldError::required(field, "")];
    }
    if name == "kubernetes.io/legacy-unknown" {
        return invalid("the legacy signerName is not allowed via this API version");
    }
    let parts: Vec<&str> = name.split('/').collect();
    let [domain, path] = parts.as_slice() else {
        return invalid(
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        );
    };
    let mut errors = Vec::new();
    if domain.split('.').count() < 2 {
        errors.extend(invalid(
            "should be a domain with at least two segments separated by dots",
        ));
    }
    if !domain.split('.').chain(path.split('.')).all(is_label) || name.len() > 571 {
        errors.extend(invalid(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character",
        ));
    }
    errors
}

fn is_label(label: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| plain(*byte));
    let bytes = label.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
        && edge(bytes.first())
        && edge(bytes.last())
}

/// The part of a request that an update changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The object itself: only its metadata.
    Main,
    /// `/approval`: conditions.
    Approval,
    /// `/status`: the certificate, and conditions except Approved and Denied.
    Status,
}

impl Part {
    pub(super) fn of(subresource: &str) -> Self {
        match subresource {
            "approval" => Self::Approval,
            "status" => Self::Status,
            _ => Self::Main,
        }
    }
}

/// Prepares `new`, an update of `old`, for the checks, as kube-apiserver does.
pub(super) fn prepare_update(part: Part, old: &Value, new: &mut Value) {
    new["spec"] = old["spec"].clone();
    match part {
        Part::Main => new["status"] = old["status"].clone(),
        Part::Approval => {
            let conditions = new.pointer_mut("/status/conditions").map(Value::take);
            new["status"] = old["status"].clone();
            if let Some(status) = new["status"].as_object_mut() {
                status.remove("conditions");
            }
            if let Some(conditions) = conditions.filter(Value::is_array) {
                new["status"]["conditions"] = conditions;
            }
        }
        Part::Status => {
            for kind in ["Approved", "Denied"] {
                preserve(kind, old, new);
            }
        }
    }
    if part != Part::Main {
        date_conditions(old, new);
    }
}

/// Checks a prepared update. Returns the errors.
pub(super) fn check_update(part: Part, old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = check_conditions(new);
    if let Err(why) = check_certificate(new["status"]["certificate"].as_str().unwrap_or_default()) {
        errors.push(FieldError::invalid(
            "status.certificate",
            "\"<certificate data>\"",
            &why,
        ));
    }
    for kind in ["Approved", "Denied", "Failed"] {
        let (before, after) = (of_kind(old, kind), of_kind(new, kind));
        if after.len() < before.len() {
            let why = format!("updates may not remove a condition of type {kind:?}");
            errors.push(FieldError::forbidden("status.conditions", &why));
        }
        if part != Part::Approval && kind != "Failed" {
            let what = if after.len() > before.len() {
                Some("add")
            } else {
                None
            };
            let changed = (after.len() == before.len() && after != before).then_some("modify");
            for what in what.into_iter().chain(changed) {
                let why = format!("updates may not {what} a condition of type {kind:?}");
                errors.push(FieldError::forbidden("status.conditions", &why));
            }
        }
    }
    let (before, after) = (&old["status"]["certificate"], &new["status"]["certificate"]);
    if before != after {
        if part != Part::Status {
            let why = "updates may not set certificate content";
            errors.push(FieldError::forbidden("status.certificate", why));
        } else if before.as_str().is_some_and(|before| !before.is_empty()) {
            let why = "updates may not modify existing certificate content";
            errors.push(FieldError::forbidden("status.certificate", why));
        }
    }
    errors
}

fn check_conditions(request: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in conditions(request).iter().enumerate() {
        let field = |name: &str| format!("status.conditions[{index}].{name}");
        let kind = condition["type"].as_str().unwrap_or_default();
        let final_kind = matches!(kind, "Approved" | "Denied" | "Failed");
        let allowed: &[&str] = if final_kind {
            &["True"]
        } else {
            &["False", "True", "Unknown"]
        };
        if kind.is_empty() {
            errors.push(FieldError::required(&field("type"), ""));
        }
        match condition["status"].as_str().unwrap_or_default() {
            "" => errors.push(FieldError::required(&field("status"), "")),
            status if !allowed.contains(&status) => {
                errors.push(FieldError::not_supported(&field("status"), status, allowed));
            }
            _ => {}
        }
        let opposite = match kind {
            "Approved" => Some("Denied"),
            "Denied" => Some("Approved"),
            _ => None,
        };
        if opposite.is_some_and(|opposite| seen.contains(&opposite)) {
            let why = "Approved and Denied conditions are mutually exclusive";
            errors.push(FieldError::invalid(
                "status.conditions",
                &format!("{kind:?}"),
                why,
            ));
        }
        if seen.contains(&kind) {
            errors.push(FieldError::duplicate(&field("type"), kind));
        }
        seen.push(kind);
    }
    errors
}

/// Checks only the syntax, but not the approval, the key or the subject.
fn check_certificate(encoded: &str) -> Result<(), String> {
    if encoded.is_empty() {
        return Ok(());
    }
    let bytes = STANDARD
        .decode(encoded)
        .map_err(|_| "illegal base64 data".to_owned())?;
    let mut rest = bytes.as_slice();
    let mut blocks = 0;
    while let Some((block, after)) = first_block(rest) {
        if block.label != "CERTIFICATE" {
            return Err(format!(
                "only CERTIFICATE PEM blocks are allowed, found {:?}",
                block.label
            ));
        }
        if !block.headers.is_empty() {
            return Err("no PEM block headers are permitted".into());
        }
        X509Certificate::from_der(&block.contents)
            .map_err(|_| "x509: malformed certificate".to_owned())?;
        blocks += 1;
        rest = after;
    }
    if blocks == 0 {
        return Err("must contain at least one CERTIFICATE PEM block".into());
    }
    Ok(())
}

fn preserve(kind: &str, old: &Value, new: &mut Value) {
    let before: Vec<Value> = of_kind(old, kind).into_iter().cloned().collect();
    if before.len() != of_kind(new, kind).len() {
        return;
    }
    let mut before = before.into_iter();
    for condition in conditions_mut(new) {
        if condition["type"] == kind
            && let Some(kept) = before.next()
        {
            *condition = kept;
        }
    }
}

fn date_conditions(old: &Value, new: &mut Value) {
    let now = json!(timestamp(now()));
    for condition in conditions_mut(new) {
        let same = |known: &&Value| {
            known["type"] == condition["type"] && known["status"] == condition["status"]
        };
        let transition = conditions(old)
            .iter()
            .find(same)
            .map_or_else(|| now.clone(), |known| known["lastTransitionTime"].clone());
        let Some(fields) = condition.as_object_mut() else {
            continue;
        };
        for (field, value) in [
            ("lastUpdateTime", now.clone()),
            ("lastTransitionTime", transition),
        ] {
            if fields.get(field).is_none_or(Value::is_null) {
                fields.insert(field.into(), value);
            }
        }
    }
}

fn conditions(request: &Value) -> &[Value] {
    request["status"]["conditions"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

fn conditions_mut(request: &mut Value) -> impl Iterator<Item = &mut Value> {
    request
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

fn of_kind<'a>(request: &'a Value, kind: &str) -> Vec<&'a Value> {
    conditions(request)
        .iter()
        .filter(|condition| condition["type"] == kind)
        .collect()
}
