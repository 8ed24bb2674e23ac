//! The denials of the attestation provider `tpm`: a TPM's keys, certificate or quote contradict the request, or each
//! other.

use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::reasons;

reasons! {
    /// The reasons to deny the evidence of a machine with a TPM: one reason per check, in the order of the checks.
    #[derive(Clone, PartialEq, Eq)]
    pub TpmDenial: EvidenceReason {
        /// The public area of the endorsement key is not a single `TPMT_PUBLIC`, or does not contain a valid key.
        #[error("the endorsement key's public area is malformed: {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin sends the key as the TPM returns \
                 it.")]
        EndorsementKeyMalformed(&'static str) => "the endorsement key's public area is malformed",
        /// The endorsement key does not match template L-1, L-2 or H-3 of the TCG's EK Credential Profile.
        #[error("the public area of the endorsement key does not match template L-1, L-2 or H-3")]
        #[cure("Set `tpm.endorsementKey` on the node to a key that exists in its TPM.")]
        EndorsementKeyNotOfTemplate => "the endorsement key does not match an accepted template",
        /// The RSA key has a weakness that makes the keys of many TPMs easy to factor (ROCA, CVE-2017-15361).
        #[error("the {0} can be factored (ROCA)")]
        #[cure("Update the firmware of the TPM, and add the new endorsement key to `allowList` or to a ConfigMap.")]
        TpmKeyWeak(&'static str) => "a key of this TPM is weak (ROCA); update the firmware of the TPM",
        /// The public area of the attestation key is not a single `TPMT_PUBLIC`, or does not contain a valid key.
        #[error("the attestation key's public area is malformed: {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a key.")]
        AttestationKeyMalformed(&'static str) => "the attestation key's public area is malformed",
        /// The attestation key can leave its TPM, was not created in it, or can sign data other than the TPM's own
        /// statements.
        #[error("the attestation key has the attributes {0:#x} instead of 0x50472")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a key.")]
        AttestationKeyAttributes(u32) => "the attestation key is not limited to attestation, or can leave its TPM",
        /// The attestation key has a policy, which could allow another user to use the key.
        #[error("the attestation key has a policy")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a key.")]
        AttestationKeyPolicy => "the attestation key has a policy",
        /// The attestation key does not use SHA-256 with ECDSA on P-256 or with RSASSA and 2048 bits.
        #[error("the attestation key is neither ECDSA P-256 nor RSASSA 2048 with SHA-256")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a key.")]
        AttestationKeyAlgorithm => "the attestation key's algorithm is not accepted",
        /// No source specifies the endorsement key of this machine: neither its provider ID, nor a list, nor the
        /// platform.
        #[error("no endorsement key is registered for machine {0}")]
        #[cure("Add the machine's key to `allowList` or to a ConfigMap. Use the name of the Machine, not the name of \
                 the node.")]
        EndorsementKeyUnknown(String) => "no endorsement key is registered for this machine",
        /// The endorsement key does not match the key registered for this machine.
        #[error("endorsement key {trusted} is registered for machine {machine}, but the request has {presented}")]
        #[cure("Correct the entries for the machine, or `tpm.endorsementKey` on the node. If both are correct, treat \
                 the request as an attack.")]
        EndorsementKeyOfAnotherMachine {
            /// The Machine's name.
            machine: String,
            /// The key that the provider ID, the list or the platform specifies.
            trusted: KeyDigest,
            /// The key in the request.
            presented: KeyDigest,
        } => "the endorsement key does not match the key registered for this machine",
        /// `requireCA` requires a vendor certificate for the endorsement key, but the request has none.
        #[error("the endorsement key has no certificate")]
        #[cure("Store a certificate in the TPM, or add the key to `allowList` and remove `requireCA`.")]
        EndorsementCertificateMissing => "a certificate for the endorsement key is required",
        /// The endorsement key certificate, or a certificate in its chain, is not a single certificate in DER. Only
        /// padding can follow the endorsement key certificate.
        #[error("the endorsement key certificate is malformed: {0}")]
        #[cure("Add the key to `allowList` and remove `requireCA`, or select a different key with \
                 `tpm.endorsementKey` on the node.")]
        EndorsementCertificateMalformed(&'static str) => "the endorsement key certificate is malformed",
        /// The endorsement key certificate belongs to another key.
        #[error("the certificate does not match the endorsement key")]
        #[cure("Select a different key with `tpm.endorsementKey` on the node, or remove `requireCA`.")]
        EndorsementCertificateOfAnotherKey => "the certificate does not match the endorsement key",
        /// The endorsement key certificate does not follow the TCG's EK Credential Profile.
        #[error("the certificate is not valid for an endorsement key: {0}")]
        #[cure("Select a different key with `tpm.endorsementKey` on the node, or remove `requireCA`. The log shows the \
                 violated rule.")]
        EndorsementCertificateUnfit(String) => "the certificate is not valid for an endorsement key",
        /// The endorsement key certificate has expired, or is not valid yet.
        #[error("the endorsement key certificate {0}")]
        #[cure("Check the controller's clock. If the clock is correct, add the key to `allowList` and remove \
                 `requireCA`. The log shows the date.")]
        EndorsementCertificateNotValid(String) => "the endorsement key certificate has expired or is not valid yet",
        /// A certificate in the chain between the endorsement key certificate and `requireCA` is not acceptable as a
        /// CA.
        #[error("an intermediate certificate of the endorsement key is not accepted: {0}")]
        #[cure("Add the intermediate certificate to `requireCA`. The request then does not need a chain.")]
        EndorsementCertificateIssuerUnfit(String) => "an intermediate certificate of the endorsement key is not accepted",
        /// No valid CA in `requireCA` signed the certificate or its chain. The log names the CA that was tried, and the
        /// reason why its signature is not accepted.
        #[error("no CA in requireCA issued the endorsement key certificate: {0}")]
        #[cure("Add the CA that the log names to `requireCA`.")]
        EndorsementCertificateUntrusted(String) => "no accepted CA issued the endorsement key certificate",
        /// The certificate, its chain and the CAs with the same names in `requireCA` need too many signature checks.
        #[error("the endorsement key certificates require more than {0} signature checks")]
        #[cure("Remove CAs with the same name and different keys from `requireCA`.")]
        EndorsementCertificateTooManyChecks(usize) => "the endorsement key certificates need too many signature checks",
        /// The quote's signature is not a single `TPMT_SIGNATURE`, or its value is out of range.
        #[error("the quote's signature is malformed: {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never changes a TPM quote.")]
        QuoteSignatureMalformed(&'static str) => "the quote's signature is malformed",
        /// The signature does not use the attestation key's algorithm with SHA-256.
        #[error("the signature algorithm of the quote does not match the attestation key")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never changes a TPM quote.")]
        QuoteSignatureAlgorithm => "the signature algorithm of the quote does not match the attestation key",
        /// The signature does not match the attestation key.
        #[error("the quote's signature does not match the attestation key")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never changes a TPM quote.")]
        QuoteSignatureInvalid => "the quote is not signed with the attestation key",
        /// The signed statement does not begin with `TPM_GENERATED_VALUE`.
        #[error("the signed structure does not begin with TPM_GENERATED_VALUE")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never changes a TPM quote.")]
        QuoteNotMadeByTpm => "the signed structure was not created by a TPM",
        /// The signed statement is not exactly one `TPMS_ATTEST`.
        #[error("the quote is malformed: {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never changes a TPM quote.")]
        QuoteMalformed(&'static str) => "the quote is malformed",
        /// The signed statement is not a quote. A TPM also signs other statements.
        #[error("the signed structure has the type {0:#x} instead of 0x8018, a quote")]
        #[cure("Identify the client from `spec.username` of the request. The plugin sends only quotes.")]
        QuoteOfAnotherKind(u16) => "the signed structure is not a quote",
        /// The quote does not cover this request and its challenge. It was made for another key, name, machine or
        /// challenge (a replay), or the TPM did not open the challenge.
        #[error("the quote was not made for this request and its challenge")]
        #[cure("Run `renew` on the node. If the controller denies the request again, treat the request as an attack.")]
        QuoteOfAnotherRequest => "the quote was not made for this request and its challenge",
        /// The attestation key is not a primary key of the endorsement hierarchy.
        #[error("the quote's signer is not a primary key of the endorsement hierarchy")]
        #[cure("Identify the client from `spec.username` of the request. The plugin creates its key in the endorsement \
                 hierarchy.")]
        QuoteOfAnotherSigner => "the quote's signer is not a primary key of the endorsement hierarchy",
        /// The quote covers no registers, several banks, a bank other than SHA-256 and SHA-384, or registers that do
        /// not match the evidence.
        #[error("the register selection of the quote is not accepted: {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin quotes one bank, and sends the \
                 quoted registers.")]
        QuoteSelection(&'static str) => "the quote does not cover the registers in the evidence",
        /// The registers in the evidence do not match the quoted digest.
        #[error("the registers do not match the digest of the quote")]
        #[cure("Run `renew` on the node. If the controller denies the request again, treat the request as an attack.")]
        QuoteDigest => "the registers do not match the quote",
        /// The PCR policy requires a register that the quote does not cover.
        #[error("the PCR policy requires register {0}, which is not quoted")]
        #[cure("Upgrade the plugin, or add the register to `tpm.pcrs` on the node.")]
        RegisterNotQuoted(u8) => "the PCR policy requires a register that is not quoted",
        /// A register from 0 to 7 has its initial value, or this value extended only with systemd's separator. The
        /// firmware does not measure into the quoted bank, so any operating system can extend its registers to accepted
        /// values. A PCR policy cannot prevent this.
        #[error("register {0} is not measured: the firmware does not extend it in the quoted bank")]
        #[cure("Enable the SHA-256 PCR bank in the firmware setup, or remove the PCR policy.")]
        RegisterNotMeasured(u8) => "the machine's firmware does not measure its boot",
        /// The registers have the allowed values, followed by the separator that systemd 261 and later extend.
        /// `pcrPolicy.osSeparator` does not allow this separator.
        #[error("registers {} have systemd's separator after their allowed values, but osSeparator is Refused", listed(registers))]
        #[cure("Change `osSeparator` in the PCR policy, or change the machine image.")]
        OsSeparatorRefused {
            /// These registers.
            registers: Vec<u8>,
        } => "the operating system extended its separator, which the PCR policy does not allow",
        /// The registers have the allowed values, without the separator that systemd 261 and later extend.
        /// `pcrPolicy.osSeparator` requires this separator.
        #[error("registers {} have their allowed values without systemd's separator, but osSeparator is Required", listed(registers))]
        #[cure("Change `osSeparator` in the PCR policy, or change the machine image.")]
        OsSeparatorMissing {
            /// These registers.
            registers: Vec<u8>,
        } => "the operating system did not extend its separator, which the PCR policy requires",
        /// The boot state of the machine does not match the PCR policy. The log compares the boot state with the
        /// nearest allowed state.
        #[error("registers {} are not in an allowed state; register {register} is {value}", listed(others))]
        #[cure("If you updated the firmware, the boot loader or the kernel, add the new value to the PCR policy. \
                 Otherwise, examine the machine.")]
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
