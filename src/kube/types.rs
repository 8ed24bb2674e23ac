//! The few fields of `certificates.k8s.io/v1` and of `Status` that a node writes and reads.
//!
//! Source: `k8s.io/api/certificates/v1/types.go` and
//! `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use kubelet_attestation::evidence::tpm::CHALLENGE_ANNOTATION;
use kubelet_attestation::version::{EvidenceVersion, SUPPORTED_VERSIONS_ANNOTATION};

const API_VERSION: &str = "certificates.k8s.io/v1";
const KIND: &str = "CertificateSigningRequest";

/// A request to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewCsr<'a> {
    /// Its name.
    pub name: &'a str,
    /// Who is to sign it.
    pub signer_name: &'a str,
    /// What the certificate is to be used for.
    pub usages: &'a [&'a str],
    /// How long the certificate is to live; a signer may shorten it.
    pub expiration_seconds: u32,
    /// The bytes of `spec.request`, not in base64.
    pub request: &'a [u8],
}

impl NewCsr<'_> {
    /// The object that is sent, in JSON.
    pub(super) fn to_json(self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&WireNewCsr {
            api_version: API_VERSION,
            kind: KIND,
            metadata: WireNewMetadata { name: self.name },
            spec: WireNewSpec {
                request: STANDARD.encode(self.request),
                signer_name: self.signer_name,
                expiration_seconds: self.expiration_seconds,
                usages: self.usages,
            },
        })
    }

    /// Whether `stored` asks for exactly what this asks for, byte for byte.
    pub fn is_what_was_stored(&self, stored: &CsrObject) -> bool {
        stored.name == self.name
            && stored.request == self.request
            && stored.signer_name == self.signer_name
            && stored.usages == self.usages
            && stored.expiration_seconds == Some(self.expiration_seconds)
    }
}

/// A request as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CsrObject {
    /// Its name.
    pub name: String,
    /// Which object of that name: another value is another request.
    pub uid: String,
    /// Which state of the object: what a watch goes on from.
    pub resource_version: String,
    /// The bytes of `spec.request`, out of base64.
    pub request: Vec<u8>,
    /// Who is to sign it.
    pub signer_name: String,
    /// What the certificate is to be used for.
    pub usages: Vec<String>,
    /// How long the certificate is to live.
    pub expiration_seconds: Option<u32>,
    /// What has become of it.
    pub state: CsrState,
}

/// What has become of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CsrState {
    /// Nothing yet: neither denied nor failed, and not both approved and signed.
    Pending,
    /// It was denied.
    Denied {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
    /// It can never be signed.
    Failed {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
        /// The evidence versions that the controller says it accepts.
        supported_versions: Vec<EvidenceVersion>,
        /// What a TPM is asked to open, as it came.
        challenge: Option<String>,
    },
    /// It was approved and signed.
    Issued {
        /// The certificate and its chain in PEM, not checked.
        chain_pem: String,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireNewCsr<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: WireNewMetadata<'a>,
    spec: WireNewSpec<'a>,
}

#[derive(Serialize)]
struct WireNewMetadata<'a> {
    name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireNewSpec<'a> {
    request: String,
    signer_name: &'a str,
    expiration_seconds: u32,
    usages: &'a [&'a str],
}

/// The object as it comes, before it is understood.
#[derive(Deserialize)]
pub(super) struct WireCsr {
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
    uid: String,
    resource_version: String,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    request: String,
    signer_name: String,
    #[serde(default)]
    usages: Vec<String>,
    #[serde(default)]
    expiration_seconds: Option<u32>,
}

#[derive(Deserialize, Default)]
struct WireStatus {
    #[serde(default)]
    conditions: Option<Vec<WireCondition>>,
    #[serde(default)]
    certificate: Option<String>,
}

#[derive(Deserialize)]
struct WireCondition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

impl TryFrom<WireCsr> for CsrObject {
    type Error = Malformed;

    fn try_from(wire: WireCsr) -> Result<Self, Malformed> {
        let request = STANDARD
            .decode(&wire.spec.request)
            .map_err(|_| Malformed("spec.request"))?;
        let annotations = wire.metadata.annotations.unwrap_or_default();
        Ok(Self {
            state: wire.status.understand(annotations)?,
            name: wire.metadata.name,
            uid: wire.metadata.uid,
            resource_version: wire.metadata.resource_version,
            request,
            signer_name: wire.spec.signer_name,
            usages: wire.spec.usages,
            expiration_seconds: wire.spec.expiration_seconds,
        })
    }
}

/// A field of an object that is not what the API says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("field {0} is not what the API says")]
pub struct Malformed(pub(super) &'static str);

impl WireStatus {
    /// A denial or failure is final, whatever else is there; a certificate counts only once
    /// approved.
    fn understand(self, mut annotations: Annotations) -> Result<CsrState, Malformed> {
        let conditions = self.conditions.unwrap_or_default();
        // An empty status is what servers before 1.19 wrote for what is "True" today.
        let find = |kind: &str| {
            conditions
                .iter()
                .find(|found| found.kind == kind && matches!(found.status.as_str(), "True" | ""))
        };
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

/// What the API server says instead of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct WireFailure {
    /// A sentence.
    #[serde(default)]
    pub(super) message: String,
    /// One word.
    #[serde(default)]
    pub(super) reason: String,
    /// The HTTP status.
    #[serde(default)]
    pub(super) code: u16,
}

/// One line of a watch.
#[derive(Deserialize)]
pub(super) struct WireEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub(super) object: &'a serde_json::value::RawValue,
}

/// A list of objects, with the version of the collection.
#[derive(Deserialize)]
pub(super) struct WireList {
    pub(super) metadata: WireVersion,
    pub(super) items: Vec<WireCsr>,
}

/// The object of a bookmark, which is a version and nothing else.
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
