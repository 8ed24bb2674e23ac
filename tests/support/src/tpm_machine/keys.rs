//! The valid and invalid keys of a machine.

use super::SoftwareKey;
use crate::swtpm::Sequence;

/// The attributes of a valid attestation key: 0x50472.
const GOOD: &str = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|sign";

/// PolicyC (SHA-384) from the TCG's "EK Credential Profile": the branch of PolicyB that the sessions do not use.
const POLICY_C: [u8; 48] = [
    0xd6, 0x03, 0x2c, 0xe6, 0x1f, 0x2f, 0xb3, 0xc2, 0x40, 0xeb, 0x3c, 0xf6, 0xa3, 0x32, 0x37, 0xef,
    0x2b, 0x6a, 0x16, 0xf4, 0x29, 0x3c, 0x22, 0xb4, 0x55, 0xe2, 0x61, 0xcf, 0xfd, 0x21, 0x7a, 0xd5,
    0xb4, 0x94, 0x7c, 0x2d, 0x73, 0xe6, 0x30, 0x05, 0xee, 0xd2, 0xdc, 0x2b, 0x35, 0x93, 0xd1, 0x65,
];

/// The endorsement key, whose template is from the TCG's "EK Credential Profile".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndorsementKey {
    /// Template L-1.
    Rsa2048,
    /// Template L-2. `swtpm_setup` neither certifies this key nor makes it persistent.
    P256,
    /// Template H-3.
    P384,
}

impl EndorsementKey {
    /// All endorsement keys.
    pub const ALL: [Self; 3] = [Self::Rsa2048, Self::P256, Self::P384];

    /// The index of the certificate for the key.
    pub fn certificate_index(self) -> u32 {
        match self {
            Self::Rsa2048 => 0x01c0_0002,
            Self::P256 => 0x01c0_000a,
            Self::P384 => 0x01c0_0016,
        }
    }

    /// The persistent handle, if the key is persistent.
    pub fn persistent_handle(self) -> u32 {
        match self {
            Self::Rsa2048 => 0x8101_0001,
            Self::P256 => 0x8101_0002,
            Self::P384 => 0x8101_0016,
        }
    }

    /// Recreates the key as a primary key. Writes its context to `ek`, and its public part to `ek.pub`.
    #[track_caller]
    pub(super) fn load(self, sequence: &Sequence<'_>, format: &str) {
        let algorithm = match self {
            Self::Rsa2048 => "rsa",
            Self::P256 => "ecc",
            Self::P384 => "ecc384",
        };
        let words = ["tpm2_createek", "-G", algorithm, "-c", "ek", "-u", "ek.pub"];
        sequence.must(&[&words[..], &["-f", format]].concat());
        sequence.flush();
    }

    /// Starts a session that satisfies the key's policy. Writes the context of the session to `session`.
    #[track_caller]
    pub(super) fn start_session(self, sequence: &Sequence<'_>) {
        let hash = match self {
            Self::Rsa2048 | Self::P256 => "sha256",
            Self::P384 => "sha384",
        };
        sequence.must(&[
            "tpm2_startauthsession",
            "--policy-session",
            "-S",
            "session",
            "-g",
            hash,
        ]);
        let words = ["tpm2_policysecret", "-S", "session", "-c", "e"];
        sequence.must(&[&words[..], &["-L", "policy-a"]].concat());
        if self == Self::P384 {
            sequence.write("policy-c", POLICY_C);
            let branches = "sha384:policy-a,policy-c";
            sequence.must(&["tpm2_policyor", "-S", "session", "-l", branches]);
        }
    }
}

/// An attestation key.
#[derive(Debug, Clone)]
pub struct AttestationKey {
    hierarchy: &'static str,
    algorithm: &'static str,
    attributes: &'static str,
    hash: &'static str,
    origin: Origin,
}

#[derive(Debug, Clone)]
enum Origin {
    /// The TPM creates the key. Each creation results in the same key.
    Primary,
    /// The software key is loaded unchanged, outside the hierarchies of the TPM.
    Loaded(SoftwareKey),
    /// The software key is wrapped for a parent key in the TPM, and loaded.
    Imported(SoftwareKey),
}

