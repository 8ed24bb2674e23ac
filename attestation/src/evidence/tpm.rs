//! Evidence of a machine with a TPM 2.0: an attestation key, and a quote with this key over the key binding. The
//! attestation key can sign only data that the TPM itself generates.
//!
//! Attestation with a TPM requires two requests with the same key, because a request can be answered only once. The
//! first request ([`Enrolment`]) contains the keys. The first request fails, and the failure contains a [`Challenge`]
//! that only the TPM with the machine's endorsement key can open. The second request ([`Response`]) contains the quote.
//! The second request's key binding covers the secret in the challenge. Requests never contain the secret, because any
//! holder of a bootstrap token can read every request.
//!
//! This module keeps the TPM's structures as bytes, in the encoding of "TPM 2.0 Library, Part 2: Structures". Only
//! their creator and their verifier parse them.

use base64::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Header, InvalidEvidence, InvalidField, from_json, to_json};
use crate::version::EvidenceVersion;

mod challenge;
mod registers;

pub use challenge::{CHALLENGE_ANNOTATION, Challenge, ChallengeId, Expiry, InvalidChallenge};
pub use registers::{Bank, MAX_REGISTER, Registers};

/// The annotation, on a request, that contains the SHA-256 digest of the public endorsement key (SPKI) in lower-case
/// hexadecimal. The controller writes this annotation for operators. The proposal uses
/// `cluster-x-k8s-io/tpm-endorsement-key`, which does not begin with a domain.
pub const ENDORSEMENT_KEY_ANNOTATION: &str = "cluster.x-k8s.io/tpm-endorsement-key";

/// The maximum size of one TPM structure, in bytes. The largest of these structures are about 600 bytes long: a quote
/// with a SHA-512 name, and a public area of RSA-4096.
pub const MAX_STRUCTURE_LEN: usize = 2 * 1024;

/// The maximum size of an endorsement key certificate, in bytes.
pub const MAX_CERTIFICATE_LEN: usize = 8 * 1024;

/// The maximum number of intermediate certificates for an endorsement key certificate. Intel TPMs of the 11th
/// generation and later need three or four.
pub const MAX_INTERMEDIATES: usize = 5;

/// The maximum total size of the intermediate certificates, in bytes. With all other fields at their maximum, evidence
/// remains below [`MAX_EVIDENCE_LEN`](super::MAX_EVIDENCE_LEN).
pub const MAX_INTERMEDIATES_LEN: usize = 10 * 1024;

/// The phases of the first and of the second request.
const ENROL: &str = "enrol";
const RESPOND: &str = "respond";

/// The evidence of a machine with a TPM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TpmEvidence {
    /// The first request.
    Enrol(Enrolment),
    /// The second request.
    Respond(Response),
}

/// The public areas of two keys in the same TPM, as the TPM returned them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicAreas {
    /// `TPMT_PUBLIC` of the endorsement key. The field identifies the machine's endorsement key, but does not make the
    /// key trusted.
    pub endorsement: Vec<u8>,
    /// `TPMT_PUBLIC` of the attestation key.
    pub attestation: Vec<u8>,
}

/// The keys of a machine that requests a challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolment {
    /// The version, and the cluster for which the evidence was created.
    pub header: Header,
    /// DER of the endorsement key certificate, if the TPM has one.
    pub certificate: Option<Vec<u8>>,
    /// DER of the intermediate certificates between the endorsement key certificate and the vendor's root, in any
    /// order. Intermediate certificates require version `v2` or later, and an endorsement key certificate.
    pub intermediates: Vec<Vec<u8>>,
    /// The keys.
    pub keys: PublicAreas,
}

/// A machine's response to a challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The version, and the cluster for which the evidence was created.
    pub header: Header,
    /// The ID of the challenge.
    pub id: ChallengeId,
    /// The expiry time of the challenge, unchanged.
    pub expiry: Expiry,
    /// The keys.
    pub keys: PublicAreas,
    /// The quote, with the key binding.
    pub quote: Quote,
}

