//! Quotes: signed statements of a TPM about itself and its PCRs.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{self, SHA256};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use data_encoding::HEXLOWER;
use kubelet_attestation::evidence::tpm::{Bank, MAX_REGISTER, Quote, Registers};
use node_attestation_core::verifier::TpmBoot;
use tpm2_protocol::constant::TPM_GENERATED_VALUE;
use tpm2_protocol::data::{
    TpmAlgId, TpmSt, TpmsAttest, TpmsQuoteInfo, TpmsSignatureEcc, TpmtSignature, TpmuAttest,
    TpmuSignature,
};

use crate::denial::TpmDenial;
use crate::public::{AttestationKey, EXPONENT, Key};
use crate::structure::exactly;

/// A quote with a verified signature by a key of a TPM. Only [`VerifiedQuote::verify`] creates one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VerifiedQuote {
    /// The registers that the quote covers.
    pub(crate) registers: Registers,
    /// The TPM's start counters and clock.
    pub(crate) boot: TpmBoot,
    is_clock_safe: bool,
    firmware: u64,
}

/// The accepted qualifying data of a quote: one digest, or two digests during a rotation of the challenge keys.
pub(crate) type Qualifying = [Option<[u8; 32]>; 2];

impl VerifiedQuote {
    /// Verifies that `key` signed the quote, and that the quote covers one of the digests in `qualifying` and exactly
    /// the registers in the evidence.
    ///
    /// The signature is verified first, with the key's own algorithm and over the received bytes. All further checks
    /// use these bytes.
    ///
    /// A clock that the TPM reports as not safe is accepted, because every clock is reported as not safe for a few
    /// seconds after a power loss.
    ///
    /// An ECDSA signature can be changed into another valid signature, so a signature cannot identify a quote.
    ///
    /// # Errors
    ///
    /// Returns the denials that begin with `Quote`, in their order.
    pub(crate) fn verify(
        key: &AttestationKey,
        quote: Quote,
        qualifying: &Qualifying,
    ) -> Result<Self, TpmDenial> {
        let malformed = TpmDenial::QuoteSignatureMalformed;
        let signature =
            exactly(&quote.signature).ok_or(malformed("it is not exactly one TPMT_SIGNATURE"))?;
        check_signature(key.key(), &quote.attest, &signature)?;

        let attest = read(&quote.attest)?;
        if !is_for_one_of(qualifying, &attest.extra_data) {
            return Err(TpmDenial::QuoteOfAnotherRequest);
        }
        if *attest.qualified_signer != *key.name().qualified().as_bytes() {
            return Err(TpmDenial::QuoteOfAnotherSigner);
        }
        let TpmuAttest::Quote(info) = &attest.attested else {
            return Err(malformed_quote());
        };
        check_registers(info, &quote.registers)?;
        Ok(Self {
            registers: quote.registers,
            boot: TpmBoot {
                resets: attest.clock_info.reset_count.value(),
                restarts: attest.clock_info.restart_count.value(),
                clock: attest.clock_info.clock.value(),
            },
            is_clock_safe: attest.clock_info.safe.0,
            firmware: attest.firmware_version.value(),
        })
    }
}

/// Formats the quote for operators, as in the log entry for a boot.
impl fmt::Display for VerifiedQuote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TpmBoot {
            resets,
            restarts,
            clock,
        } = self.boot;
        let safe = if self.is_clock_safe {
            ""
        } else {
            " (not safe)"
        };
        let firmware = self.firmware;
        write!(
            f,
            "resets {resets}, restarts {restarts}, clock {clock} ms{safe}, firmware {firmware:016x}"
        )?;
        for (register, value) in self.registers.iter() {
            write!(f, ", {register}={}", HEXLOWER.encode(value))?;
        }
        Ok(())
    }
}

/// Verifies the signature with the algorithm of the key. The algorithm in the signature must match it.
fn check_signature(key: &Key, message: &[u8], signature: &TpmtSignature) -> Result<(), TpmDenial> {
    match (key, &signature.signature) {
        (Key::P256(point), TpmuSignature::Ecdsa(signature))
            if signature.hash == TpmAlgId::Sha256 =>
        {
            let fixed = fixed(signature)?;
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                .verify(message, &fixed)
                .map_err(|_| TpmDenial::QuoteSignatureInvalid)
        }
        (Key::Rsa2048(modulus), TpmuSignature::Rsassa(signature))
            if signature.hash == TpmAlgId::Sha256 =>
        {
            let components = RsaPublicKeyComponents {
                n: modulus.as_slice(),
                e: EXPONENT.as_slice(),
            };
            components
                .verify(&RSA_PKCS1_2048_8192_SHA256, message, &signature.sig)
                .map_err(|_| TpmDenial::QuoteSignatureInvalid)
        }
        (Key::P256(_) | Key::P384(_) | Key::Rsa2048(_), _) => {
            Err(TpmDenial::QuoteSignatureAlgorithm)
        }
    }
}

