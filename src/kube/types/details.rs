//! A request with the fields that users see, as in the output of `kubectl get csr`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::{Malformed, WireCondition, WireCsr};

/// A request, with the fields that can be read offline.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WireCsr")]
pub(crate) struct CsrDetails {
    /// The name of the object.
    pub(crate) name: String,
    /// The creation time; `None` if the request was never sent.
    pub(crate) created: Option<String>,
    /// The annotations of the object.
    pub(crate) annotations: BTreeMap<String, String>,
    /// The user that sent the request; `None` if it was never sent.
    pub(crate) requester: Option<String>,
    /// The groups of that user.
    pub(crate) groups: Vec<String>,
    /// The signer.
    pub(crate) signer_name: String,
    /// The usages of the certificate.
    pub(crate) usages: Vec<String>,
    /// The requested lifetime of the certificate.
    pub(crate) expiration_seconds: Option<u32>,
    /// The bytes of `spec.request`, decoded from base64.
    pub(crate) request: Vec<u8>,
    /// The conditions.
    pub(crate) conditions: Vec<Condition>,
    /// The certificate and its chain in PEM, unchecked.
    pub(crate) certificate_pem: Option<String>,
}

/// A condition of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    /// `Approved`, `Denied` or `Failed`.
    pub(crate) kind: String,
    /// `True`, `False` or `Unknown`. Servers before Kubernetes 1.19 leave it empty.
    pub(crate) status: String,
    /// The reason.
    pub(crate) reason: String,
    /// The message.
    pub(crate) message: String,
    /// The time of the last update.
    pub(crate) at: Option<String>,
}

impl CsrDetails {
    /// Parses an object of the certificates API, or a list of objects. Objects of other kinds in a list are an error.
    ///
    /// # Errors
    ///
    /// The position of the first object that is not a certificate signing request, and the reason.
    pub(crate) fn all(mut document: Value) -> Result<Vec<Self>, (String, String)> {
        let one = |place: String, value: Value| {
            let kind = value.get("kind").and_then(Value::as_str);
            if let Some(kind) = kind.filter(|kind| *kind != "CertificateSigningRequest") {
                return Err((place, format!("it is a {kind}")));
            }
            serde_json::from_value(value).map_err(|error| (place, error.to_string()))
        };
        if let Some(Value::Array(items)) = document.get_mut("items").map(Value::take) {
            let items = items.into_iter().enumerate();
            return items
                .map(|(at, value)| one(format!("items[{at}]"), value))
                .collect();
        }
        Ok(vec![one(String::new(), document)?])
    }
}

impl TryFrom<WireCsr> for CsrDetails {
    type Error = Malformed;

    fn try_from(wire: WireCsr) -> Result<Self, Malformed> {
        let certificate = wire.status.certificate.filter(|text| !text.is_empty());
        let certificate = certificate.map(|text| {
            let pem = STANDARD.decode(text).ok();
            pem.and_then(|pem| String::from_utf8(pem).ok())
                .ok_or(Malformed("status.certificate"))
        });
        let request = STANDARD.decode(&wire.spec.request);
        let conditions = wire.status.conditions.unwrap_or_default();
        Ok(Self {
            name: wire.metadata.name,
            created: wire.metadata.creation_timestamp,
            annotations: wire.metadata.annotations.unwrap_or_default(),
            requester: wire.spec.username,
            groups: wire.spec.groups.unwrap_or_default(),
            signer_name: wire.spec.signer_name,
            usages: wire.spec.usages,
            expiration_seconds: wire.spec.expiration_seconds,
            request: request.map_err(|_| Malformed("spec.request"))?,
            conditions: conditions.into_iter().map(Condition::from).collect(),
            certificate_pem: certificate.transpose()?,
        })
    }
}

impl From<WireCondition> for Condition {
    fn from(wire: WireCondition) -> Self {
        Self {
            kind: wire.kind,
            status: wire.status,
            reason: wire.reason,
            message: wire.message,
            at: wire.last_update_time,
        }
    }
}
