//! A maker of TPMs: a root and an intermediate authority that certify endorsement keys.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose,
};

use crate::process::Scratch;

/// The authorities of a maker of TPMs. Keys are ECDSA P-256.
///
/// `swtpm_setup` signs with the intermediate one, as makers do.
#[derive(Debug)]
pub struct EkCa {
    root_pem: String,
    intermediate_pem: String,
    /// What `swtpm_localca` reads and writes: `signkey.pem`, `issuercert.pem`, `certserial`.
    local_ca: Scratch,
}

impl Default for EkCa {
    fn default() -> Self {
        Self::new("TPM maker of a test")
    }
}

impl EkCa {
    /// Makes the authorities of the maker `name`.
    pub fn new(name: &str) -> Self {
        let root_key = KeyPair::generate().unwrap();
        let root_params = authority(&format!("{name} root"));
        let root_pem = root_params.self_signed(&root_key).unwrap().pem();
        let root = Issuer::new(root_params, root_key);
        let key = KeyPair::generate().unwrap();
        let params = authority(&format!("{name} intermediate"));
        let intermediate_pem = params.signed_by(&key, &root).unwrap().pem();
        let local_ca = Scratch::new("local-ca");
        local_ca.write("signkey.pem", key.serialize_pem());
        local_ca.write("issuercert.pem", &intermediate_pem);
        // An empty value in the configuration is refused: it has to name a file.
        local_ca.write("options", "");
        Self {
            root_pem,
            intermediate_pem,
            local_ca,
        }
    }

    /// The certificate of the root, PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// The certificate of the authority between the root and the endorsement keys, PEM.
    pub fn intermediate_pem(&self) -> &str {
        &self.intermediate_pem
    }

    /// Where the files of `swtpm_localca` are.
    pub(crate) fn local_ca(&self) -> &Scratch {
        &self.local_ca
    }
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.key_identifier_method = KeyIdMethod::Sha256;
    params.use_authority_key_identifier_extension = true;
    params
}
