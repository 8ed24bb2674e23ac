//! Requests in PEM, and as objects of the certificates API.

use std::time::SystemTime;

use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::{oid, subject};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::evidence::tpm::ENDORSEMENT_KEY_ANNOTATION;
use kubelet_attestation::version::SUPPORTED_VERSIONS_ANNOTATION;
use serde_json::Value;

use super::certificate::algorithm_name;
use super::{Document, certificate, evidence, sha256};
use crate::failure::Failure;
use crate::kube::{Condition, CsrDetails};
use crate::sheet::Sheet;

const REMEDY: &str = "use a request in PEM, or the output of `kubectl get csr NAME -o yaml`";

/// Decodes a request in PEM, an object of the certificates API, or a list of objects.
pub(crate) fn requests(document: &Document, now: SystemTime) -> Result<Vec<Sheet>, Failure> {
    let text = document.text.trim_start();
    if text.starts_with("-----BEGIN ") {
        let sheet = of_bytes(text.as_bytes());
        let sheet = sheet.map_err(|why| document.is_not("request", &why, REMEDY))?;
        return Ok(vec![sheet]);
    }
    let options = serde_saphyr::options! { with_snippet: false };
    let value: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| document.is_not("request", &format!("it is not YAML: {error}"), REMEDY))?;
    if !value.is_object() {
        let why = "it is neither PEM nor an object in YAML or JSON";
        return Err(document.is_not("request", why, REMEDY));
    }
    let details = CsrDetails::all(value).map_err(|(place, why)| {
        let why = if place.is_empty() {
            why
        } else {
            format!("{place}: {why}")
        };
        document.is_not("request", &why, REMEDY)
    })?;
    Ok(details.iter().map(|csr| of_object(csr, now)).collect())
}

fn of_object(csr: &CsrDetails, now: SystemTime) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.text("name", "Name", &csr.name);
    sheet.text_or("created", "Created", csr.created.as_ref(), "not sent");
    sheet.text("signer", "Signer", &csr.signer_name);
    let requester = csr.requester.as_ref();
    sheet.text_or("requester", "Requester", requester, "not sent");
    sheet.list("groups", "Groups", &csr.groups);
    sheet.list("usages", "Usages", &csr.usages);
    let lifetime = csr.expiration_seconds.map(|seconds| seconds.to_string());
    sheet.value(
        "expirationSeconds",
        "Lifetime",
        csr.expiration_seconds,
        lifetime.map_or_else(
            || "default of the signer".to_owned(),
            |it| format!("{it} seconds"),
        ),
    );
    for (key, name, annotation) in [
        (
            "endorsementKey",
            "Endorsement key",
            ENDORSEMENT_KEY_ANNOTATION,
        ),
        (
            "supportedVersions",
            "Accepted versions",
            SUPPORTED_VERSIONS_ANNOTATION,
        ),
    ] {
        if let Some(text) = csr.annotations.get(annotation) {
            sheet.text(key, name, text);
        }
    }
    if csr.conditions.is_empty() {
        sheet.value(
            "conditions",
            "Conditions",
            Value::Array(Vec::new()),
            "none: pending",
        );
    } else {
        let conditions = csr.conditions.iter().map(condition).collect();
        sheet.parts("conditions", "Condition", conditions);
    }
    match csr.certificate_pem.as_deref() {
        None => sheet.value("certificate", "Certificate", Value::Null, "not issued"),
        Some(pem) => match certificate::sheet(pem, now) {
            Ok(part) => sheet.part("certificate", "Certificate", part),
            Err(why) => sheet.text("certificate", "Certificate", why.to_string()),
        },
    }
    match of_bytes(&csr.request) {
        Ok(part) => sheet.part("request", "Request", part),
        Err(why) => sheet.text("request", "Request", format!("not decoded: {why}")),
    }
    sheet
}

fn condition(condition: &Condition) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.text("type", "Type", &condition.kind);
    if !matches!(condition.status.as_str(), "True" | "") {
        sheet.text("status", "Status", &condition.status);
    }
    sheet.text("reason", "Reason", &condition.reason);
    sheet.text("message", "Message", &condition.message);
    sheet.text_or("at", "At", condition.at.as_ref(), "unknown");
    sheet
}

/// Returns the facts in the bytes of `spec.request`.
pub(super) fn of_bytes(request: &[u8]) -> Result<Sheet, String> {
    let envelope = Envelope::parse(request).map_err(|error| error_chain(&error))?;
    let csr = CertificationRequest::from_der(&envelope.csr);
    let csr = csr.map_err(|error| error_chain(&error))?;
    let mut sheet = Sheet::default();
    sheet.text("subject", "Subject", csr.subject().to_string());
    let node = subject::node_name(csr.subject());
    let why = node.as_ref().err().map(ToString::to_string);
    let node = node.ok().map(|name| name.to_string());
    sheet.text_or("nodeName", "Node", node, &why.unwrap_or_default());
    let id = csr.claimed_provider_id().map(|id| id.to_string());
    sheet.text_or("providerID", "Provider ID", id, "none");
    let others = csr.extensions().iter().map(|extension| extension.extn_id);
    let others = others.filter(|kind| *kind != oid::PROVIDER_ID);
    let others: Vec<_> = others.map(|kind| kind.to_string()).collect();
    if !others.is_empty() {
        sheet.list("otherExtensions", "Other extensions", &others);
    }
    let (algorithm, _) = csr.key_algorithm();
    sheet.text(
        "keyAlgorithm",
        "Key",
        algorithm_name(&algorithm.to_string()),
    );
    sheet.text("publicKeySHA256", "Key's SHA-256", sha256(csr.spki_der()));
    let provider = envelope.provider.as_ref();
    let name = provider.map(ToString::to_string);
    sheet.text_or("provider", "Provider", name, "none");
    match &envelope.evidence {
        None => sheet.value("evidence", "Evidence", Value::Null, "none"),
        Some(evidence) => {
            let part = evidence::sheet(provider, evidence);
            sheet.part("evidence", "Evidence", part);
        }
    }
    Ok(sheet)
}
