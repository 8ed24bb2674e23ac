//! Tokens of service accounts.

use std::fs;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use super::ControlPlane;

impl ControlPlane {
    /// Creates a new token for this service account, as an operator does.
    #[track_caller]
    pub fn service_account_token(&self, namespace: &str, name: &str, duration: &str) -> String {
        let duration = format!("--duration={duration}");
        let create = ["create", "token", name, "-n", namespace, &duration];
        self.kubectl().ok(create).trim().to_owned()
    }

    /// The same token as if it had been issued this long ago, signed with the API server's key.
    #[track_caller]
    pub fn aged_token(&self, token: &str, age: Duration) -> String {
        let mut parts = token.split('.');
        let mut part = || parts.next().expect("a token has three parts");
        let (header, payload) = (part(), part());
        let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).expect("base64");
        let mut claims: Value = serde_json::from_slice(&payload).expect("claims are JSON");
        for time in ["iat", "nbf", "exp"] {
            let seconds = claims[time].as_u64().expect("a time is a number");
            claims[time] = json!(seconds - age.as_secs());
        }
        let payload = BASE64_URL_SAFE_NO_PAD.encode(claims.to_string());
        let signed = format!("{header}.{payload}");
        let key = fs::read(self.scratch.join("service-accounts.key")).expect("it has a key");
        let key = PrivatePkcs8KeyDer::from_pem_slice(&key).expect("the key is PKCS #8");
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_pkcs8_der());
        let key = key.expect("the key is on P-256");
        let signature = key.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.expect("the key can sign");
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}
