//! A certificate authority for tests, which issues server certificates, client certificates, and certificates for
//! requests.
//!
//! Keys are ECDSA P-256, and key files are PKCS#8. The code under test does not use this code.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::clock::now;

/// The subject attribute that contains Kubernetes' certificate UID (`AllowParsingUserUIDFromCertAuth`).
pub const SUBJECT_UID: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];

/// The extension with the provider identifier from the kubelet authentication proposal.
pub const PROVIDER_ID: &[u64] = &[1, 3, 6, 1, 4, 1, 11129, 2, 1, 21];

/// The default lifetime of the certificates in tests.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The time by which Kubernetes signers backdate a certificate.
pub const BACKDATED: Duration = Duration::from_secs(5 * 60);

/// A certificate and its private key, both as PEM.
#[derive(Clone)]
pub struct KeyAndCertificate {
    /// The certificate.
    pub certificate_pem: String,
    /// The key as PKCS#8.
    pub key_pem: String,
}

impl std::fmt::Debug for KeyAndCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyAndCertificate").finish_non_exhaustive()
    }
}

impl KeyAndCertificate {
    /// The certificate as DER.
    pub fn certificate_der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate_pem.as_bytes()).unwrap()
    }

    /// Returns the key as the type that rustls uses.
    pub fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).unwrap()
    }

    /// Writes `<name>.crt` and `<name>.key` (0600) into `dir`.
    pub fn write(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let certificate = dir.join(format!("{name}.crt"));
        let key = dir.join(format!("{name}.key"));
        fs::write(&certificate, &self.certificate_pem).unwrap();
        write_private(&key, &self.key_pem);
        (certificate, key)
    }
}

/// The subject of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The organization, which is the group in Kubernetes, if any.
    pub organization: Option<String>,
    /// The common name, which is the user name in Kubernetes.
    pub common_name: String,
    /// The certificate UID, if any.
    pub uid: Option<String>,
}

impl Subject {
    /// Creates a subject with only a common name.
    pub fn user(common_name: &str) -> Self {
        Self {
            organization: None,
            common_name: common_name.into(),
            uid: None,
        }
    }

    /// Creates the subject of a node's client certificate.
    pub fn node(name: &str) -> Self {
        Self {
            organization: Some("system:nodes".into()),
            common_name: format!("system:node:{name}"),
            uid: None,
        }
    }

    /// Adds a certificate UID to the subject.
    pub fn with_uid(mut self, uid: &str) -> Self {
        self.uid = Some(uid.into());
        self
    }

    fn to_name(&self) -> DistinguishedName {
        let mut name = DistinguishedName::new();
        if let Some(organization) = &self.organization {
            name.push(DnType::OrganizationName, organization.as_str());
        }
        name.push(DnType::CommonName, self.common_name.as_str());
        if let Some(uid) = &self.uid {
            name.push(DnType::from_oid(SUBJECT_UID), uid.as_str());
        }
        name
    }
}

/// The purpose of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Client authentication.
    Client,
    /// Server authentication.
    Server,
}

/// The contents of a certificate, except its key and its issuer.
#[derive(Debug, Clone)]
pub struct Contents {
    /// The subject of the certificate.
    pub subject: Subject,
    /// The extended key usage.
    pub purpose: Purpose,
    /// The start of the validity.
    pub not_before: SystemTime,
    /// The end of the validity.
    pub not_after: SystemTime,
    /// The DNS names and IP addresses.
    pub alternative_names: Vec<String>,
    /// The value of the extension with the provider identifier, as DER, if any.
    pub provider_id: Option<Vec<u8>>,
    /// Whether this extension is marked as critical.
    pub provider_id_critical: bool,
}

impl Contents {
    /// The contents of a client certificate that became valid 5 minutes ago, and is valid for one day.
    pub fn client(subject: Subject) -> Self {
        Self::new(subject, Purpose::Client)
    }

    /// The contents of a server certificate for these DNS names and IP addresses, with the same validity as
    /// [`Contents::client`].
    pub fn server(alternative_names: &[&str]) -> Self {
        let mut contents = Self::new(Subject::user("kube-apiserver"), Purpose::Server);
        contents.alternative_names = alternative_names.iter().map(ToString::to_string).collect();
        contents
    }

    /// The same contents, but the certificate expired an hour ago.
    pub fn expired(mut self) -> Self {
        self.not_before = now() - 2 * DAY;
        self.not_after = now() - DAY / 24;
        self
    }

    /// The same contents, but the certificate becomes valid in an hour.
    pub fn not_yet_valid(mut self) -> Self {
        self.not_before = now() + DAY / 24;
        self
    }

    fn new(subject: Subject, purpose: Purpose) -> Self {
        Self {
            subject,
            purpose,
            not_before: now() - BACKDATED,
            not_after: now() + DAY,
            alternative_names: Vec::new(),
            provider_id: None,
            provider_id_critical: false,
        }
    }