/// Returns the two numbers of the signature, padded to 32 bytes each, because a TPM can omit leading zeros.
fn fixed(signature: &TpmsSignatureEcc) -> Result<[u8; 64], TpmDenial> {
    let mut fixed = [0; 64];
    let (r, s) = fixed.split_at_mut(32);
    let numbers = [(r, &signature.signature_r), (s, &signature.signature_s)];
    for (half, number) in numbers {
        let number: &[u8] = number;
        let end = half.len().checked_sub(number.len());
        let end = end.and_then(|zeros| half.get_mut(zeros..));
        let end = end.ok_or(TpmDenial::QuoteSignatureMalformed(
            "one of its numbers is longer than the order of the curve",
        ))?;
        end.copy_from_slice(number);
    }
    Ok(fixed)
}

/// Parses the signed statement, which must be a quote without trailing bytes.
fn read(attest: &[u8]) -> Result<TpmsAttest, TpmDenial> {
    let header = attest.split_first_chunk().zip(attest.get(4..));
    let Some(((magic, _), rest)) = header else {
        return Err(TpmDenial::QuoteNotMadeByTpm);
    };
    if u32::from_be_bytes(*magic) != TPM_GENERATED_VALUE {
        return Err(TpmDenial::QuoteNotMadeByTpm);
    }
    let (tag, _) = rest.split_first_chunk().ok_or_else(malformed_quote)?;
    let tag = u16::from_be_bytes(*tag);
    if tag != TpmSt::AttestQuote.value() {
        return Err(TpmDenial::QuoteOfAnotherKind(tag));
    }
    exactly(attest).ok_or_else(malformed_quote)
}

fn malformed_quote() -> TpmDenial {
    TpmDenial::QuoteMalformed("it is not exactly one TPMS_ATTEST")
}

/// Whether the qualifying data is one of the accepted digests. Compares in constant time.
fn is_for_one_of(qualifying: &Qualifying, extra_data: &[u8]) -> bool {
    let equal = |digest: &[u8; 32]| verify_slices_are_equal(digest, extra_data).is_ok();
    let [first, second] = qualifying;
    first.as_ref().is_some_and(equal) | second.as_ref().is_some_and(equal)
}

/// Checks that the quote covers exactly these registers, with these values.
///
/// The digest uses the hash algorithm of the signature (Part 3, `TPM2_Quote`): SHA-256, for every bank.
fn check_registers(info: &TpmsQuoteInfo, registers: &Registers) -> Result<(), TpmDenial> {
    let wrong = |detail| Err(TpmDenial::QuoteSelection(detail));
    let [selection] = &*info.pcr_select else {
        return wrong("it does not cover exactly one bank");
    };
    let bank = match registers.bank() {
        Bank::Sha256 => TpmAlgId::Sha256,
        Bank::Sha384 => TpmAlgId::Sha384,
    };
    let bitmap: &[u8] = &selection.pcr_select;
    let bits = bitmap.iter().zip(0_u8..).flat_map(|(byte, index)| {
        (0..8).filter_map(move |bit| (byte >> bit & 1 == 1).then_some(index * 8 + bit))
    });
    let quoted: Vec<u8> = bits.collect();
    if quoted.is_empty() {
        return wrong("it covers no register");
    }
    if selection.hash != bank {
        return wrong("its bank does not match the registers in the evidence");
    }
    if quoted.iter().any(|register| *register > MAX_REGISTER) {
        return wrong("it covers a register that a PC does not have");
    }
    if !quoted
        .into_iter()
        .eq(registers.iter().map(|(number, _)| number))
    {
        return wrong("it does not cover the registers in the evidence");
    }
    let mut digest = digest::Context::new(&SHA256);
    for (_, value) in registers.iter() {
        digest.update(value);
    }
    if *digest.finish().as_ref() == *info.pcr_digest {
        Ok(())
    } else {
        Err(TpmDenial::QuoteDigest)
    }
}

#[cfg(test)]
mod tests;
