//! Endorsement key certificates with vendor-specific properties. The formats are the same as in published certificates,
//! but all keys and names belong to the tests.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512,
    PKCS_ED25519, PKCS_RSA_SHA256, PKCS_RSA_SHA384, SignatureAlgorithm, SubjectPublicKeyInfo,
};

use super::encoding::{
    Element, explicit_defaults, general_times, leading_zeros, one_set, signed_again,
};
use super::{EkContents, Flaw, authority};
use crate::tlv::{SEQUENCE, oid, sequence, tlv};

/// An endorsement key certificate, and the CAs above it.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate as DER.
    pub certificate: Vec<u8>,
    /// The authorities as DER, starting with the root.
    pub authorities: Vec<Vec<u8>>,
}

impl Issued {
    /// The certificate of the root CA as PEM.
    pub fn root_pem(&self) -> String {
        pem(&self.authorities[0])
    }

    /// The certificate of the signing authority as PEM.
    pub fn issuer_pem(&self) -> String {
        pem(self.authorities.last().expect("there is a root"))
    }

    /// The certificates between the root CA and the endorsement key as DER, starting with the signer of the endorsement
    /// key certificate.
    pub fn chain(&self) -> Vec<Vec<u8>> {
        self.authorities.iter().skip(1).rev().cloned().collect()
    }
}

/// PEM of a certificate.
pub fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text
        .as_bytes()
        .chunks(64)
        .map(String::from_utf8_lossy)
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

/// CAs, each certified by the previous CA.
struct Authorities {
    issuer: Issuer<'static, KeyPair>,
    certificates: Vec<Vec<u8>>,
    /// Changes the encoding of each certificate, which is then signed again.
    encoding: Option<fn(&mut Element)>,
}

impl Authorities {
    fn root(name: &str, algorithm: &'static SignatureAlgorithm) -> Self {
        Self::root_with(name, algorithm, |_| {})
    }

    fn root_with(
        name: &str,
        algorithm: &'static SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Self {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut params = authority(name);
        change(&mut params);
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificates: vec![certificate.der().to_vec()],
            issuer: Issuer::new(params, key),
            encoding: None,
        }
    }

    /// Changes the encoding of the root certificate, and of the certificates below it.
    fn encoded(mut self, encoding: fn(&mut Element)) -> Self {
        self.encoding = Some(encoding);
        self.certificates[0] = self.encode(&self.certificates[0]);
        self
    }

    /// The certificate, signed with the key of the last authority, in the encoding of these authorities.
    fn encode(&self, certificate: &[u8]) -> Vec<u8> {
        match self.encoding {
            Some(encoding) => signed_again(certificate, self.issuer.key(), encoding),
            None => certificate.to_vec(),
        }
    }

    fn below(self, name: &str, algorithm: &'static SignatureAlgorithm) -> Self {
        self.below_with(name, algorithm, |_| {})
    }

    fn below_with(
        mut self,
        name: &str,
        algorithm: &'static SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Self {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut params = authority(name);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let certificate = self.encode(certificate.der());
        self.certificates.push(certificate);
        self.issuer = Issuer::new(params, key);
        self
    }

    fn certify(self, public_key: &[u8]) -> Issued {
        self.certify_with(public_key, |_| {})
    }

    fn certify_with(
        self,
        public_key: &[u8],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let key = SubjectPublicKeyInfo::from_der(public_key).expect("an RSA or ECDSA key");
        let mut params = EkContents::good().to_params(&key);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued {
            certificate: self.encode(certificate.der()),
            authorities: self.certificates,
        }
    }
}

/// Infineon SLB 9672 and 9673: the root and the issuer have P-521 keys, and sign with ECDSA and SHA-512.
pub fn infineon_slb_9672(public_key: &[u8]) -> Issued {
    Authorities::root("OPTIGA ECC Root CA 2", &PKCS_ECDSA_P521_SHA512)
        .below("OPTIGA TPM 2.0 ECC CA 056", &PKCS_ECDSA_P521_SHA512)
        .certify(public_key)
}

/// Infineon's RSA branch: an RSA key certified with RSA and SHA-384.
pub fn infineon_rsa(public_key: &[u8]) -> Issued {
    Authorities::root("OPTIGA RSA Root CA 2", &PKCS_RSA_SHA384)
        .below("OPTIGA TPM 2.0 RSA CA 056", &PKCS_RSA_SHA384)
        .certify(public_key)
}

/// ST's STSAFE and Nuvoton's NPCT75x: a root with a P-521 key above an issuer with a P-384 key.
pub fn nuvoton_npct75x(public_key: &[u8]) -> Issued {
    Authorities::root("NPCTxxx ECC521 RootCA", &PKCS_ECDSA_P521_SHA512)
        .below("NPCTxxx ECC384 LeafCA", &PKCS_ECDSA_P384_SHA384)
        .certify(public_key)
}

