//! Statements from a TPM, signed with the attestation key.

use super::{Quote, Statement, TpmMachine};
use crate::hex::hex;
use crate::swtpm::Sequence;
use crate::tpm_machine::AttestationKey;

/// An NV index of the owner, whose contents statements can certify.
const INDEX: &str = "0x01800001";

impl TpmMachine {
    /// Quotes PCRs in the SHA-256 bank: TPM2_Quote.
    ///
    /// A TPM without this bank does not quote any PCRs, and does not have values for them.
    #[track_caller]
    pub fn quote(&self, qualifying_data: &[u8], registers: &[u8]) -> Quote {
        let mut numbers = registers.to_vec();
        numbers.sort_unstable();
        let listed: Vec<_> = numbers.iter().map(ToString::to_string).collect();
        let selection = format!("sha256:{}", listed.join(","));
        let sequence = self.loaded();
        let Statement { attest, signature } =
            self.quote_in(&sequence, qualifying_data, &selection, &["-o", "values"]);
        let values = sequence.read("values");
        let (values, rest) = values.as_chunks();
        assert!(rest.is_empty(), "digests of SHA-256");
        Quote {
            attest,
            signature,
            registers: numbers.into_iter().zip(values.iter().copied()).collect(),
        }
    }

    /// Quotes these PCRs, in the notation of tpm2-tools: `sha1:0,1+sha256:4`.
    #[track_caller]
    pub fn quote_over(&self, qualifying_data: &[u8], selection: &str) -> Statement {
        self.quote_in(&self.loaded(), qualifying_data, selection, &[])
    }

    /// Signs bytes directly: TPM2_Sign.
    ///
    /// # Errors
    ///
    /// Returns the error message of the tool if the key is restricted.
    #[track_caller]
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let sequence = self.loaded();
        sequence.write("message", message);
        let words = ["tpm2_sign", "-c", "ak", "-g", self.attestation.hash()];
        let files = ["-o", "signature", "message"];
        sequence.run(&[&words[..], &files].concat())?;
        Ok(sequence.read("signature"))
    }

    /// Signs bytes that the TPM itself has hashed (TPM2_Hash). This is also possible with a restricted key.
    ///
    /// # Errors
    ///
    /// Returns the error message of the tool if the key is restricted and the bytes begin like a TPM statement.
    #[track_caller]
    pub fn sign_with_ticket(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let sequence = self.loaded();
        sequence.write("message", message);
        let hash = ["-g", self.attestation.hash()];
        let words = ["tpm2_hash", "-C", "e", "-t", "ticket", "-o", "digest"];
        sequence.must(&[&words[..], &hash, &["message"]].concat());
        let words = ["tpm2_sign", "-c", "ak", "-d", "-t", "ticket"];
        sequence.run(&[&words[..], &hash, &["-o", "signature", "digest"]].concat())?;
        Ok(sequence.read("signature"))
    }

    /// Certifies another key that the TPM has loaded: TPM2_Certify. Returns the key's public area and the TPM's
    /// statement. The qualifying data is 00ff55aa, because tpm2-tools does not have an option for it.
    #[track_caller]
    pub fn certify(&self, other: &AttestationKey) -> (Vec<u8>, Statement) {
        let certified = self.with_attestation_key(other.clone());
        let public = certified.ak_public();
        let sequence = self.tpm.tools().sequence();
        other.load(&sequence);
        sequence.must(&["mv", "ak", "other"]);
        self.attestation.load(&sequence);
        let words = ["tpm2_certify", "-c", "other", "-C", "ak"];
        let hash = ["-g", self.attestation.hash()];
        let files = ["-o", "attest", "-s", "signature"];
        sequence.must(&[&words[..], &hash, &files].concat());
        (public, statement(&sequence))
    }

    /// Attests the time: TPM2_GetTime.
    #[track_caller]
    pub fn time(&self, qualifying_data: &[u8]) -> Statement {
        let sequence = self.loaded();
        let data = hex(qualifying_data);
        let words = ["tpm2_gettime", "-c", "ak", "-g", self.attestation.hash()];
        let files = ["-q", &data, "--attestation", "attest", "-o", "signature"];
        sequence.must(&[&words[..], &files].concat());
        statement(&sequence)
    }

    /// Attests that the TPM created a key: TPM2_CertifyCreation.
    #[track_caller]
    pub fn creation(&self, qualifying_data: &[u8]) -> Statement {
        let sequence = self.loaded();
        let made = ["-c", "made", "-d", "digest", "-t", "ticket"];
        let words = ["tpm2_createprimary", "-C", "e", "-G", "ecc"];
        sequence.must(&[&words[..], &made].concat());
        sequence.flush();
        let data = hex(qualifying_data);
        let words = ["tpm2_certifycreation", "-C", "ak"];
        let hash = ["-g", self.attestation.hash(), "-f", "tss"];
        let files = ["-q", &data, "--attestation", "attest", "-o", "signature"];
        sequence.must(&[&words[..], &hash, &made, &files].concat());
        statement(&sequence)
    }

    /// Attests the contents of an index: TPM2_NV_Certify.
    #[track_caller]
    pub fn index(&self, qualifying_data: &[u8], contents: &[u8]) -> Statement {
        let sequence = self.loaded();
        let (data, size) = (hex(qualifying_data), contents.len().to_string());
        sequence.write("contents", contents);
        let attributes = "ownerread|ownerwrite|authread|authwrite";
        let words = ["tpm2_nvdefine", INDEX, "-C", "o", "-s", &size];
        sequence.must(&[&words[..], &["-a", attributes]].concat());
        sequence.must(&["tpm2_nvwrite", INDEX, "-C", "o", "-i", "contents"]);
        let words = ["tpm2_nvcertify", "-C", "ak", "-c", "o", "--size", &size];
        let hash = ["-g", self.attestation.hash(), "-f", "tss"];
        let files = ["-q", &data, "--attestation", "attest", "-o", "signature"];
        sequence.must(&[&words[..], &hash, &files, &[INDEX]].concat());
        sequence.must(&["tpm2_nvundefine", "-C", "o", INDEX]);
        statement(&sequence)
    }

    #[track_caller]
    fn quote_in(
        &self,
        sequence: &Sequence<'_>,
        qualifying_data: &[u8],
        selection: &str,
        values: &[&str],
    ) -> Statement {
        let data = hex(qualifying_data);
        let words = ["tpm2_quote", "-c", "ak", "-g", self.attestation.hash()];
        let what = ["-l", selection, "-q", &data, "-F", "values"];
        let files = ["-m", "attest", "-s", "signature"];
        sequence.must(&[&words[..], &what, &files, values].concat());
        statement(sequence)
    }
}

fn statement(sequence: &Sequence<'_>) -> Statement {
    Statement {
        attest: sequence.read("attest"),
        signature: sequence.read("signature"),
    }
}
