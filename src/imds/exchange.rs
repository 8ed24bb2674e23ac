//! One HTTP exchange with the service, within its limits.

use std::error::Error;
use std::time::{Duration, Instant};

use kubelet_attestation::errors::error_chain;
use reqwest::blocking::ClientBuilder;
use reqwest::{Method, StatusCode};
use rustls::RootCertStore;
use zeroize::Zeroizing;

use crate::clock::Deadline;
use crate::failure::{Code, Failure, innermost};
use crate::http;

/// The time limit for connecting to the service. The service is on the same host, so a connection succeeds or fails
/// immediately.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The time limit from the first byte sent to the last byte received. A run with a valid credential has five seconds,
/// which leaves time for a second attempt.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum length of a response, in bytes. The largest response from the service is the signed document, which is 2
/// KiB long.
const MAX_ANSWER_LEN: u64 = 64 * 1024;

/// The initial capacity for a response, in bytes. It is larger than any response that contains a secret.
const USUAL_ANSWER_LEN: usize = 16 * 1024;

const CHECK_INSTANCE: &str = "check that this is an EC2 instance, that its metadata endpoint is \
                              enabled (HttpEndpoint), and that no firewall blocks root";
const CHECK_HOPS: &str = "run the plugin on the host and not in a container's network; otherwise \
                          raise the instance's HttpPutResponseHopLimit";
const CHECK_IF_IT_STAYS: &str = "the next run retries; if the failure persists, check the \
                                 network path between this machine and the metadata service";
const CHECK_ENDPOINT: &str = "enable the instance's metadata endpoint (HttpEndpoint), and check \
                              that no proxy is in front of it";
const CHECK_SERVICE: &str = "check whether a proxy, an emulator or aws.metadataEndpoint in the \
                             settings replaces the instance metadata service";

/// A failed request for metadata. Errors never contain a response.
#[derive(Debug)]
pub(super) enum ImdsError {
    /// No endpoint can be reached. The text lists them with their errors.
    Unreachable(String),
    /// Another attempt can succeed.
    Temporary(Failure),
    /// The requested path does not exist.
    NotFound(Failure),
    /// Another attempt would also fail.
    Permanent(Failure),
}

impl From<ImdsError> for Failure {
    fn from(error: ImdsError) -> Self {
        match error {
            ImdsError::Unreachable(endpoints) => failure(
                format!("cannot reach the instance metadata service: {endpoints}"),
                CHECK_INSTANCE,
            ),
            ImdsError::Temporary(failure)
            | ImdsError::NotFound(failure)
            | ImdsError::Permanent(failure) => failure,
        }
    }
}

impl ImdsError {
    /// Returns the error for an unexpected response.
    pub(super) fn invalid(what: String) -> Self {
        Self::Permanent(failure(what, CHECK_SERVICE))
    }

    /// Returns the error for a status other than success.
    fn of_status(status: u16, path: &str) -> Self {
        let of =
            |what: String, remedy| failure(format!("the instance metadata service {what}"), remedy);
        let other = || {
            of(
                format!("returned status {status} for {path}"),
                CHECK_SERVICE,
            )
        };
        match status {
            401 => Self::Permanent(of(
                format!("does not accept its own token (401 for {path})"),
                CHECK_IF_IT_STAYS,
            )),
            403 => Self::Permanent(of(format!("refuses {path} (403)"), CHECK_ENDPOINT)),
            404 => Self::NotFound(of(format!("has no {path} (404)"), CHECK_SERVICE)),
            429 | 500.. => Self::Temporary(other()),
            _ => Self::Permanent(other()),
        }
    }
}

fn failure(what: String, remedy: &str) -> Failure {
    Failure::new(Code::EvidenceUnavailable, what, remedy)
}

#[derive(Debug)]
pub(super) struct Client(reqwest::blocking::Client);

/// One request to the service.
pub(super) struct ImdsRequest<'a> {
    pub(super) method: Method,
    pub(super) endpoint: &'a str,
    pub(super) path: &'a str,
    pub(super) header: (&'static str, &'a str),
}

impl Client {
    pub(super) fn new() -> Result<Self, Failure> {
        let builder = ClientBuilder::new().no_proxy();
        // Requests do not use TLS, but without a configuration, the library would search for a default configuration.
        let roots = RootCertStore::empty();
        let tls = http::tls().map(|tls| tls.with_root_certificates(roots).with_no_client_auth());
        let unusable = |error: &dyn Error| {
            let what = "cannot set up a client for the instance metadata service";
            failure(
                format!("{what}: {}", error_chain(error)),
                "free some memory",
            )
        };
        let tls = tls.map_err(|error| unusable(&error))?;
        let client = http::client(builder, tls, CONNECT_TIMEOUT);
        client.map(Self).map_err(|error| unusable(&error))
    }

    /// Sends the request and returns the body of a response with status 200.
    pub(super) fn ask(
        &self,
        question: &ImdsRequest<'_>,
        deadline: Deadline,
    ) -> Result<Zeroizing<Vec<u8>>, ImdsError> {
        let started = Instant::now();
        let failed = |error: &(dyn Error + 'static)| question.explain(error, started.elapsed());
        let (name, value) = question.header;
        let url = format!("{}{}", question.endpoint, question.path);
        let response = self
            .0
            .request(question.method.clone(), url)
            .header(name, value)
            .timeout(deadline.remaining().min(EXCHANGE_TIMEOUT))
            .send()
            .map_err(|error| failed(&error))?;
        if response.status() != StatusCode::OK {
            let status = response.status().as_u16();
            return Err(ImdsError::of_status(status, question.path));
        }
        // Allocate the buffer in advance, because a growing buffer would leave copies of a secret in memory.
        let body = Zeroizing::new(Vec::with_capacity(USUAL_ANSWER_LEN));
        http::read(response, MAX_ANSWER_LEN, body)
            .map_err(|error| failed(&error))?
            .ok_or_else(|| question.invalid(&format!("with more than {MAX_ANSWER_LEN} bytes")))
    }
}

impl ImdsRequest<'_> {
    /// Returns the error for a response that the plugin cannot use.
    pub(super) fn invalid(&self, how: &str) -> ImdsError {
        let path = self.path;
        ImdsError::invalid(format!(
            "the instance metadata service responds to {path} {how}"
        ))
    }

    fn explain(&self, error: &(dyn Error + 'static), waited: Duration) -> ImdsError {
        let (endpoint, path) = (self.endpoint, self.path);
        let why = innermost(error);
        if http::failed_by(error, reqwest::Error::is_connect) {
            return ImdsError::Unreachable(format!("{endpoint}: {why}"));
        }
        let temporary = |what, remedy| ImdsError::Temporary(failure(what, remedy));
        if !http::failed_by(error, reqwest::Error::is_timeout) {
            let what = "did not complete its HTTP response";
            let what = format!("the service at {endpoint} {what} for {path}: {why}");
            return temporary(what, CHECK_SERVICE);
        }
        if self.method == Method::PUT {
            let what = format!(
                "the instance metadata service at {endpoint} accepted the token request but did \
                 not respond within {waited:.1?}; its response might need more hops than the instance's hop limit allows"
            );
            return temporary(what, CHECK_HOPS);
        }
        let what = format!(
            "the instance metadata service at {endpoint} did not respond to the request for {path} within {waited:.1?}"
        );
        temporary(what, CHECK_IF_IT_STAYS)
    }
}