/// AMD's firmware TPM, and Intel PTT before the 11th generation: the certificate of an ECC key permits key
/// encipherment, although the profile requires key agreement.
pub fn amd_ftpm(public_key: &[u8]) -> Issued {
    Authorities::root("AMDTPM", &PKCS_ECDSA_P384_SHA384)
        .below("PRG-RN", &PKCS_ECDSA_P256_SHA256)
        .certify_with(public_key, |params| {
            params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
        })
}

/// AMD's Pluton: the certificate of an RSA key permits key agreement, although the profile requires key encipherment.
pub fn amd_pluton(public_key: &[u8]) -> Issued {
    Authorities::root("Pluton Root", &PKCS_ECDSA_P384_SHA384)
        .below("Pluton Factory DEVICE EK ICA", &PKCS_ECDSA_P384_SHA384)
        .certify_with(public_key, |params| {
            params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
        })
}

/// Intel PTT, and AMD's intermediate CAs: each extension that is not critical has `critical FALSE`.
pub fn with_explicit_defaults(public_key: &[u8]) -> Issued {
    in_encoding("TPM EK intermediate for SPTH", explicit_defaults).certify(public_key)
}

/// AMD's intermediate CAs: times before 2050 are encoded with a four-digit year.
pub fn with_general_times(public_key: &[u8]) -> Issued {
    in_encoding("PRG-RN", general_times).certify(public_key)
}

/// Some of Nuvoton's certificates: the serial number begins with zeros.
pub fn with_leading_zeros(public_key: &[u8]) -> Issued {
    in_encoding("Nuvoton TPM Root CA 2110", leading_zeros).certify(public_key)
}

/// Nuvoton's root CAs: all attributes of a name are in one set, which is not sorted.
pub fn with_names_in_one_set(public_key: &[u8]) -> Issued {
    in_encoding("Nuvoton TPM Root CA 2112", one_set).certify(public_key)
}

/// An intermediate CA below a root CA, in this encoding. Both names have three attributes.
fn in_encoding(name: &str, encoding: fn(&mut Element)) -> Authorities {
    let named = |params: &mut CertificateParams| {
        let name = &mut params.distinguished_name;
        name.push(
            DnType::OrganizationName,
            "A Manufacturer of Trusted Platform Modules",
        );
        name.push(DnType::CountryName, "TW");
    };
    Authorities::root_with("a root", &PKCS_ECDSA_P256_SHA256, named)
        .encoded(encoding)
        .below_with(name, &PKCS_ECDSA_P384_SHA384, named)
}

/// A key usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Key encipherment.
    Encipherment,
    /// Key agreement.
    Agreement,
    /// Digital signature.
    Signature,
    /// The signing of certificates.
    Certificates,
}

/// A certificate with these key usages. If there are no key usages, the extension is absent.
pub fn with_usages(public_key: &[u8], usages: &[Usage]) -> Issued {
    let usages = usages.iter().map(|usage| match usage {
        Usage::Encipherment => KeyUsagePurpose::KeyEncipherment,
        Usage::Agreement => KeyUsagePurpose::KeyAgreement,
        Usage::Signature => KeyUsagePurpose::DigitalSignature,
        Usage::Certificates => KeyUsagePurpose::KeyCertSign,
    });
    Authorities::root("a maker", &PKCS_ECDSA_P256_SHA256).certify_with(public_key, |params| {
        params.key_usages = usages.collect();
    })
}

/// A policy in the extension `certificatePolicies`, with its qualifiers.
pub type Policy = (&'static [u64], &'static [&'static [u64]]);

/// `id-qt-cps` and `id-qt-unotice`.
pub const CPS: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 2, 1];
/// See [`CPS`].
pub const USER_NOTICE: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 2, 2];

/// ST, Infineon's older chips (IFX) and Intel: the issuer has critical certificate policies, with a practice statement and
/// a notice.
pub fn st_with_policies(public_key: &[u8]) -> Issued {
    let policies: &[Policy] = &[
        (&[1, 3, 6, 1, 4, 1, 41_366, 1, 1], &[CPS]),
        (&[2, 23, 133, 99, 1], &[USER_NOTICE]),
    ];
    with_policies(public_key, &certificate_policies(policies))
}

/// An issuer with this value of the critical extension `certificatePolicies`.
pub fn with_policies(public_key: &[u8], policies: &[u8]) -> Issued {
    with_critical(public_key, &[2, 5, 29, 32], policies)
}

