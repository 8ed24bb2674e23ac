//! Gives tests access to the separate parsers of a TPM's structures.

use std::time::SystemTime;

use futures::executor::block_on;
use kubelet_attestation::evidence::tpm::{Quote, Registers};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::turns::{CALCULATIONS, FairTurns};
use tpm2_protocol::data::{TpmsAttest, TpmtSignature};

use crate::attest::VerifiedQuote;
use crate::chain::Authorities;
use crate::chain::checks::Checks;
use crate::denial::TpmDenial;
use crate::invalid_settings::InvalidTpmSettings;
use crate::public::{AttestationKey, EndorsementKey};
use crate::structure::{encode, exactly};

/// The public key of a TPM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// The Name of the object.
    pub name: Vec<u8>,
    /// DER of the `SubjectPublicKeyInfo`.
    pub spki: Vec<u8>,
}

/// Reads the `TPMT_PUBLIC` of an attestation key.
pub fn attestation_key(public_area: &[u8]) -> Result<PublicKey, TpmDenial> {
    let key = AttestationKey::parse(public_area)?;
    Ok(PublicKey {
        name: key.name().as_bytes().to_vec(),
        spki: key.key().spki(),
    })
}

/// Reads the `TPMT_PUBLIC` of an endorsement key.
pub fn endorsement_key(public_area: &[u8]) -> Result<PublicKey, TpmDenial> {
    let key = EndorsementKey::parse(public_area)?;
    Ok(PublicKey {
        name: key.name().as_bytes().to_vec(),
        spki: key.key().spki(),
    })
}

/// Verifies a quote that the attestation key with this `TPMT_PUBLIC` has signed. Returns its registers.
pub fn quote(
    attestation_key: &[u8],
    quote: Quote,
    qualifying_data: [u8; 32],
) -> Result<Registers, TpmDenial> {
    let key = AttestationKey::parse(attestation_key)?;
    let quote = VerifiedQuote::verify(&key, quote, &[Some(qualifying_data), None])?;
    Ok(quote.registers)
}

/// Parses a `TPMS_ATTEST`, and encodes it again. Returns `None` if the bytes are rejected.
pub fn attest_again(bytes: &[u8]) -> Option<Vec<u8>> {
    encode(&exactly::<TpmsAttest>(bytes)?)
}

/// Parses a `TPMT_SIGNATURE`, and encodes it again. Returns `None` if the bytes are rejected.
pub fn signature_again(bytes: &[u8]) -> Option<Vec<u8>> {
    encode(&exactly::<TpmtSignature>(bytes)?)
}

/// The check of endorsement key certificates against the authorities that must have signed them.
#[derive(Debug)]
pub struct Certificates(Authorities);

impl Certificates {
    /// Accepts certificates that chain to an authority in one of these texts (PEM).
    pub fn of(authorities: &[String]) -> Result<Self, InvalidTpmSettings> {
        Authorities::new(authorities).map(Self)
    }

    /// Checks the certificate of the endorsement key with this `TPMT_PUBLIC`.
    pub fn require(
        &self,
        certificate: &[u8],
        intermediates: &[Vec<u8>],
        endorsement_key: &[u8],
        now: SystemTime,
    ) -> Result<(), TpmDenial> {
        let key = EndorsementKey::parse(endorsement_key)?;
        let line = FairTurns::new(CALCULATIONS).line(&ObjectKey::new("", ""));
        let mut checks = Checks::of(&line);
        let certificates = (Some(certificate), intermediates);
        let required = self.0.require(certificates, &key, now, &mut checks);
        let required = block_on(required);
        required.map(|_| ()).map_err(|refused| refused.denial)
    }
}
