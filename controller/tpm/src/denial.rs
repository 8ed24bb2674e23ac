//! The denials of the attestation provider `tpm`: a TPM's keys, certificate or quote contradict the request, or each
//! other.

use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::reasons;

reasons! {
    /// Why the evidence of a machine with a TPM is denied: one reason a check, in the order of the
    /// checks.
    #[derive(Clone, PartialEq, Eq)]
    pub TpmDenial: EvidenceReason {
        /// The public area of the endorsement key is not one `TPMT_PUBLIC`, or does not contain a valid key.
        #[error("the endorsement key's public area is malformed: {0}")]
        #[cure("Find the client that sent the request. The plugin sends the key as its TPM returns it.")]
        EndorsementKeyMalformed(&'static str) => "the endorsement key's public area is malformed",
        /// The endorsement key does not match the templates L-1, L-2 and H-3 of the TCG's EK Credential Profile.
        #[error("the endorsement key's public area is none of the templates L-1, L-2 and H-3")]
        #[cure("Set `tpm.endorsementKey` on the node to a key that its TPM has.")]
        EndorsementKeyNotOfTemplate => "the endorsement key is not made by an accepted template",
        /// The RSA key has the form that made keys of many TPMs easy to factor (ROCA, CVE-2017-15361).
        #[error("the {0} can be factored (ROCA)")]
        #[cure("Update the firmware of the TPM, and list the endorsement key that it has then.")]
        TpmKeyWeak(&'static str) => "a key of this TPM can be factored; its firmware must be updated",
        /// The public area of the attestation key is not one `TPMT_PUBLIC`, or does not contain a valid key.
        #[error("the attestation key's public area is malformed: {0}")]
        #[cure("Find the client that sent the request. The plugin never sends such a key.")]
        AttestationKeyMalformed(&'static str) => "the attestation key's public area is malformed",
        /// The attestation key could leave its TPM, was not created in it, or signs other data than the TPM's own
        /// statements.
        #[error("the attestation key has the attributes {0:#x} instead of 0x50472")]
        #[cure("Find the client that sent the request. The plugin never sends such a key.")]
        AttestationKeyAttributes(u32) => "the attestation key is not limited to attesting, or could leave its TPM",
        /// The attestation key has a policy, which could let another user use it.
        #[error("the attestation key has a policy")]
        #[cure("Find the client that sent the request. The plugin never sends such a key.")]
        AttestationKeyPolicy => "the attestation key has a policy",
        /// The attestation key uses neither ECDSA on P-256 nor RSASSA with 2048 bits, with SHA-256.
        #[error("the attestation key is neither of ECDSA P-256 nor of RSASSA 2048, with SHA-256")]
        #[cure("Find the client that sent the request. The plugin never sends such a key.")]
        AttestationKeyAlgorithm => "the attestation key's algorithm is not accepted",
        /// No source names the endorsement key of this machine: neither its provider ID nor a list nor the platform.
        #[error("nothing says which endorsement key machine {0} has")]
        #[cure("Add the machine's key to `allowList` or to a ConfigMap. List the name of the Machine, not of the \
                 node.")]
        EndorsementKeyUnknown(String) => "it is not known which TPM the machine has",
        /// The endorsement key does not belong to this machine: the TPM is another machine's.
        #[error("machine {machine} has the endorsement key {trusted}, and {presented} was presented")]
        #[cure("Correct the entries for the machine, or `tpm.endorsementKey` on the node. Otherwise, handle it as an \
                 attack.")]
        EndorsementKeyOfAnotherMachine {
            /// The Machine's name.
            machine: String,
            /// The key of its provider ID, the list or the platform.
            trusted: KeyDigest,
            /// The key in the request.
            presented: KeyDigest,
        } => "the TPM is not the machine's",
        /// `requireCA` requires a vendor certificate for the endorsement key, and the request has none.
        #[error("the endorsement key has no certificate")]
        #[cure("Store a certificate in the TPM, or list the key and remove `requireCA`.")]
        EndorsementCertificateMissing => "a certificate of the endorsement key is required",
        /// The endorsement key certificate is not one certificate in DER, followed by nothing but padding. Or a
        /// certificate that came with it is not one certificate in DER.
        #[error("the certificate of the endorsement key is malformed: {0}")]
        #[cure("List the key and remove `requireCA`, or set another `tpm.endorsementKey` on the node.")]
        EndorsementCertificateMalformed(&'static str) => "the certificate of the endorsement key is malformed",
        /// The certificate belongs to another key.
        #[error("the certificate is not of the endorsement key")]
        #[cure("Set another `tpm.endorsementKey` on the node, or remove `requireCA`.")]
        EndorsementCertificateOfAnotherKey => "the certificate is not of the endorsement key",
        /// The certificate does not follow the TCG's EK Credential Profile.
        #[error("the certificate is not one of an endorsement key: {0}")]
        #[cure("Set another `tpm.endorsementKey` on the node, or remove `requireCA`. The log has the rule.")]
        EndorsementCertificateUnfit(String) => "the certificate is not one for an endorsement key",
        /// The certificate has expired, or is not valid yet.
        #[error("the certificate of the endorsement key {0}")]
        #[cure("Check the controller's clock. Otherwise, list the key and remove `requireCA`. The log has the date.")]
        EndorsementCertificateNotValid(String) => "the certificate of the endorsement key is not valid now",
        /// A certificate in the chain between the endorsement key certificate and `requireCA` is not acceptable as an
        /// authority.
        #[error("a certificate between the endorsement key's and the required authority's: {0}")]
        #[cure("Add the intermediate certificate to `requireCA`: the request then needs no chain.")]
        EndorsementCertificateIssuerUnfit(String) => "an authority in the chain of the endorsement key's certificate is not accepted",
        /// No valid authority in `requireCA` signed the certificate or a chain that leads to it. The log names the
        /// authority that was tried, and why its signature is not accepted.
        #[error("the certificate of the endorsement key is of no authority that is required here: {0}")]
        #[cure("Add the authority that the log names to `requireCA`.")]
        EndorsementCertificateUntrusted(String) => "the certificate of the endorsement key is of no accepted authority",
        /// The quote's signature is not one `TPMT_SIGNATURE`, or its number is out of bounds.
        #[error("the quote's signature is malformed: {0}")]
        #[cure("Find the client that sent the request. The plugin never changes the quote of a TPM.")]
        QuoteSignatureMalformed(&'static str) => "the quote's signature is malformed",
        /// The signature does not use the attestation key's algorithm, or not SHA-256.
        #[error("the quote's signature is not by the attestation key's algorithm")]
        #[cure("Find the client that sent the request. The plugin never changes the quote of a TPM.")]
        QuoteSignatureAlgorithm => "the quote's signature is of another algorithm than the attestation key",
        /// The signature does not verify with the attestation key.
        #[error("the quote's signature does not verify with the attestation key")]
        #[cure("Find the client that sent the request. The plugin never changes the quote of a TPM.")]
        QuoteSignatureInvalid => "the quote's signature is not the attestation key's",
        /// The signed statement does not begin with `TPM_GENERATED_VALUE`.
        #[error("what was signed does not begin with TPM_GENERATED_VALUE")]
        #[cure("Find the client that sent the request. The plugin never changes the quote of a TPM.")]
        QuoteNotMadeByTpm => "what was signed was not made by a TPM",
        /// The signed statement is not one `TPMS_ATTEST`, up to the last byte.
        #[error("the quote is malformed: {0}")]
        #[cure("Find the client that sent the request. The plugin never changes the quote of a TPM.")]
        QuoteMalformed(&'static str) => "the quote is malformed",
        /// The signed statement is not a quote. A TPM signs other statements too.
        #[error("what was signed has the type {0:#x} instead of 0x8018, a quote")]
        #[cure("Find the client that sent the request. The plugin never sends another statement.")]
        QuoteOfAnotherKind(u16) => "what was signed is no quote",
        /// The quote does not cover this request and its challenge. It was made for another key, name, machine or
        /// challenge (a replay), or the challenge was never opened.
        #[error("the quote is not made for this request and its challenge")]
        #[cure("Run `renew` on the node. If it repeats, handle it as an attack.")]
        QuoteOfAnotherRequest => "the quote was not made for this request and its challenge",
        /// The attestation key is not a primary key of the endorsement hierarchy.
        #[error("the quote's signer is not a primary key of the endorsement hierarchy")]
        #[cure("Find the client that sent the request. The plugin creates its key in the endorsement hierarchy.")]
        QuoteOfAnotherSigner => "the quote's signer is not a primary key of the endorsement hierarchy",
        /// The quote covers no registers, several banks, a bank other than SHA-256 and SHA-384, or other registers than
        /// those that came with it.
        #[error("the quote's selection of registers: {0}")]
        #[cure("Find the client that sent the request. The plugin quotes one bank, and sends the quoted registers.")]
        QuoteSelection(&'static str) => "the quote is not over the registers that came with it",
        /// The registers that came with the quote do not match the quoted digest.
        #[error("the registers do not have the digest of the quote")]
        #[cure("Run `renew` on the node. If it repeats, handle it as an attack.")]
        QuoteDigest => "the registers are not those that the TPM quoted",
        /// The policy names a register that the quote does not cover.
        #[error("register {0} is not quoted, and the policy names it")]
        #[cure("Upgrade the plugin, or add the register to `tpm.pcrs` on the node.")]
        RegisterNotQuoted(u8) => "a register that the policy names is not quoted",
        /// A register from 0 to 7 has the value from before the boot, or only systemd's separator after it. The
        /// firmware does not measure into the bank that is quoted, and any system can write its registers. A policy
        /// cannot protect them.
        #[error("register {0} is not measured: the firmware does not extend it in the bank that is quoted")]
        #[cure("Choose the SHA-256 bank in the firmware setup, or remove the policy.")]
        RegisterNotMeasured(u8) => "the machine's firmware does not measure its boot",
        /// The registers have the allowed values, followed by the separator that systemd 261 and later extend.
        /// `pcrPolicy.osSeparator` refuses it.
        #[error("registers {} have the separator of systemd after their allowed values, and osSeparator is Refused", listed(registers))]
        #[cure("Change `osSeparator` in the policy, or the machine image.")]
        OsSeparatorRefused {
            /// These registers.
            registers: Vec<u8>,
        } => "the operating system extended its separator, and the policy refuses it",
        /// The registers have the allowed values, without the separator that systemd 261 and later extend.
        /// `pcrPolicy.osSeparator` requires it.
        #[error("registers {} have their allowed values without the separator of systemd, and osSeparator is Required", listed(registers))]
        #[cure("Change `osSeparator` in the policy, or the machine image.")]
        OsSeparatorMissing {
            /// These registers.
            registers: Vec<u8>,
        } => "the operating system did not extend its separator, and the policy requires it",
        /// The boot state of the machine does not match the policy. The log compares it with the nearest allowed state.
        #[error("registers {} are in no allowed state; register {register} is {value}", listed(others))]
        #[cure("After an update of firmware, bootloader or kernel, add the new value. Otherwise, examine the machine.")]
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
