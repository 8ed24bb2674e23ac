//! Authentication and authorization.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::resource::{LEASES, NODES, REQUESTS, Target, Verb};
use super::status::Refusal;

/// The group that kubeadm assigns to its bootstrap tokens.
const TOKEN_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

/// The subject attribute that contains a certificate's UID.
const SUBJECT_UID: &str = "1.3.6.1.4.1.57683.2";

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User name.
    pub name: String,
    /// The UID. Empty if the user has no UID.
    pub uid: String,
    /// Groups, `system:authenticated` last.
    pub groups: Vec<String>,
    /// Further attributes of the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    fn of_token(id: &str) -> Self {
        Self {
            name: format!("system:bootstrap:{id}"),
            uid: String::new(),
            groups: ["system:bootstrappers", TOKEN_GROUP, "system:authenticated"]
                .map(str::to_owned)
                .to_vec(),
            extra: BTreeMap::new(),
        }
    }

    fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let text = |value: Result<&str, _>| value.map(str::to_owned).ok();
        // If there are several common names, Go uses the last one.
        let name = subject
            .iter_common_name()
            .last()
            .and_then(|name| text(name.as_str()))?;
        let mut groups: Vec<String> = subject
            .iter_organization()
            .filter_map(|group| text(group.as_str()))
            .collect();
        groups.push("system:authenticated".into());
        let uid = subject
            .iter_attributes()
            .find(|attribute| attribute.attr_type().to_id_string() == SUBJECT_UID)
            .and_then(|attribute| text(attribute.as_str()))
            .unwrap_or_default();
        let digest =
            super::hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der).as_ref());
        let extra = BTreeMap::from([(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("X509SHA256={digest}")],
        )]);
        Some(Self {
            name,
            uid,
            groups,
            extra,
        })
    }

    /// Writes the user into the spec of a request.
    pub(super) fn stamp(&self, spec: &mut Value) {
        let Some(spec) = spec.as_object_mut() else {
            return;
        };
        for field in ["username", "uid", "groups", "extra"] {
            spec.remove(field);
        }
        spec.insert("username".into(), self.name.as_str().into());
        spec.insert("groups".into(), json!(self.groups));
        if !self.uid.is_empty() {
            spec.insert("uid".into(), self.uid.as_str().into());
        }
        if !self.extra.is_empty() {
            spec.insert("extra".into(), json!(self.extra));
        }
    }

    fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|member| member == group)
    }

    fn node_name(&self) -> Option<&str> {
        if self.is_in("system:nodes") {
            self.name.strip_prefix("system:node:")
        } else {
            None
        }
    }
}

/// Verifies credentials.
#[derive(Debug)]
pub(super) struct Authenticator {
    verifier: Arc<dyn ClientCertVerifier>,
    tokens: BTreeMap<String, String>,
}

impl Authenticator {
    /// Creates an authenticator that trusts client certificates from this authority, and does not accept any token yet.
    pub(super) fn new(authority: &CertificateDer<'static>, provider: &Arc<CryptoProvider>) -> Self {
        Self {
            verifier: client_verifier(authority, provider),
            tokens: BTreeMap::new(),
        }
    }

    pub(super) fn add_token(&mut self, id: &str, secret: &str) {
        self.tokens.insert(id.to_owned(), secret.to_owned());
    }

    pub(super) fn revoke_token(&mut self, id: &str) {
        self.tokens.remove(id);
    }

    /// Identifies the user, primarily by the client certificate. The server verifies the certificate for every request.
    pub(super) fn authenticate(
        &self,
        certificates: &[CertificateDer<'static>],
        authorization: Option<&str>,
    ) -> Result<User, Refusal> {
        if let Some((leaf, intermediates)) = certificates.split_first()
            && self
                .verifier
                .verify_client_cert(leaf, intermediates, UnixTime::now())
                .is_ok()
            && let Some(user) = User::of_certificate(leaf)
        {
            return Ok(user);
        }
        authorization
            .and_then(|value| value.strip_prefix("Bearer "))
            .and_then(|token| token.split_once('.'))
            .filter(|(id, secret)| self.tokens.get(*id).is_some_and(|known| known == secret))
            .map(|(id, _)| User::of_token(id))
            .ok_or_else(Refusal::unauthorized)
    }
}

fn client_verifier(
    authority: &CertificateDer<'static>,
    provider: &Arc<CryptoProvider>,
) -> Arc<dyn ClientCertVerifier> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .unwrap()
}

