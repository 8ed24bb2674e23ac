//! The login to an API server.

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::endpoint::certificates;
use super::error::Refused;
use crate::secret::Secret;

/// The login to an API server.
#[derive(Debug)]
pub enum Login {
    /// A bearer token.
    Token(Secret<String>),
    /// A client certificate.
    ClientCertificate {
        /// The certificate and its chain in PEM, leaf first.
        chain_pem: String,
        /// Its key in PEM.
        key_pem: Secret<String>,
    },
}

/// The client certificate and key for TLS.
pub(in crate::kube) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Parses the client certificate and key for TLS. An error names the invalid one.
pub(in crate::kube) fn identity(
    chain_pem: &str,
    key_pem: &Secret<String>,
) -> Result<Identity, (&'static str, Refused)> {
    let chain =
        certificates(chain_pem).map_err(|_| ("client-certificate", Refused::NotCertificates))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.expose().as_bytes())
        .map_err(|_| ("client-key", Refused::NotAKey))?;
    Ok((chain, key))
}

/// A token that fits into a header, without the line end of a file.
pub(super) fn token(text: &str) -> Result<Secret<String>, Refused> {
    let token = text.trim();
    if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(Secret::new(token.to_owned()))
    } else {
        Err(Refused::NotAToken)
    }
}

/// The certificates of a PEM file, without its other blocks.
pub(super) fn certificates_of(pem: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let blocks = pem.split(BEGIN).skip(1);
    let blocks = blocks.filter_map(|rest| Some(rest.split_once(END)?.0));
    let lines: Vec<&str> = blocks.flat_map(|block| [BEGIN, block, END, "\n"]).collect();
    lines.concat()
}