    fn to_params(&self) -> CertificateParams {
        let mut params = CertificateParams::new(self.alternative_names.clone()).unwrap();
        params.distinguished_name = self.subject.to_name();
        params.not_before = self.not_before.into();
        params.not_after = self.not_after.into();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match self.purpose {
            Purpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
            Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        if let Some(value) = &self.provider_id {
            let mut extension = CustomExtension::from_oid_content(PROVIDER_ID, value.clone());
            extension.set_criticality(self.provider_id_critical);
            params.custom_extensions.push(extension);
        }
        params
    }
}

/// A certificate authority.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    pair: KeyAndCertificate,
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateAuthority")
            .finish_non_exhaustive()
    }
}

impl CertificateAuthority {
    /// Creates an authority with this common name that is valid for one year.
    pub fn new(common_name: &str) -> Self {
        Self::with_key(common_name, KeyPair::generate().unwrap())
    }

    /// Like [`CertificateAuthority::new`], but with this key.
    pub fn with_key(common_name: &str, key: KeyPair) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = Subject::user(common_name).to_name();
        params.not_before = (now() - BACKDATED).into();
        params.not_after = (now() + 365 * DAY).into();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
        ];
        let certificate = params.self_signed(&key).unwrap();
        let pair = KeyAndCertificate {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        };
        Self {
            issuer: Issuer::new(params, key),
            pair,
        }
    }

    /// Creates the authority with this common name, this certificate and this key.
    pub fn of_pair(common_name: &str, pair: &KeyAndCertificate) -> Self {
        let key = KeyPair::from_pem(&pair.key_pem).unwrap();
        Self {
            pair: pair.clone(),
            ..Self::with_key(common_name, key)
        }
    }

    /// The authority's certificate as PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.pair.certificate_pem
    }

    /// The authority's certificate as DER.
    pub fn certificate_der(&self) -> CertificateDer<'static> {
        self.pair.certificate_der()
    }

    /// The authority's certificate and key.
    pub fn pair(&self) -> &KeyAndCertificate {
        &self.pair
    }

    /// Issues a certificate with these contents for a new key.
    pub fn issue(&self, contents: &Contents) -> KeyAndCertificate {
        let key = KeyPair::generate().unwrap();
        KeyAndCertificate {
            certificate_pem: self.sign(contents, &key),
            key_pem: key.serialize_pem(),
        }
    }

    /// Issues a certificate (PEM) with these contents for a public key (the DER of its SubjectPublicKeyInfo).
    pub fn issue_for(
        &self,
        contents: &Contents,
        public_key: &[u8],
    ) -> Result<String, rcgen::Error> {
        let key = rcgen::SubjectPublicKeyInfo::from_der(public_key)?;
        Ok(self.sign(contents, &key))
    }

    fn sign(&self, contents: &Contents, key: &impl PublicKeyData) -> String {
        contents
            .to_params()
            .signed_by(key, &self.issuer)
            .unwrap()
            .pem()
    }
}

/// Creates a certificate request (PEM) for a new key, and also returns the key (PKCS#8 PEM).
///
/// If a provider identifier is given, the request contains the extension with its DER UTF8String.
pub fn certificate_request(subject: &Subject, provider_id: Option<&str>) -> (String, String) {
    let key_pem = KeyPair::generate().unwrap().serialize_pem();
    let request = certificate_request_with(&key_pem, subject, provider_id);
    (request, key_pem)
}

/// Creates a certificate request (PEM) for an existing key (PKCS#8 PEM).
pub fn certificate_request_with(
    key_pem: &str,
    subject: &Subject,
    provider_id: Option<&str>,
) -> String {
    let key = KeyPair::from_pem(key_pem).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = subject.to_name();
    if let Some(provider_id) = provider_id {
        let length = u8::try_from(provider_id.len()).expect("short form of a DER length");
        let value = [&[0x0c, length], provider_id.as_bytes()].concat();
        params
            .custom_extensions
            .push(CustomExtension::from_oid_content(PROVIDER_ID, value));
    }
    let request = params.serialize_request(&key).unwrap();
    request.pem().unwrap()
}

/// The private key (PEM) in the format that older Go programs write: SEC1 or PKCS#1.
pub fn traditional_key(pem: &str) -> String {
    let mut openssl = Command::new("openssl");
    openssl
        .args(["pkey", "-traditional"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut openssl = openssl.spawn().expect("openssl can be started");
    let mut input = openssl.stdin.take().expect("it is piped");
    input.write_all(pem.as_bytes()).expect("openssl reads it");
    drop(input);
    let output = openssl
        .wait_with_output()
        .expect("a child can be waited for");
    assert!(output.status.success(), "openssl: {}", output.status);
    String::from_utf8(output.stdout).expect("PEM is text")
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, contents: &str) {
    use std::os::unix::fs::OpenOptionsExt;

    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .unwrap();
    file.write_all(contents.as_bytes()).unwrap();
}