/// A TPM quote for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    /// `TPMS_ATTEST`.
    pub attest: Vec<u8>,
    /// `TPMT_SIGNATURE`: the signature of the attestation key over `attest`.
    pub signature: Vec<u8>,
    /// The registers that the quote covers.
    pub registers: Registers,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawEvidence {
    version: String,
    audience: String,
    phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expiry: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ek_cert: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ek_chain: Option<Vec<String>>,
    ek_pub: String,
    ak_pub: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    quote: Option<RawQuote>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawQuote {
    attest: String,
    signature: String,
    pcrs: RawBanks,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBanks {
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<Registers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha384: Option<Registers>,
}

impl RawBanks {
    fn of(registers: &Registers) -> Self {
        let of = |bank| (registers.bank() == bank).then(|| registers.clone());
        Self {
            sha256: of(Bank::Sha256),
            sha384: of(Bank::Sha384),
        }
    }

    /// Returns the registers, which must belong to exactly one bank.
    fn registers(self) -> Result<Registers, InvalidField> {
        let (registers, bank) = match (self.sha256, self.sha384) {
            (Some(registers), None) => (Some(registers), Bank::Sha256),
            (None, Some(registers)) => (Some(registers), Bank::Sha384),
            _ => (None, Bank::Sha256),
        };
        registers
            .filter(|registers| registers.bank() == bank)
            .ok_or_else(|| {
                InvalidField::new("quote.pcrs does not contain the PCRs of exactly one bank")
            })
    }
}

impl TpmEvidence {
    /// Parses evidence that has exactly the fields of its phase, each once.
    ///
    /// # Errors
    ///
    /// Returns an error if the evidence is too large, is not this JSON object, or has a malformed field.
    pub fn parse(evidence: &[u8]) -> Result<Self, InvalidEvidence> {
        let raw: RawEvidence = from_json(evidence)?;
        let header = Header::of(&raw.version, &raw.audience)?;
        let keys = PublicAreas {
            endorsement: structure("ekPub", &raw.ek_pub, MAX_STRUCTURE_LEN)?,
            attestation: structure("akPub", &raw.ak_pub, MAX_STRUCTURE_LEN)?,
        };
        let certificate = raw.ek_cert.as_deref();
        let chain = raw.ek_chain.as_deref();
        let is_v1 = header.version == EvidenceVersion::V1;
        let fields =
            InvalidField::new("the fields do not match the phase and the version of the evidence");
        if chain.is_some() && (is_v1 || certificate.is_none()) {
            return Err(fields.into());
        }
        match (raw.phase.as_str(), raw.id, raw.expiry, raw.quote) {
            (ENROL, None, None, None) => Ok(Self::Enrol(Enrolment {
                header,
                certificate: certificate
                    .map(|der| structure("ekCert", der, MAX_CERTIFICATE_LEN))
                    .transpose()?,
                intermediates: chain.map(intermediates).transpose()?.unwrap_or_default(),
                keys,
            })),
            (RESPOND, Some(id), Some(expiry), Some(quote)) if certificate.is_none() => {
                Ok(Self::Respond(Response {
                    header,
                    id: challenge::id(&id)?,
                    expiry: challenge::expiry(&expiry)?,
                    keys,
                    quote: Quote {
                        attest: structure("quote.attest", &quote.attest, MAX_STRUCTURE_LEN)?,
                        signature: structure(
                            "quote.signature",
                            &quote.signature,
                            MAX_STRUCTURE_LEN,
                        )?,
                        registers: quote.pcrs.registers()?,
                    },
                }))
            }
            (ENROL | RESPOND, ..) => Err(fields.into()),
            _ => Err(InvalidField::new("invalid phase (want enrol or respond)").into()),
        }
    }

    /// The encoding of the evidence for a request.
    pub fn to_json(&self) -> Vec<u8> {
        let base64 = |bytes: &Vec<u8>| BASE64_STANDARD.encode(bytes);
        let of_phase = |phase: &str, header: &Header, keys: &PublicAreas| RawEvidence {
            version: header.version.to_string(),
            audience: header.audience.to_string(),
            phase: phase.to_owned(),
            ek_pub: base64(&keys.endorsement),
            ak_pub: base64(&keys.attestation),
            ..RawEvidence::default()
        };
        to_json(&match self {
            Self::Enrol(enrolment) => {
                let chain: Vec<_> = enrolment.intermediates.iter().map(base64).collect();
                RawEvidence {
                    ek_cert: enrolment.certificate.as_ref().map(base64),
                    ek_chain: Some(chain).filter(|chain| !chain.is_empty()),
                    ..of_phase(ENROL, &enrolment.header, &enrolment.keys)
                }
            }
            Self::Respond(response) => RawEvidence {
                id: Some(response.id.to_base64()),
                expiry: Some(response.expiry.as_str().to_owned()),
                quote: Some(RawQuote {
                    attest: base64(&response.quote.attest),
                    signature: base64(&response.quote.signature),
                    pcrs: RawBanks::of(&response.quote.registers),
                }),
                ..of_phase(RESPOND, &response.header, &response.keys)
            },
        })
    }
}

fn intermediates(chain: &[String]) -> Result<Vec<Vec<u8>>, InvalidField> {
    let count = chain.len();
    if !(1..=MAX_INTERMEDIATES).contains(&count) {
        let rule = format!("ekChain has {count} certificates (want 1 to {MAX_INTERMEDIATES})");
        return Err(InvalidField::new(rule));
    }
    let chain = chain
        .iter()
        .map(|der| structure("ekChain", der, MAX_INTERMEDIATES_LEN))
        .collect::<Result<Vec<_>, _>>()?;
    let len: usize = chain.iter().map(Vec::len).sum();
    if len > MAX_INTERMEDIATES_LEN {
        let rule = format!("ekChain is {len} bytes long (limit: {MAX_INTERMEDIATES_LEN})");
        return Err(InvalidField::new(rule));
    }
    Ok(chain)
}

fn structure(name: &'static str, base64: &str, max: usize) -> Result<Vec<u8>, InvalidField> {
    let bytes = BASE64_STANDARD.decode(base64).ok();
    bytes
        .filter(|bytes| (1..=max).contains(&bytes.len()))
        .ok_or_else(|| InvalidField::new(format!("{name} is not a TPM structure in base64")))
}

#[cfg(test)]
mod tests;