/// An issuer with this critical extension.
pub fn with_critical(public_key: &[u8], extension: &[u64], value: &[u8]) -> Issued {
    let mut extension = CustomExtension::from_oid_content(extension, value.to_vec());
    extension.set_criticality(true);
    Authorities::root("TPM EK Root CA", &PKCS_ECDSA_P256_SHA256)
        .below_with(
            "TPM EK Intermediate CA 05",
            &PKCS_ECDSA_P256_SHA256,
            |params| {
                params.custom_extensions.push(extension);
            },
        )
        .certify(public_key)
}

/// The value of the extension `certificatePolicies`.
pub fn certificate_policies(policies: &[Policy]) -> Vec<u8> {
    let policies = policies.iter().map(|(policy, qualifiers)| {
        let qualifiers: Vec<_> = qualifiers
            .iter()
            .map(|qualifier| sequence(&[oid(qualifier), tlv(SEQUENCE, &[])]))
            .collect();
        let mut parts = vec![oid(policy)];
        if !qualifiers.is_empty() {
            parts.push(sequence(&qualifiers));
        }
        sequence(&parts)
    });
    sequence(&policies.collect::<Vec<_>>())
}

/// Chips from 2014: signed with RSA and SHA-1. The signature comes from a different certificate, because the test
/// libraries do not sign with SHA-1.
pub fn st_of_2014(public_key: &[u8]) -> Issued {
    let mut issued = Authorities::root("TPM EK Root CA", &PKCS_RSA_SHA256)
        .below("TPM EK Intermediate CA 02", &PKCS_RSA_SHA256)
        .certify(public_key);
    // sha256WithRSAEncryption becomes sha1WithRSAEncryption.
    let of_sha256 = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
    let certificate = &mut issued.certificate;
    for at in 0..certificate.len() - of_sha256.len() {
        if certificate[at..].starts_with(&of_sha256) {
            certificate[at + of_sha256.len() - 1] = 0x05;
        }
    }
    issued
}

/// Intel since the 11th generation: three CAs of the processor, whose certificates the TPM stores, below three CAs of
/// Intel.
pub fn intel_on_die(public_key: &[u8]) -> Issued {
    let algorithm = &PKCS_ECDSA_P384_SHA384;
    Authorities::root("OnDie CA RootCA Certificate Signing", algorithm)
        .below("OnDie CA CSME Intermediate CA", algorithm)
        .below("ODCA 2 CSME P_ADL 00002820 Issuing CA", algorithm)
        .below("CSME ADL ROM CA", algorithm)
        .below("CSME ADL SVN01 Kernel CA", algorithm)
        .below("CSME ADL PTT 01SVN", algorithm)
        .certify(public_key)
}

/// Infineon's first intermediate CAs, whose certificates expired in 2025.
pub fn infineon_expired(public_key: &[u8]) -> Issued {
    infineon_01().certify(public_key)
}

/// Like [`infineon_expired`], but the certificate does not contain the identifier of the issuer's key.
pub fn infineon_expired_without_key_id(public_key: &[u8]) -> Issued {
    infineon_01().certify_with(public_key, |params| {
        params.use_authority_key_identifier_extension = false;
    })
}

fn infineon_01() -> Authorities {
    Authorities::root("IFX TPM EK Root CA", &PKCS_ECDSA_P256_SHA256).below_with(
        "IFX TPM EK Intermediate CA 01",
        &PKCS_ECDSA_P256_SHA256,
        |params| {
            Flaw::Expired.put_into(params);
        },
    )
}

/// A CA that does not permit CAs below it, but has signed the certificate of another CA.
pub fn with_path_length_0(public_key: &[u8]) -> Issued {
    Authorities::root_with("a short root", &PKCS_ECDSA_P256_SHA256, |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    })
    .below("an intermediate", &PKCS_ECDSA_P256_SHA256)
    .certify(public_key)
}

/// The certificate (PEM) of an authority that signs with Ed25519, which no TPM vendor uses.
pub fn ed25519_authority() -> String {
    pem(&Authorities::root("an Ed25519 CA", &PKCS_ED25519).certificates[0])
}

/// A certificate that expires at `certificate`, from a CA whose certificate expires at `authority`.
pub fn ending(public_key: &[u8], certificate: SystemTime, authority: SystemTime) -> Issued {
    Authorities::root_with("an ending root", &PKCS_ECDSA_P256_SHA256, |params| {
        params.not_after = authority.into();
    })
    .certify_with(public_key, |params| params.not_after = certificate.into())
}

/// A certificate from a root CA with this common name.
pub fn by_root(public_key: &[u8], name: &str) -> Issued {
    Authorities::root(name, &PKCS_ECDSA_P256_SHA256).certify(public_key)
}
