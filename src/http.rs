//! HTTP clients for the API server and the instance metadata service, which limit the size of responses.

use std::error::Error;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use reqwest::blocking::{Client, ClientBuilder};
use reqwest::redirect;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};
use zeroize::Zeroizing;

use crate::failure::causes;

/// The `User-Agent` of calls to the API server.
pub(crate) const USER_AGENT: &str = concat!("kubelet-authenticator/", env!("CARGO_PKG_VERSION"));

/// Whether the FIPS 140-3 module of AWS-LC is in use. If it is in use, the module has passed its self-test.
pub(crate) fn is_fips() -> bool {
    rustls::crypto::aws_lc_rs::default_provider().fips()
}

/// Returns the TLS configuration with this program's cryptography and TLS versions, without trust anchors.
pub(crate) fn tls() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

/// Builds a client with this TLS configuration. It does not follow redirects.
pub(crate) fn client(
    builder: ClientBuilder,
    tls: ClientConfig,
    connect_timeout: Duration,
) -> Result<Client, reqwest::Error> {
    builder
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .referer(false)
        .connect_timeout(connect_timeout)
        .build()
}

/// Appends a response to `bytes`, and returns them. `None` if the response is longer than `limit`.
pub(crate) fn read(
    answer: impl Read,
    limit: u64,
    mut bytes: Zeroizing<Vec<u8>>,
) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let len = answer.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(u64::try_from(len)
        .is_ok_and(|len| len <= limit)
        .then_some(bytes))
}

/// Whether `is` returns true for one of the causes of a failed HTTP exchange.
pub(crate) fn failed_by(error: &(dyn Error + 'static), is: fn(&reqwest::Error) -> bool) -> bool {
    causes(error).any(|cause| cause.downcast_ref().is_some_and(is))
}
