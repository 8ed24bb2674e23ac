//! Keys and statements that are not from a TPM.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use rcgen::KeyPair;

/// An ECDSA P-256 key that claims to be a TPM key.
#[derive(Clone)]
pub struct SoftwareKey {
    pem: String,
    pkcs8: Vec<u8>,
}

impl std::fmt::Debug for SoftwareKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftwareKey").finish_non_exhaustive()
    }
}

impl Default for SoftwareKey {
    fn default() -> Self {
        Self::generate()
    }
}

impl SoftwareKey {
    /// Generates a key.
    pub fn generate() -> Self {
        let key = KeyPair::generate().unwrap();
        Self {
            pem: key.serialize_pem(),
            pkcs8: key.serialize_der(),
        }
    }

    /// The private key, as PKCS#8.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// The `TPMT_PUBLIC` of an ECDSA P-256 attestation key with SHA-256 and these attributes. The attributes can be
    /// false. The attributes of a valid key are 0x50472.
    pub fn public(&self, attributes: u32) -> Vec<u8> {
        let point = self.pair().public_key().as_ref().to_vec();
        let (x, y) = point[1..].split_at(32);
        let mut public = Vec::new();
        // The type is TPM_ALG_ECC, and the Name uses SHA-256.
        public.extend([0x00, 0x23, 0x00, 0x0b]);
        public.extend(attributes.to_be_bytes());
        // The policy is empty. The parameters are: no symmetric cipher, ECDSA with SHA-256, P-256, and no key
        // derivation.
        public.extend([0x00, 0x00]);
        public.extend([0x00, 0x10, 0x00, 0x18, 0x00, 0x0b, 0x00, 0x03, 0x00, 0x10]);
        for coordinate in [x, y] {
            public.extend([0x00, 0x20]);
            public.extend(coordinate);
        }
        public
    }

    /// The `TPMT_SIGNATURE` over these bytes.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let signature = self.pair().sign(&SystemRandom::new(), message).unwrap();
        let (r, s) = signature.as_ref().split_at(32);
        // ECDSA with SHA-256.
        let mut structure = vec![0x00, 0x18, 0x00, 0x0b];
        for part in [r, s] {
            structure.extend([0x00, 0x20]);
            structure.extend(part);
        }
        structure
    }

    fn pair(&self) -> EcdsaKeyPair {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.pkcs8).unwrap()
    }
}

/// The `TPMS_ATTEST` of a quote that is not from a TPM, as if it were signed with a primary key in the endorsement
/// hierarchy that has this public area. The length of the register digests determines the bank: SHA-256 or SHA-384.
pub fn forged_quote<D: AsRef<[u8]>>(
    ak_public: &[u8],
    qualifying_data: &[u8],
    registers: &BTreeMap<u8, D>,
) -> Vec<u8> {
    const ENDORSEMENT: [u8; 4] = 0x4000_000b_u32.to_be_bytes();
    let name = |bytes: &[u8]| [&[0x00, 0x0b], digest(&SHA256, bytes).as_ref()].concat();
    let qualified = name(&[&ENDORSEMENT[..], &name(ak_public)].concat());
    let mut selected = [0_u8; 3];
    for register in registers.keys() {
        selected[usize::from(register / 8)] |= 1 << (register % 8);
    }
    let digests = registers.values().map(AsRef::as_ref);
    let values = digests.clone().collect::<Vec<_>>().concat();
    let bank = match digests.map(<[u8]>::len).next() {
        Some(48) => 0x0c,
        _ => 0x0b,
    };
    [
        // TPM_GENERATED_VALUE, TPM_ST_ATTEST_QUOTE.
        &[0xff, 0x54, 0x43, 0x47, 0x80, 0x18][..],
        &super::with_length(&qualified),
        &super::with_length(qualifying_data),
        // The values are the clock, two resets, no restart, "safe", and the firmware version.
        &60_000_u64.to_be_bytes(),
        &2_u32.to_be_bytes(),
        &0_u32.to_be_bytes(),
        &[1],
        &0x2019_1023_0016_3636_u64.to_be_bytes(),
        // The registers belong to one bank.
        &[0x00, 0x00, 0x00, 0x01, 0x00, bank, 0x03],
        &selected,
        &super::with_length(digest(&SHA256, &values).as_ref()),
    ]
    .concat()
}
