//! A CA that an operator has created with openssl.

use std::process::Command;
use std::time::SystemTime;

use tempfile::TempDir;

use crate::signer::{InvalidCa, Signer};
use crate::time::unix_seconds;

pub(super) const CA_EXTENSIONS: [&str; 2] = [
    "basicConstraints=critical,CA:TRUE",
    "keyUsage=critical,keyCertSign,cRLSign",
];

const P256: [&str; 4] = ["ecparam", "-genkey", "-name", "prime256v1"];

pub(super) struct Pki {
    dir: TempDir,
}

impl Pki {
    pub(super) fn new() -> Self {
        Self::with_key(&P256)
    }

    pub(super) fn with_key(key: &[&str]) -> Self {
        Self::made_of(key, "/CN=kubernetes", &CA_EXTENSIONS)
    }

    pub(super) fn with_subject(subject: &str) -> Self {
        Self::made_of(&P256, subject, &CA_EXTENSIONS)
    }

    pub(super) fn made_of(key: &[&str], subject: &str, extensions: &[&str]) -> Self {
        let pki = Self {
            dir: TempDir::new().unwrap(),
        };
        std::fs::write(pki.dir.path().join("ca.key"), pki.openssl(key)).unwrap();
        // This file replaces the defaults of the machine's configuration.
        std::fs::write(
            pki.dir.path().join("cnf"),
            "[req]\ndistinguished_name=dn\n[dn]\n",
        )
        .unwrap();
        let mut request = vec!["req", "-x509", "-new", "-key", "ca.key", "-days", "365"];
        request.extend([
            "-config", "cnf", "-utf8", "-subj", subject, "-out", "ca.crt",
        ]);
        for extension in extensions {
            request.extend(["-addext", extension]);
        }
        pki.openssl(&request);
        pki
    }

    pub(super) fn signer(&self) -> Result<Signer, InvalidCa> {
        Signer::from_pem(self.certificate().as_bytes(), self.key().as_bytes())
    }

    pub(super) fn certificate(&self) -> String {
        self.read("ca.crt")
    }

    pub(super) fn key(&self) -> String {
        self.read("ca.key")
    }

    /// Verifies a client certificate from this CA at `now`.
    pub(super) fn verify(&self, certificate: &str, now: SystemTime) {
        self.verify_for("sslclient", certificate, now, &[]);
    }

    /// Verifies a certificate from this CA for the server `n1` with the address `192.0.2.1`, at `now`.
    pub(super) fn verify_server(&self, certificate: &str, now: SystemTime) {
        let host = ["-verify_hostname", "n1", "-verify_ip", "192.0.2.1"];
        self.verify_for("sslserver", certificate, now, &host);
    }

    fn verify_for(&self, purpose: &str, certificate: &str, now: SystemTime, more: &[&str]) {
        std::fs::write(self.dir.path().join("node.crt"), certificate).unwrap();
        let now = unix_seconds(now).to_string();
        let mut verify = vec![
            "verify",
            "-attime",
            &now,
            "-x509_strict",
            "-purpose",
            purpose,
        ];
        verify.extend(more);
        verify.extend(["-CAfile", "ca.crt", "node.crt"]);
        self.openssl(&verify);
    }

    /// The output of openssl.
    pub(super) fn openssl(&self, arguments: &[&str]) -> String {
        let output = Command::new("openssl")
            .args(arguments)
            .current_dir(self.dir.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap()
    }
}
