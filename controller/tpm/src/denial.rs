//! The denials of the attestor `tpm`: keys, a certificate or a quote of a TPM contradict the request,
//! or each other.

use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::reasons;

reasons! {
    /// Why the evidence of a machine with a TPM is denied: one reason a check, in the order of the
    /// checks.
    #[derive(Clone, PartialEq, Eq)]
    pub TpmDenial: EvidenceReason {
        /// The public area of the endorsement key is not one `TPMT_PUBLIC`, or its key is no key.
        #[error("the endorsement key's public area is malformed: {0}")]
        EndorsementKeyMalformed(&'static str) => "the endorsement key's public area is malformed",
        /// The endorsement key is not what a TPM makes of one of the templates L-1, L-2 and H-3 of
        /// the TCG's EK Credential Profile.
        #[error("the endorsement key's public area is none of the templates L-1, L-2 and H-3")]
        EndorsementKeyNotOfTemplate => "the endorsement key is not made by an accepted template",
        /// The RSA key has the form that made keys of many TPMs easy to factor (ROCA,
        /// CVE-2017-15361).
        #[error("the {0} can be factored (ROCA)")]
        TpmKeyWeak(&'static str) => "a key of this TPM can be factored; its firmware must be updated",
        /// The public area of the attestation key is not one `TPMT_PUBLIC`, or its key is no key.
        #[error("the attestation key's public area is malformed: {0}")]
        AttestationKeyMalformed(&'static str) => "the attestation key's public area is malformed",
        /// The attestation key could leave its TPM, was not made in it, or signs more than what the
        /// TPM itself says.
        #[error("the attestation key has the attributes {0:#x} instead of 0x50472")]
        AttestationKeyAttributes(u32) => "the attestation key is not limited to attesting, or could leave its TPM",
        /// The attestation key has a policy, which could let somebody else use it.
        #[error("the attestation key has a policy")]
        AttestationKeyPolicy => "the attestation key has a policy",
        /// The attestation key is neither for ECDSA on P-256 nor for RSASSA with 2048 bits, with
        /// SHA-256.
        #[error("the attestation key is neither of ECDSA P-256 nor of RSASSA 2048, with SHA-256")]
        AttestationKeyAlgorithm => "the attestation key's algorithm is not accepted",
        /// Nothing says which endorsement key this machine has: neither its provider ID nor a
        /// list of allowed keys nor the platform.
        #[error("nothing says which endorsement key machine {0} has")]
        EndorsementKeyUnknown(String) => "it is not known which TPM the machine has",
        /// The endorsement key is not that of this machine: it is another machine's TPM.
        #[error("machine {machine} has the endorsement key {trusted}, and {presented} was presented")]
        EndorsementKeyOfAnotherMachine {
            /// The Machine's name.
            machine: String,
            /// The key of its provider ID, the list or the platform.
            trusted: KeyDigest,
            /// The key in the request.
            presented: KeyDigest,
        } => "the TPM is not the machine's",
        /// A vendor's certificate is required of the endorsement key, and the request has none.
        #[error("the endorsement key has no certificate")]
        EndorsementCertificateMissing => "a certificate of the endorsement key is required",
        /// The certificate of the endorsement key is not one certificate in DER, with nothing after
        /// it but padding; or one that came with it is not one certificate in DER.
        #[error("the certificate of the endorsement key is malformed: {0}")]
        EndorsementCertificateMalformed(&'static str) => "the certificate of the endorsement key is malformed",
        /// The certificate is another key's.
        #[error("the certificate is not of the endorsement key")]
        EndorsementCertificateOfAnotherKey => "the certificate is not of the endorsement key",
        /// The certificate is not one for an endorsement key, as the TCG's EK Credential Profile has
        /// them.
        #[error("the certificate is not one of an endorsement key: {0}")]
        EndorsementCertificateUnfit(String) => "the certificate is not one for an endorsement key",
        /// The certificate has expired, or is not valid yet.
        #[error("the certificate of the endorsement key {0}")]
        EndorsementCertificateNotValid(String) => "the certificate of the endorsement key is not valid now",
        /// A certificate that came with the request names the issuer of the endorsement key's
        /// certificate, or of one between that and the required authority, and may not be it.
        #[error("a certificate between the endorsement key's and the required authority's: {0}")]
        EndorsementCertificateIssuerUnfit(String) => "an authority in the chain of the endorsement key's certificate is not accepted",
        /// Neither the certificate nor one that came with it and leads to it is signed by an
        /// authority that the cluster requires, which is valid now. The log names the authority that was
        /// tried, and why its signature does not count.
        #[error("the certificate of the endorsement key is of no authority that is required here: {0}")]
        EndorsementCertificateUntrusted(String) => "the certificate of the endorsement key is of no accepted authority",
        /// The quote's signature is not one `TPMT_SIGNATURE`, or not one number in its bounds.
        #[error("the quote's signature is malformed: {0}")]
        QuoteSignatureMalformed(&'static str) => "the quote's signature is malformed",
        /// The signature is of another algorithm than the attestation key, or not with SHA-256.
        #[error("the quote's signature is not by the attestation key's algorithm")]
        QuoteSignatureAlgorithm => "the quote's signature is of another algorithm than the attestation key",
        /// The signature does not verify with the attestation key.
        #[error("the quote's signature does not verify with the attestation key")]
        QuoteSignatureInvalid => "the quote's signature is not the attestation key's",
        /// The signed statement does not begin with `TPM_GENERATED_VALUE`.
        #[error("what was signed does not begin with TPM_GENERATED_VALUE")]
        QuoteNotMadeByTpm => "what was signed was not made by a TPM",
        /// The signed statement is not one `TPMS_ATTEST`, to the last byte.
        #[error("the quote is malformed: {0}")]
        QuoteMalformed(&'static str) => "the quote is malformed",
        /// The signed statement is not a quote: a TPM signs other statements too.
        #[error("what was signed has the type {0:#x} instead of 0x8018, a quote")]
        QuoteOfAnotherKind(u16) => "what was signed is no quote",
        /// The quote does not cover this request and its challenge. Either it was made for another
        /// key, name or machine (a replay: the challenge's secret follows from all of them), or for
        /// another challenge, or its maker never opened the challenge.
        #[error("the quote is not made for this request and its challenge")]
        QuoteOfAnotherRequest => "the quote was not made for this request and its challenge",
        /// The attestation key is elsewhere than among the primary keys of the endorsement
        /// hierarchy.
        #[error("the quote's signer is not a primary key of the endorsement hierarchy")]
        QuoteOfAnotherSigner => "the quote's signer is not a primary key of the endorsement hierarchy",
        /// The quote is over no registers, over several banks, over a bank other than SHA-256 and
        /// SHA-384, or over other registers than those that came with it.
        #[error("the quote's selection of registers: {0}")]
        QuoteSelection(&'static str) => "the quote is not over the registers that came with it",
        /// The registers that came with the quote are not those that the TPM quoted.
        #[error("the registers do not have the digest of the quote")]
        QuoteDigest => "the registers are not those that the TPM quoted",
        /// The policy names a register that the quote is not over.
        #[error("register {0} is not quoted, and the policy names it")]
        RegisterNotQuoted(u8) => "a register that the policy names is not quoted",
        /// A register from 0 to 7 has the value of before the boot, or only the separator of systemd after it:
        /// the firmware does not measure into the bank that is quoted, and any system can write its registers.
        /// A policy cannot hold there.
        #[error("register {0} is not measured: the firmware does not extend it in the bank that is quoted")]
        RegisterNotMeasured(u8) => "the machine's firmware does not measure its boot",
        /// The registers have the allowed values, followed by the separator that systemd 261 and later
        /// extend. `pcrPolicy.osSeparator` refuses it.
        #[error("registers {} have the separator of systemd after their allowed values, and osSeparator is Refused", listed(registers))]
        OsSeparatorRefused {
            /// These registers.
            registers: Vec<u8>,
        } => "the operating system extended its separator, and the policy refuses it",
        /// The registers have the allowed values, without the separator that systemd 261 and later extend.
        /// `pcrPolicy.osSeparator` requires it.
        #[error("registers {} have their allowed values without the separator of systemd, and osSeparator is Required", listed(registers))]
        OsSeparatorMissing {
            /// These registers.
            registers: Vec<u8>,
        } => "the operating system did not extend its separator, and the policy requires it",
        /// The machine booted otherwise than the policy allows. Told by the allowed state that is
        /// nearest.
        #[error("registers {} are in no allowed state; register {register} is {value}", listed(others))]
        RegisterNotAllowed {
            /// The first register that differs.
            register: u8,
            /// Its value, in hexadecimal digits.
            value: String,
            /// All registers that differ.
            others: Vec<u8>,
        } => "the machine's boot state is not allowed",
    }
}

fn listed(registers: &[u8]) -> String {
    let registers: Vec<_> = registers.iter().map(u8::to_string).collect();
    registers.join(", ")
}
