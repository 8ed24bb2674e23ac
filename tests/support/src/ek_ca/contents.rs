//! The contents of endorsement key certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PublicKeyData, SigningKey as _, SubjectPublicKeyInfo,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::clock::now;
use crate::tlv::{CONTEXT_0, CONTEXT_1, OCTET_STRING, SET, algorithm, oid, sequence, tlv};

/// `tcg-kp-EKCertificate`: the key usage in the certificate of an endorsement key.
pub const EK_USAGE: &[u64] = &[2, 23, 133, 8, 1];

/// `tcg-kp-AIKCertificate`: the key usage in the certificate of an attestation key.
pub const AIK_USAGE: &[u64] = &[2, 23, 133, 8, 3];

/// The last second of 9999, which means "no expiry" (RFC 5280, 4.1.2.5).
const NO_END: Duration = Duration::from_secs(253_402_300_799);

const DAY: Duration = Duration::from_secs(24 * 3600);

const ALTERNATIVE_NAME: &[u64] = &[2, 5, 29, 17];

/// `tcg-at-tpmManufacturer`, `-tpmModel` and `-tpmVersion`, with the values of swtpm.
const TPM: [(&[u64], &str); 3] = [
    (&[2, 23, 133, 2, 1], "id:00001014"),
    (&[2, 23, 133, 2, 2], "swtpm"),
    (&[2, 23, 133, 2, 3], "id:20191023"),
];

const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
const CONTEXT_2: u8 = 0xa2;
const CONTEXT_4: u8 = 0xa4;

const RSAES_OAEP: &[u64] = &[1, 2, 840, 113_549, 1, 1, 7];
const MGF1: &[u64] = &[1, 2, 840, 113_549, 1, 1, 8];
const P_SPECIFIED: &[u64] = &[1, 2, 840, 113_549, 1, 1, 9];
const SHA256: &[u64] = &[2, 16, 840, 1, 101, 3, 4, 2, 1];
const ECDSA_WITH_SHA256: &[u64] = &[1, 2, 840, 10045, 4, 3, 2];

/// The format in which a certificate contains the model of the TPM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlternativeName {
    /// In a critical extension, which is required if the subject is empty. A verifier that does not support the
    /// extension must reject the certificate.
    Critical,
    /// In an extension that is not critical.
    NotCritical,
    /// The certificate does not contain the model.
    Absent,
}

/// The contents of a certificate, except its key and its issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EkContents {
    /// The start of the validity.
    pub not_before: SystemTime,
    /// The end of the validity.
    pub not_after: SystemTime,
    /// The extended key usages. If there are none, the extension is absent.
    pub usages: Vec<&'static [u64]>,
    /// The format of the TPM model.
    pub alternative_name: AlternativeName,
    /// Whether the certificate belongs to an authority, which can sign certificates.
    pub authority: bool,
    /// The common name in the subject, if any.
    pub common_name: Option<String>,
    /// An extension that no verifier supports, and whether it is critical.
    pub unknown_extension: Option<bool>,
}

impl EkContents {
    /// Contents according to the TCG's "EK Credential Profile": no expiry, no subject, a critical alternative name, and
    /// the key usages for the key type.
    pub fn good() -> Self {
        Self {
            not_before: now() - DAY,
            not_after: UNIX_EPOCH + NO_END,
            usages: vec![EK_USAGE],
            alternative_name: AlternativeName::Critical,
            authority: false,
            common_name: None,
            unknown_extension: None,
        }
    }

    pub(super) fn to_params(&self, key: &SubjectPublicKeyInfo) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = &self.common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.not_before = self.not_before.into();
        params.not_after = self.not_after.into();
        params.use_authority_key_identifier_extension = true;
        params.is_ca = match self.authority {
            true => IsCa::Ca(rcgen::BasicConstraints::Unconstrained),
            false => IsCa::ExplicitNoCa,
        };
        let usage = match key.algorithm() == &rcgen::PKCS_RSA_SHA256 {
            true => KeyUsagePurpose::KeyEncipherment,
            false => KeyUsagePurpose::KeyAgreement,
        };
        params.key_usages = vec![usage];
        let usages = self.usages.iter();
        params.extended_key_usages = usages
            .map(|usage| ExtendedKeyUsagePurpose::Other(usage.to_vec()))
            .collect();
        let critical = match self.alternative_name {
            AlternativeName::Critical => Some(true),
            AlternativeName::NotCritical => Some(false),
            AlternativeName::Absent => None,
        };
        let named = critical.map(|critical| (ALTERNATIVE_NAME, model(), critical));
        let unknown = self
            .unknown_extension
            .map(|critical| (&[2, 23, 133, 99][..], tlv(SET, &[]), critical));
        for (oid, value, critical) in named.into_iter().chain(unknown) {
            let mut extension = CustomExtension::from_oid_content(oid, value);
            extension.set_criticality(critical);
            params.custom_extensions.push(extension);
        }
        params
    }
}

/// A `GeneralNames` value with a directory name that contains the TPM attributes.
fn model() -> Vec<u8> {
    let attributes = TPM.map(|(arcs, value)| {
        let pair = [oid(arcs), tlv(UTF8_STRING, value.as_bytes())];
        tlv(SET, &sequence(&pair))
    });
    sequence(&[tlv(CONTEXT_4, &sequence(&attributes))])
}

/// The `SubjectPublicKeyInfo` of the same RSA key, restricted to RSAES-OAEP with SHA-256 (RFC 4055, 4.1).
///
/// # Panics
///
/// Panics if `spki` is not the DER of a `SubjectPublicKeyInfo`.
pub fn oaep_spki(spki: &[u8]) -> Vec<u8> {
    let parsed = x509_parser::x509::SubjectPublicKeyInfo::from_der(spki);
    let (_, parsed) = parsed.expect("a public key");
    let label = sequence(&[oid(P_SPECIFIED), tlv(OCTET_STRING, &[])]);
    let parameters = sequence(&[
        tlv(CONTEXT_0, &algorithm(SHA256)),
        tlv(CONTEXT_1, &sequence(&[oid(MGF1), algorithm(SHA256)])),
        tlv(CONTEXT_2, &label),
    ]);
    sequence(&[
        sequence(&[oid(RSAES_OAEP), parameters]),
        bit_string(&parsed.subject_public_key.data),
    ])
}

/// A copy of a certificate with a different key, signed again.
pub(super) fn with_another_key(certificate: &[u8], spki: &[u8], issuer: &KeyPair) -> Vec<u8> {
    let (_, parsed) = X509Certificate::from_der(certificate).expect("a certificate");
    let signed = parsed.tbs_certificate.as_ref();
    let old = parsed.public_key().raw;
    let start = signed.windows(old.len()).position(|window| window == old);
    let start = start.expect("the certificate contains its key");
    // The tag and the length of the signed part. The length field is 2 bytes long, because the part is longer than
    // 255 bytes.
    let (before, after) = (&signed[4..start], &signed[start + old.len()..]);
    let signed = sequence(&[before.to_vec(), spki.to_vec(), after.to_vec()]);
    let signature = issuer.sign(&signed).expect("it signs");
    sequence(&[
        signed,
        sequence(&[oid(ECDSA_WITH_SHA256)]),
        bit_string(&signature),
    ])
}

fn bit_string(bytes: &[u8]) -> Vec<u8> {
    tlv(BIT_STRING, &[&[0], bytes].concat())
}
