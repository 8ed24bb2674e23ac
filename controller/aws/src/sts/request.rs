//! Rebuilds the request to STS. The method, host, path, headers and body are fixed, and do not come from the node.
//! [`Proof`] checks the form of all values that come from the node.

use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::aws::{
    BINDING_HEADER, Proof, SIGNED_HEADERS, STS_ACCEPT, STS_BODY, STS_CONTENT_TYPE, STS_SERVICE,
};
use sha2::{Digest as _, Sha256};

use crate::partition::EndpointHost;

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const BINDING: HeaderName = HeaderName::from_static(BINDING_HEADER);

/// A call that is ready to be sent once.
#[derive(Debug)]
pub(super) struct Call {
    /// The request. Its `Debug` hides the token and the signature.
    pub(super) request: Request<&'static str>,
    /// The SHA-256 digest of the signature and its scope.
    pub(super) signature: [u8; 32],
    /// The SHA-256 digest of all fields that distinguish this request.
    pub(super) content: [u8; 32],
}

/// Rebuilds the request that `proof` signs, provided that it was created for `binding` and `host`.
///
/// # Errors
///
/// Returns an error if a field is not valid in an HTTP request. This cannot occur, because the forms of the values have
/// been checked.
pub(super) fn rebuild(
    proof: &Proof,
    binding: &KeyBinding,
    host: &EndpointHost,
) -> Result<Call, hyper::http::Error> {
    let day = proof.amz_date.get(..8).unwrap_or_default();
    let scope = format!(
        "{}/{day}/{}/{STS_SERVICE}/aws4_request",
        &proof.access_key_id, &proof.region
    );
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={SIGNED_HEADERS}, Signature={}",
        &proof.signature
    );
    let binding = binding.to_hex();
    let uri = Uri::builder()
        .scheme("https")
        .authority(host.as_str())
        .path_and_query("/")
        .build()?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(uri)
        .header(HOST, host.as_str())
        .header(ACCEPT, STS_ACCEPT)
        .header(CONTENT_TYPE, STS_CONTENT_TYPE)
        .header(DATE, &proof.amz_date)
        .header(TOKEN, secret(&proof.session_token)?)
        .header(BINDING, &binding)
        .header(AUTHORIZATION, secret(&authorization)?)
        .body(STS_BODY)?;
    Ok(Call {
        request,
        signature: digest(&[&scope, &proof.signature]),
        content: digest(&[
            host.as_str(),
            &authorization,
            &proof.amz_date,
            &proof.session_token,
            &binding,
        ]),
    })
}

fn secret(value: &str) -> Result<HeaderValue, hyper::http::Error> {
    let mut value = HeaderValue::from_str(value)?;
    value.set_sensitive(true);
    Ok(value)
}

/// The SHA-256 digest of parts that contain no line ends.
fn digest(parts: &[&str]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.as_bytes());
        digest.update(b"\n");
    }
    digest.finalize().into()
}
