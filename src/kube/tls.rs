//! TLS with an API server. It trusts only the cluster's CA.

mod names;
mod verifier;
mod words;

use std::sync::Arc;

use rustls::ClientConfig;

use super::kubeconfig::Identity;
use crate::http;

pub(super) use verifier::{InsteadOf, Verifier};
pub(super) use words::{fault, of_identity};

/// Returns the TLS configuration that presents `identity`. Without `is_named`, the handshake does not send the host of
/// the URL (SNI).
pub(super) fn config(
    verifier: Verifier,
    identity: Option<Identity>,
    is_named: bool,
) -> Result<ClientConfig, rustls::Error> {
    let tls = http::tls()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut tls = match identity {
        Some((chain, key)) => tls.with_client_auth_cert(chain, key)?,
        None => tls.with_no_client_auth(),
    };
    tls.enable_sni = is_named;
    Ok(tls)
}
