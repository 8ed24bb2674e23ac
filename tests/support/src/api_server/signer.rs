//! A signer for client tests. The signer approves and signs as a controller does, or with faults.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::pem::first_block;
use super::resource::REQUESTS;
use super::store::Store;
use super::timestamp;
use crate::clock::now;
use crate::pki::{BACKDATED, CertificateAuthority, Contents, Purpose, Subject};

const PROVIDER_ID: &str = "1.3.6.1.4.1.11129.2.1.21";
const HOUR: Duration = Duration::from_secs(3600);

/// The lifetime of a certificate whose request does not specify a lifetime.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The server's own decision on a certificate request, immediately after the request is created.
///
/// Requests for the signers in `kubernetes.io/` are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Signer {
    /// The server does not decide, so that another client can decide.
    #[default]
    Off,
    /// Approves the request, and then issues its certificate.
    Issue(Issuance),
    /// Denies the request.
    Deny {
        /// The reason of the condition.
        reason: String,
        /// The message of the condition.
        message: String,
    },
    /// Marks the request as failed, without approval.
    Fail {
        /// The reason of the condition.
        reason: String,
        /// The message of the condition.
        message: String,
    },
}

impl Signer {
    /// Issues certificates as requested, with the requested lifetime.
    pub fn issue() -> Self {
        Self::Issue(Issuance::default())
    }

    /// Issues certificates with this lifetime.
    pub fn issue_for(lifetime: Duration) -> Self {
        Self::Issue(Issuance {
            lifetime: Some(lifetime),
            ..Issuance::default()
        })
    }

    /// Issues certificates with one flaw.
    pub fn flawed(flaw: Flaw) -> Self {
        Self::Issue(Issuance {
            flaw: Some(flaw),
            ..Issuance::default()
        })
    }

    /// Denies requests with this reason and message.
    pub fn deny(reason: &str, message: &str) -> Self {
        Self::Deny {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Marks requests as failed with this reason and message.
    pub fn fail(reason: &str, message: &str) -> Self {
        Self::Fail {
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// The properties of an issued certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuance {
    /// The time from now to the expiry. The default is the request's `expirationSeconds`, or one year.
    pub lifetime: Option<Duration>,
    /// The time by which the start of the validity precedes the current time.
    pub backdate: Duration,
    /// The UID in the certificate, which is a subject attribute.
    pub uid: Option<String>,
    /// The flaw of the certificate.
    pub flaw: Option<Flaw>,
}

impl Default for Issuance {
    fn default() -> Self {
        Self {
            lifetime: None,
            backdate: BACKDATED,
            uid: None,
            flaw: None,
        }
    }
}

/// A flaw in an issued certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The certificate is for a key that does not occur in any request.
    AnotherKey,
    /// The certificate contains the name of another node.
    AnotherName,
    /// The certificate is for servers.
    AnotherUsage,
    /// The certificate expired an hour ago.
    Expired,
    /// The certificate becomes valid in an hour.
    NotYetValid,
    /// The data is PEM but not a certificate.
    Garbage,
    /// The data does not contain a PEM block.
    NoPem,
}

/// Applies `signer` to the request with this name.
pub(super) fn decide(
    store: &mut Store,
    signer: &Signer,
    authority: &CertificateAuthority,
    name: &str,
) {
    let Ok(request) = store.get(&REQUESTS, "", name) else {
        return;
    };
    let signer_name = request["spec"]["signerName"].as_str().unwrap_or_default();
    if signer_name.starts_with("kubernetes.io/") {
        return;
    }
    match signer {
        Signer::Off => {}
        Signer::Issue(issuance) => {
            approve(store, name);
            let certificate = certificate(&request, issuance, authority);
            set_certificate(store, name, &certificate);
        }
        Signer::Deny { reason, message } => add_condition(store, name, "Denied", reason, message),
        Signer::Fail { reason, message } => add_condition(store, name, "Failed", reason, message),
    }
}

fn approve(store: &mut Store, name: &str) {
    add_condition(
        store,
        name,
        "Approved",
        "TestSigner",
        "approved by the test signer",
    );
}

/// Adds a condition without any checks.
pub(super) fn add_condition(
    store: &mut Store,
    name: &str,
    kind: &str,
    reason: &str,
    message: &str,
) {
    let Ok(request) = store.get(&REQUESTS, "", name) else {
        return;
    };
    let mut request = (*request).clone();
    let now = timestamp(now());
    let condition = json!({
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now,
    });
    match request
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut)
    {
        Some(conditions) => conditions.push(condition),
        None => request["status"]["conditions"] = json!([condition]),
    }
    store.replace(&REQUESTS, request);
}

/// Sets the certificate without any checks.
pub(super) fn set_certificate(store: &mut Store, name: &str, pem: &str) {
    let Ok(request) = store.get(&REQUESTS, "", name) else {
        return;
    };
    let mut request = (*request).clone();
    request["status"]["certificate"] = STANDARD.encode(pem).into();
    store.replace(&REQUESTS, request);
}

fn certificate(request: &Value, issuance: &Issuance, authority: &CertificateAuthority) -> String {
    let encoded = request["spec"]["request"].as_str().unwrap_or_default();
    let bytes = STANDARD.decode(encoded).unwrap();
    let (block, _) = first_block(&bytes).unwrap();
    let (_, parsed) = X509CertificationRequest::from_der(&block.contents).unwrap();
    let asked = request["spec"]["expirationSeconds"]
        .as_u64()
        .map(Duration::from_secs);
    let lifetime = issuance.lifetime.or(asked).unwrap_or(YEAR);
    let mut contents = Contents::client(subject(&parsed));
    contents.subject.uid.clone_from(&issuance.uid);
    contents.not_before = now() - issuance.backdate;
    contents.not_after = now() + lifetime;
    contents.provider_id = provider_id(&parsed);
    let public_key = parsed.certification_request_info.subject_pki.raw;
    let issue = |contents: &Contents, authority: &CertificateAuthority| {
        authority.issue_for(contents, public_key).unwrap()
    };
    let Some(flaw) = issuance.flaw else {
        return issue(&contents, authority);
    };
    match flaw {
        Flaw::AnotherKey => authority.issue(&contents).certificate_pem,
        Flaw::AnotherName => {
            contents.subject.common_name = "system:node:another".into();
            issue(&contents, authority)
        }
        Flaw::AnotherUsage => {
            contents.purpose = Purpose::Server;
            issue(&contents, authority)
        }
        Flaw::Expired => issue(&contents.expired(), authority),
        Flaw::NotYetValid => {
            contents.not_before = now() + HOUR;
            contents.not_after = now() + HOUR + lifetime;
            issue(&contents, authority)
        }
        Flaw::Garbage => {
            let body = STANDARD.encode("no certificate");
            format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
        }
        Flaw::NoPem => "not PEM\n".into(),
    }
}

fn subject(request: &X509CertificationRequest<'_>) -> Subject {
    let subject = &request.certification_request_info.subject;
    let text = |value: Option<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
        value
            .and_then(|value| value.as_str().ok())
            .map(str::to_owned)
    };
    Subject {
        organization: text(subject.iter_organization().next()),
        common_name: text(subject.iter_common_name().next()).unwrap_or_default(),
        uid: None,
    }
}

fn provider_id(request: &X509CertificationRequest<'_>) -> Option<Vec<u8>> {
    request
        .certification_request_info
        .iter_attributes()
        .find_map(|attribute| match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(requested) => requested
                .extensions
                .iter()
                .find(|extension| extension.oid.to_id_string() == PROVIDER_ID)
                .map(|extension| extension.value.to_vec()),
            _ => None,
        })
}
