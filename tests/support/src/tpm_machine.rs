//! The attestation operations of a machine with a TPM, and possible attacks, implemented with tpm2-tools.
//!
//! This module does not share code with the code under test, so tests can use it instead of the plugin, and verify the
//! plugin's results with it.
//!
//! ```no_run
//! use std::sync::Arc;
//! use kubelet_authenticator_test_support::swtpm::Swtpm;
//! use kubelet_authenticator_test_support::tpm_machine::{AttestationKey, EndorsementKey, TpmMachine};
//!
//! let machine = TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P384);
//! let (ek, ak) = (machine.ek_public(), machine.ak_public());
//! // ... a verifier makes a credential for them ...
//! # let (blob, encrypted_secret) = (vec![], vec![]);
//! let secret = machine.activate(&blob, &encrypted_secret).unwrap();
//! let quote = machine.quote(&[7; 32], &[0, 4, 7]);
//!
//! let forger = machine.with_attestation_key(AttestationKey::unrestricted());
//! let signature = forger.sign(&quote.attest).unwrap();
//! ```
//!
//! Structures are bytes in the TPM's encoding, and `TPM2B` structures have no length bytes. After each call, the TPM
//! does not contain any objects or sessions, including older ones.
//!
//! # Panics
//!
//! Panics if a TPM rejects a valid operation. Operations that a TPM can reject return a `Result` with the message of
//! the tools.

mod keys;
mod software;
mod statements;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::keys::{AttestationKey, EndorsementKey};
pub use self::software::{SoftwareKey, forged_quote};
use crate::hex::hex;
use crate::swtpm::{Sequence, Swtpm};

/// The beginning of tpm2-tools' credential files, and the version of their format.
const CREDENTIAL: [u8; 8] = [0xba, 0xdc, 0xc0, 0xde, 0, 0, 0, 1];

/// A signed statement from a TPM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// `TPMS_ATTEST`.
    pub attest: Vec<u8>,
    /// The `TPMT_SIGNATURE` over the statement.
    pub signature: Vec<u8>,
}

/// A quote of PCRs in the SHA-256 bank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    /// `TPMS_ATTEST`.
    pub attest: Vec<u8>,
    /// The `TPMT_SIGNATURE` over the quote.
    pub signature: Vec<u8>,
    /// The PCRs with their values.
    pub registers: BTreeMap<u8, [u8; 32]>,
}

/// A TPM, with the keys that a machine uses.
#[derive(Debug, Clone)]
pub struct TpmMachine {
    tpm: Arc<Swtpm>,
    endorsement: EndorsementKey,
    attestation: AttestationKey,
}

impl TpmMachine {
    /// Creates a machine that uses this endorsement key, and a valid ECDSA P-256 attestation key.
    pub fn new(tpm: Arc<Swtpm>, endorsement: EndorsementKey) -> Self {
        Self {
            tpm,
            endorsement,
            attestation: AttestationKey::ecdsa(),
        }
    }

    /// Uses a different attestation key.
    pub fn with_attestation_key(&self, attestation: AttestationKey) -> Self {
        Self {
            attestation,
            ..self.clone()
        }
    }

    /// Uses a different endorsement key.
    pub fn with_endorsement_key(&self, endorsement: EndorsementKey) -> Self {
        Self {
            endorsement,
            ..self.clone()
        }
    }

    /// The machine's TPM.
    pub fn tpm(&self) -> &Arc<Swtpm> {
        &self.tpm
    }

    /// The `TPMT_PUBLIC` of the endorsement key.
    #[track_caller]
    pub fn ek_public(&self) -> Vec<u8> {
        let sequence = self.tpm.tools().sequence();
        self.endorsement.load(&sequence, "tss");
        without_length(sequence.read("ek.pub"))
    }

    /// The `SubjectPublicKeyInfo` of the endorsement key as DER.
    #[track_caller]
    pub fn ek_spki(&self) -> Vec<u8> {
        let sequence = self.tpm.tools().sequence();
        self.endorsement.load(&sequence, "der");
        sequence.read("ek.pub")
    }