impl AttestationKey {
    /// A valid key: ECDSA P-256 with SHA-256, restricted, and a primary key in the endorsement hierarchy.
    pub fn ecdsa() -> Self {
        Self {
            hierarchy: "e",
            algorithm: "ecc256:ecdsa-sha256:null",
            attributes: GOOD,
            hash: "sha256",
            origin: Origin::Primary,
        }
    }

    /// A valid key: 2048-bit RSASSA with SHA-256.
    pub fn rsassa() -> Self {
        Self {
            algorithm: "rsa2048:rsassa-sha256:null",
            ..Self::ecdsa()
        }
    }

    /// A key that is valid, except that it is an ECDSA key that signs with SHA-1.
    pub fn sha1_ecdsa() -> Self {
        Self {
            algorithm: "ecc256:ecdsa-sha1:null",
            hash: "sha1",
            ..Self::ecdsa()
        }
    }

    /// A key that is valid, except that it is an RSASSA key that signs with SHA-1.
    pub fn sha1_rsassa() -> Self {
        Self {
            algorithm: "rsa2048:rsassa-sha1:null",
            hash: "sha1",
            ..Self::ecdsa()
        }
    }

    /// A key that is valid, except that it signs any data, including forged statements from the TPM.
    pub fn unrestricted() -> Self {
        Self::with_attributes("fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|sign")
    }

    /// A key that is valid, except that it can be exported from the TPM.
    pub fn exportable() -> Self {
        Self::with_attributes("sensitivedataorigin|userwithauth|noda|restricted|sign")
    }

    /// An ECDSA P-256 key with SHA-256 and these attributes, in the notation of tpm2-tools.
    pub fn with_attributes(attributes: &'static str) -> Self {
        Self {
            attributes,
            ..Self::ecdsa()
        }
    }

    /// A key that is valid, except that it is in the owner hierarchy, so its qualified name differs.
    pub fn of_the_owner() -> Self {
        Self {
            hierarchy: "o",
            ..Self::ecdsa()
        }
    }

    /// A software key that is loaded next to the TPM's own keys, with the attributes of a software key.
    pub fn software(key: &SoftwareKey) -> Self {
        Self {
            attributes: "userwithauth|sign",
            origin: Origin::Loaded(key.clone()),
            ..Self::ecdsa()
        }
    }

    /// An imported software key: restricted, but neither created by the TPM nor bound to it.
    pub fn imported(key: &SoftwareKey) -> Self {
        Self {
            attributes: "userwithauth|noda|restricted|sign",
            origin: Origin::Imported(key.clone()),
            ..Self::ecdsa()
        }
    }

    /// The hash algorithm with which the key signs, as named in tpm2-tools.
    pub(super) fn hash(&self) -> &'static str {
        self.hash
    }

    /// Creates the key, and writes its context to the file `ak`.
    #[track_caller]
    pub(super) fn load(&self, sequence: &Sequence<'_>) {
        let key = ["-G", self.algorithm, "-a", self.attributes];
        match &self.origin {
            Origin::Primary => {
                let words = ["tpm2_createprimary", "-C", self.hierarchy, "-g", "sha256"];
                sequence.must(&[&words[..], &key, &["-c", "ak"]].concat());
            }
            Origin::Loaded(software) => {
                sequence.write("key.pem", software.pem());
                let words = ["tpm2_loadexternal", "-C", "n", "-r", "key.pem"];
                sequence.must(&[&words[..], &key, &["-c", "ak"]].concat());
            }
            Origin::Imported(software) => {
                sequence.write("key.pem", software.pem());
                sequence.must(&["tpm2_createprimary", "-C", "e", "-G", "ecc", "-c", "parent"]);
                sequence.flush();
                let files = ["-u", "imported.pub", "-r", "imported"];
                let words = ["tpm2_import", "-C", "parent", "-i", "key.pem"];
                sequence.must(&[&words[..], &key, &files].concat());
                sequence.flush();
                let words = ["tpm2_load", "-C", "parent", "-c", "ak"];
                sequence.must(&[&words[..], &files].concat());
            }
        }
        sequence.flush();
    }
}