/// Accepts any client certificate in the handshake: the API server rejects an invalid certificate later, in its
/// response, with 401.
#[derive(Debug)]
pub(super) struct AnyClient {
    verifier: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyClient {
    pub(super) fn new(authority: &CertificateDer<'static>, provider: &Arc<CryptoProvider>) -> Self {
        Self {
            verifier: client_verifier(authority, provider),
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Only the key is checked here. The response reports other faults of the certificate.
        let (_, parsed) = X509Certificate::from_der(cert)
            .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let key = SubjectPublicKeyInfoDer::from(parsed.public_key().raw);
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Rejects requests that exceed this user's permissions. The permissions are the same as those from kubeadm's bindings
/// and from the node authorizer.
pub(super) fn authorize(user: &User, target: &Target) -> Result<(), Refusal> {
    let allowed = user.is_in("system:masters")
        || is_public(target)
        || (user.is_in("system:bootstrappers") && may_bootstrap(target))
        || user.node_name().is_some_and(|node| may_node(node, target));
    if allowed {
        Ok(())
    } else {
        Err(Refusal::forbidden(&user.name, target))
    }
}

/// Denies a node write access to the Node of another node (NodeRestriction).
pub(super) fn admit_node(user: &User, target: &Target, name: &str) -> Result<(), Refusal> {
    match user.node_name() {
        Some(node) if target.plural == NODES.plural && node != name => {
            let why = format!("node {node:?} is not allowed to modify node {name:?}");
            let target = Target {
                name: name.to_owned(),
                ..target.clone()
            };
            Err(Refusal::forbidden_because(&target, &why))
        }
        Some(_) | None => Ok(()),
    }
}

fn is_public(target: &Target) -> bool {
    let path = target.path.trim_end_matches('/');
    if asks_who(target) {
        return true;
    }
    target.plural.is_empty()
        && target.verb == Verb::Get
        && (matches!(path, "/version" | "/readyz" | "/livez" | "/healthz")
            || path.starts_with("/api")
            || path.starts_with("/openapi"))
}

/// Whether the request reads the user's own identity (a `SelfSubjectReview`).
pub(super) fn asks_who(target: &Target) -> bool {
    target.verb == Verb::Create
        && target.group == "authentication.k8s.io"
        && target.plural == "selfsubjectreviews"
}

fn may_file_requests(target: &Target) -> bool {
    target.group == REQUESTS.group
        && target.plural == REQUESTS.plural
        && target.subresource.is_empty()
        && matches!(
            target.verb,
            Verb::Create | Verb::Get | Verb::List | Verb::Watch
        )
}

fn may_bootstrap(target: &Target) -> bool {
    // kubeadm:get-nodes
    let gets_node = target.group.is_empty()
        && target.plural == NODES.plural
        && target.subresource.is_empty()
        && target.verb == Verb::Get;
    may_file_requests(target) || gets_node
}

fn may_node(node: &str, target: &Target) -> bool {
    let selects_itself = target
        .parameter("fieldSelector")
        .is_some_and(|it| it == format!("metadata.name={node}"));
    match (target.group.as_str(), target.plural.as_str()) {
        ("", "nodes") => match target.verb {
            Verb::Create | Verb::Update | Verb::Patch => true,
            Verb::Get => target.name == node,
            Verb::List | Verb::Watch => selects_itself,
            Verb::Delete | Verb::Other => false,
        },
        ("" | "events.k8s.io", "events") => {
            matches!(target.verb, Verb::Create | Verb::Update | Verb::Patch)
        }
        (group, plural) if group == LEASES.group && plural == LEASES.plural => {
            let own = target.name == node || target.verb == Verb::Create;
            let verb = matches!(
                target.verb,
                Verb::Get | Verb::Create | Verb::Update | Verb::Patch
            );
            target.namespace == "kube-node-lease" && own && verb
        }
        _ => may_file_requests(target),
    }
}