    /// The certificate of the endorsement key as DER, if the TPM contains it.
    #[track_caller]
    pub fn ek_certificate(&self) -> Option<Vec<u8>> {
        self.tpm
            .read_certificate(self.endorsement.certificate_index())
    }

    /// The `TPMT_PUBLIC` of the attestation key.
    #[track_caller]
    pub fn ak_public(&self) -> Vec<u8> {
        let sequence = self.loaded();
        sequence.must(&["tpm2_readpublic", "-c", "ak", "-f", "tss", "-o", "ak.pub"]);
        without_length(sequence.read("ak.pub"))
    }

    /// The Name of the attestation key: the algorithm, and the digest of the public area.
    #[track_caller]
    pub fn ak_name(&self) -> Vec<u8> {
        let sequence = self.loaded();
        sequence.must(&["tpm2_readpublic", "-c", "ak", "-n", "ak.name"]);
        sequence.read("ak.name")
    }

    /// Opens a credential for both keys: TPM2_ActivateCredential.
    ///
    /// # Errors
    ///
    /// Returns the error message of the tool if the TPM rejects the command, for example because the credential does
    /// not match both keys.
    #[track_caller]
    pub fn activate(
        &self,
        credential_blob: &[u8],
        encrypted_secret: &[u8],
    ) -> Result<Vec<u8>, String> {
        let sequence = self.loaded();
        self.endorsement.load(&sequence, "tss");
        let mut credential = CREDENTIAL.to_vec();
        for part in [credential_blob, encrypted_secret] {
            let length = u16::try_from(part.len()).expect("a structure of a TPM");
            credential.extend(length.to_be_bytes());
            credential.extend(part);
        }
        sequence.write("credential", credential);
        self.endorsement.start_session(&sequence);
        let activated = sequence.run(&[
            "tpm2_activatecredential",
            "-c",
            "ak",
            "-C",
            "ek",
            "-P",
            "session:session",
            "-i",
            "credential",
            "-o",
            "secret",
        ]);
        sequence.must(&["tpm2_flushcontext", "session"]);
        activated.map(|_| sequence.read("secret"))
    }

    /// Creates a credential with a TPM, as a verifier does. Returns the blob and the encrypted secret.
    #[track_caller]
    pub fn make_credential(
        &self,
        ek_public: &[u8],
        ak_name: &[u8],
        secret: &[u8],
    ) -> (Vec<u8>, Vec<u8>) {
        let sequence = self.tpm.tools().sequence();
        sequence.write("ek.pub", with_length(ek_public));
        sequence.write("secret", secret);
        sequence.must(&[
            "tpm2_makecredential",
            "-u",
            "ek.pub",
            "-n",
            &hex(ak_name),
            "-s",
            "secret",
            "-o",
            "credential",
        ]);
        let credential = sequence.read("credential");
        let parts = credential.strip_prefix(&CREDENTIAL);
        let (blob, rest) = part(parts.expect("a credential of tpm2-tools"));
        let (encrypted_secret, rest) = part(rest);
        assert!(rest.is_empty(), "a credential has two parts");
        (blob.to_vec(), encrypted_secret.to_vec())
    }

    /// The command sequence for one call, with the attestation key in the context file `ak`.
    #[track_caller]
    fn loaded(&self) -> Sequence<'_> {
        let sequence = self.tpm.tools().sequence();
        self.attestation.load(&sequence);
        sequence
    }
}

fn with_length(contents: &[u8]) -> Vec<u8> {
    let length = u16::try_from(contents.len()).expect("a structure of a TPM");
    [&length.to_be_bytes()[..], contents].concat()
}

/// The contents of a `TPM2B`, without any data after it.
#[track_caller]
fn without_length(structure: Vec<u8>) -> Vec<u8> {
    let (contents, rest) = part(&structure);
    assert!(rest.is_empty(), "the structure is longer than it says");
    contents.to_vec()
}

/// The contents of a `TPM2B`, and the data after this structure.
#[track_caller]
fn part(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = bytes.split_first_chunk().expect("a length");
    rest.split_at(u16::from_be_bytes(*length).into())
}
