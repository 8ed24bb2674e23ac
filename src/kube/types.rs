//! The fields of `certificates.k8s.io/v1` and of `Status` that a node writes and reads.
//!
//! Source: `k8s.io/api/certificates/v1/types.go` and
//! `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`.

mod details;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use kubelet_attestation::evidence::tpm::CHALLENGE_ANNOTATION;
use kubelet_attestation::version::{EvidenceVersion, SUPPORTED_VERSIONS_ANNOTATION};

pub(crate) use details::{Condition, CsrDetails};

/// A new request.
#[derive(Debug, Clone, Copy)]
pub struct NewCsr<'a> {
    /// The name of the object.
    pub name: &'a str,
    /// The signer.
    pub signer_name: &'a str,
    /// The usages of the certificate.
    pub usages: &'a [&'a str],
    /// The requested lifetime of the certificate. A signer can shorten it.
    pub expiration_seconds: u32,
    /// The bytes of `spec.request`, before base64.
    pub request: &'a [u8],
}

impl NewCsr<'_> {
    /// The object to send.
    pub(crate) fn to_object(self) -> Value {
        json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": self.name},
            "spec": {
                "request": STANDARD.encode(self.request),
                "signerName": self.signer_name,
                "expirationSeconds": self.expiration_seconds,
                "usages": self.usages,
            },
        })
    }

    /// Whether `stored` is exactly this request, byte for byte.
    pub fn is_what_was_stored(&self, stored: &CsrObject) -> bool {
        stored.name == self.name
            && stored.request == self.request
            && stored.signer_name == self.signer_name
            && stored.usages == self.usages
            && stored.expiration_seconds == Some(self.expiration_seconds)
    }
}

/// A request as the API server stores it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WireCsr")]
pub struct CsrObject {
    /// The name of the object.
    pub name: String,
    /// The UID. A different value means a different request with the same name.
    pub uid: String,
    /// The resource version, from which a watch can continue.
    pub resource_version: String,
    /// The bytes of `spec.request`, decoded from base64.
    pub request: Vec<u8>,
    /// The signer.
    pub signer_name: String,
    /// The usages of the certificate.
    pub usages: Vec<String>,
    /// The requested lifetime of the certificate.
    pub expiration_seconds: Option<u32>,
    /// Whether the request was approved.
    pub is_approved: bool,
    /// The state of the request.
    pub state: CsrState,
}

/// The state of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CsrState {
    /// The request is not denied, has not failed, and is not both approved and signed.
    Pending,
    /// The request was denied.
    Denied {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
    /// The request failed, and can never be signed.
    Failed {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
        /// The evidence versions that the controller accepts, if it reports them.
        supported_versions: Vec<EvidenceVersion>,
        /// The challenge for the machine's TPM, unparsed.
        challenge: Option<String>,
    },
    /// The request was approved and signed.
    Issued {
        /// The certificate and its chain in PEM, unchecked.
        chain_pem: String,
    },
}

/// The object as received, before its fields are checked.
#[derive(Deserialize)]
struct WireCsr {
    metadata: WireMetadata,
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

type Annotations = BTreeMap<String, String>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMetadata {
    name: String,
    /// This field and the resource version are missing in an object that was never sent to an API server.
    uid: Option<String>,
    resource_version: Option<String>,
    annotations: Option<Annotations>,
    creation_timestamp: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    request: String,
    signer_name: String,
    #[serde(default)]
    usages: Vec<String>,
    expiration_seconds: Option<u32>,
    username: Option<String>,
    groups: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
struct WireStatus {
    conditions: Option<Vec<WireCondition>>,
    certificate: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireCondition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    last_update_time: Option<String>,
}

impl TryFrom<WireCsr> for CsrObject {
    type Error = Malformed;

    fn try_from(wire: WireCsr) -> Result<Self, Malformed> {
        let request = STANDARD
            .decode(&wire.spec.request)
            .map_err(|_| Malformed("spec.request"))?;
        let annotations = wire.metadata.annotations.unwrap_or_default();
        let (uid, version) = (wire.metadata.uid, wire.metadata.resource_version);
        Ok(Self {
            is_approved: find(wire.status.conditions.as_deref(), "Approved").is_some(),
            state: wire.status.understand(annotations)?,
            name: wire.metadata.name,
            uid: uid.ok_or(Malformed("metadata.uid"))?,
            resource_version: version.ok_or(Malformed("metadata.resourceVersion"))?,
            request,
            signer_name: wire.spec.signer_name,
            usages: wire.spec.usages,
            expiration_seconds: wire.spec.expiration_seconds,
        })
    }
}

/// A field of an object that does not conform to the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("field {0} does not match the Kubernetes API")]
pub(super) struct Malformed(pub(super) &'static str);

/// The condition of this type. Servers before Kubernetes 1.19 wrote an empty status instead of "True".
fn find<'a>(conditions: Option<&'a [WireCondition]>, kind: &str) -> Option<&'a WireCondition> {
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.find(|found| found.kind == kind && matches!(found.status.as_str(), "True" | ""))
}

impl WireStatus {
    /// Returns the state. A denial or failure is final, regardless of other fields. A certificate without an approval
    /// is ignored.
    fn understand(self, mut annotations: Annotations) -> Result<CsrState, Malformed> {
        let find = |kind| find(self.conditions.as_deref(), kind);
        if let Some(denied) = find("Denied") {
            let (reason, message) = (denied.reason.clone(), denied.message.clone());
            return Ok(CsrState::Denied { reason, message });
        }
        if let Some(failed) = find("Failed") {
            let supported = annotations.remove(SUPPORTED_VERSIONS_ANNOTATION);
            return Ok(CsrState::Failed {
                reason: failed.reason.clone(),
                message: failed.message.clone(),
                supported_versions: EvidenceVersion::parse_list(&supported.unwrap_or_default()),
                challenge: annotations.remove(CHALLENGE_ANNOTATION),
            });
        }
        match self
            .certificate
            .filter(|certificate| !certificate.is_empty())
        {
            Some(certificate) if find("Approved").is_some() => {
                let malformed = Malformed("status.certificate");
                let pem = STANDARD.decode(certificate).map_err(|_| malformed)?;
                let chain_pem = String::from_utf8(pem).map_err(|_| malformed)?;
                Ok(CsrState::Issued { chain_pem })
            }
            Some(_) | None => Ok(CsrState::Pending),
        }
    }
}

/// The `Status` that the API server returns instead of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct WireFailure {
    pub(super) message: String,
    pub(super) reason: String,
    /// The HTTP status.
    pub(super) code: u16,
}

/// An event: one line of a watch.
#[derive(Deserialize)]
pub(super) struct WireEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub(super) object: &'a serde_json::value::RawValue,
}

/// A list of objects, with its resource version.
#[derive(Deserialize)]
pub(super) struct WireList {
    pub(super) metadata: WireVersion,
    pub(super) items: Vec<CsrObject>,
}

/// The object of a bookmark, which has only a resource version.
#[derive(Deserialize)]
pub(super) struct WireBookmark {
    pub(super) metadata: WireVersion,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WireVersion {
    pub(super) resource_version: String,
}

#[cfg(test)]
mod tests;
