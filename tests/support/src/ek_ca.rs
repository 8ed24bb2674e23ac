//! A TPM manufacturer: a root CA and intermediate CAs that certify endorsement keys, correctly or with flaws.
//!
//! ```no_run
//! use std::sync::Arc;
//! use kubelet_authenticator_test_support::ek_ca::{EkCa, EkContents};
//! use kubelet_authenticator_test_support::swtpm::Swtpm;
//! use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
//!
//! let maker = Arc::new(EkCa::new("a maker"));
//! let machine = TpmMachine::new(Arc::new(Swtpm::made_by(&maker)), EndorsementKey::P256);
//! let contents = EkContents { usages: vec![], ..EkContents::good() };
//! let certificate = maker.certify(&machine.ek_spki(), &contents);
//! machine.tpm().write_certificate(EndorsementKey::P256.certificate_index(), &certificate);
//! ```

mod contents;
mod encoding;
mod flaw;
pub mod vendors;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, PublicKeyData as _, SubjectPublicKeyInfo,
};

pub use self::contents::{AIK_USAGE, AlternativeName, EK_USAGE, EkContents, oaep_spki};
pub use self::flaw::Flaw;
use crate::process::Scratch;

/// The intermediate CAs between the root CA and the endorsement keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intermediates {
    /// This number of CAs. Each CA is certified by the previous one.
    Good(usize),
    /// The certificate of one authority has expired.
    Expired,
    /// One certificate does not belong to an authority.
    NotAnAuthority,
}

/// The CAs of a TPM manufacturer. Their keys are ECDSA P-256.
///
/// Like TPM vendors, `swtpm_setup` signs endorsement key certificates with the last CA.
pub struct EkCa {
    root_pem: String,
    intermediates_pem: String,
    intermediates: Vec<Vec<u8>>,
    /// The name of the root CA, and its public key as DER.
    root: (String, Vec<u8>),
    issuer: Issuer<'static, KeyPair>,
    /// The files of `swtpm_localca`: `signkey.pem`, `issuercert.pem`, `certserial`.
    local_ca: Scratch,
}

impl std::fmt::Debug for EkCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EkCa").finish_non_exhaustive()
    }
}

impl Default for EkCa {
    fn default() -> Self {
        Self::new("TPM maker of a test")
    }
}

impl EkCa {
    /// Creates the CAs of the manufacturer `name`: a root CA and an intermediate CA.
    ///
    /// A second manufacturer with the same name has the same subjects, but different keys.
    pub fn new(name: &str) -> Self {
        Self::with_intermediates(name, Intermediates::Good(1))
    }

    /// Creates the CAs of the manufacturer `name`, with these intermediate CAs.
    pub fn with_intermediates(name: &str, intermediates: Intermediates) -> Self {
        match intermediates {
            Intermediates::Good(count) => Self::make(name, count, None),
            Intermediates::Expired => Self::with_flaw(name, 1, 1, Flaw::Expired),
            Intermediates::NotAnAuthority => Self::with_flaw(name, 1, 1, Flaw::NotAnAuthority),
        }
    }

    /// Creates the CAs of the manufacturer `name`, with `count` intermediate CAs. The CA with the number `number` has a
    /// flaw. The root CA is number 0.
    pub fn with_flaw(name: &str, count: usize, number: usize, flaw: Flaw) -> Self {
        Self::make(name, count, Some((number, flaw)))
    }

    fn make(name: &str, count: usize, flaw: Option<(usize, Flaw)>) -> Self {
        let params = |number: usize, common_name: &str| {
            let mut params = authority(common_name);
            if let Some((_, flaw)) = flaw.filter(|(flawed, _)| *flawed == number) {
                flaw.put_into(&mut params);
            }
            params
        };
        let root_key = KeyPair::generate().unwrap();
        let root = params(0, &format!("{name} root"));
        let of_root = (format!("{name} root"), root_key.subject_public_key_info());
        let root_pem = root.self_signed(&root_key).unwrap().pem();
        let mut issuer = Issuer::new(root, root_key);
        let mut issuer_pem = root_pem.clone();
        let mut intermediates_pem = String::new();
        let mut intermediates = Vec::new();
        for number in 1..=count {
            let key = KeyPair::generate().unwrap();
            let params = params(number, &format!("{name} intermediate {number}"));
            let certificate = params.signed_by(&key, &issuer).unwrap();
            issuer_pem = certificate.pem();
            // The signing certificate comes first, as in a chain.
            intermediates_pem.insert_str(0, &issuer_pem);
            intermediates.insert(0, certificate.der().to_vec());
            issuer = Issuer::new(params, key);
        }
        let local_ca = Scratch::new("local-ca");
        local_ca.write("signkey.pem", issuer.key().serialize_pem());
        local_ca.write("issuercert.pem", &issuer_pem);
        // The configuration must contain a path, because an empty value is rejected.
        local_ca.write("options", "");
        Self {
            root_pem,
            intermediates_pem,
            intermediates,
            root: of_root,
            issuer,
            local_ca,
        }
    }

    /// The certificate of the root CA as PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// A certificate for the root CA that the last CA of `other` has signed, as PEM.
    pub fn root_cross_signed_by(&self, other: &Self) -> String {
        let (name, public_key) = &self.root;
        let key = SubjectPublicKeyInfo::from_der(public_key).unwrap();
        let certificate = authority(name).signed_by(&key, &other.issuer);
        certificate.unwrap().pem()
    }

    /// The certificates of the intermediate CAs as PEM, each before the certificate of its signer. Empty if there are
    /// no intermediate CAs.
    pub fn intermediates_pem(&self) -> &str {
        &self.intermediates_pem
    }

    /// The certificates of the intermediate CAs as DER, in the same order as in [`EkCa::intermediates_pem`].
    pub fn intermediates(&self) -> &[Vec<u8>] {
        &self.intermediates
    }

    /// Certifies an endorsement key (the DER of its `SubjectPublicKeyInfo`). Returns the certificate as DER.
    ///
    /// # Panics
    ///
    /// Panics if `public_key` is neither an RSA nor an ECDSA key.
    #[track_caller]
    pub fn certify(&self, public_key: &[u8], contents: &EkContents) -> Vec<u8> {
        let key = SubjectPublicKeyInfo::from_der(public_key).expect("an RSA or ECDSA key");
        let certificate = contents.to_params(&key).signed_by(&key, &self.issuer);
        certificate
            .expect("the certificate can be signed")
            .der()
            .to_vec()
    }

    /// Like [`EkCa::certify`]. The certificate restricts an RSA key to RSAES-OAEP, as in the certificates of some
    /// vendors.
    #[track_caller]
    pub fn certify_oaep(&self, public_key: &[u8], contents: &EkContents) -> Vec<u8> {
        let certificate = self.certify(public_key, contents);
        contents::with_another_key(&certificate, &oaep_spki(public_key), self.issuer.key())
    }

    /// The directory with the files of `swtpm_localca`.
    pub(crate) fn local_ca(&self) -> &Scratch {
        &self.local_ca
    }
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.key_identifier_method = KeyIdMethod::Sha256;
    params.use_authority_key_identifier_extension = true;
    params
}
