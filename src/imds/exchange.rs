//! One HTTP exchange with the service, within its limits.

use std::error::Error;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use kubelet_attestation::errors::error_chain;
use reqwest::{Method, StatusCode, redirect};
use rustls::RootCertStore;
use zeroize::Zeroizing;

use super::error::{ErrorKind, ImdsError};
use crate::clock::Deadline;
use crate::failure::{causes, innermost};
use crate::kube::tls_configuration;

/// The service is on the same host, so a connection succeeds at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// From the first byte sent to the last byte received. A run with a valid credential has five
/// seconds, which leaves time for a second attempt.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest answer of the service, the signed document, has 2 KiB.
const MAX_ANSWER_LEN: u64 = 64 * 1024;

/// Larger than any answer that contains a secret.
const USUAL_ANSWER_LEN: usize = 16 * 1024;

#[derive(Debug)]
pub(super) struct Client(reqwest::blocking::Client);

/// One request to the service.
pub(super) struct Question<'a> {
    pub(super) method: Method,
    pub(super) endpoint: &'a str,
    pub(super) path: &'a str,
    pub(super) header: (&'static str, &'a str),
}

impl Client {
    pub(super) fn new() -> Result<Self, ImdsError> {
        let failed = |error: &dyn Error| {
            let what = "cannot set up a client for the instance metadata service";
            ImdsError::new(ErrorKind::Client, format!("{what}: {}", error_chain(error)))
        };
        // Never used, because there is no TLS here. Without one the library looks for a default.
        let tls =
            tls_configuration(RootCertStore::empty(), None).map_err(|error| failed(&error))?;
        reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .redirect(redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map(Self)
            .map_err(|error| failed(&error))
    }

    /// Sends the request and returns the body of a 200 answer.
    pub(super) fn ask(
        &self,
        question: &Question<'_>,
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
        // Allocated in advance: a buffer that grows would leave copies of a secret in memory.
        let mut body = Zeroizing::new(Vec::with_capacity(USUAL_ANSWER_LEN));
        response
            .take(MAX_ANSWER_LEN + 1)
            .read_to_end(&mut body)
            .map_err(|error| failed(&error))?;
        if u64::try_from(body.len()).is_ok_and(|len| len <= MAX_ANSWER_LEN) {
            return Ok(body);
        }
        Err(question.invalid(&format!("with more than {MAX_ANSWER_LEN} bytes")))
    }
}

impl Question<'_> {
    /// The error of an answer that cannot be used.
    pub(super) fn invalid(&self, how: &str) -> ImdsError {
        let what = format!("the instance metadata service answers {} {how}", self.path);
        ImdsError::new(ErrorKind::Invalid, what)
    }

    fn explain(&self, error: &(dyn Error + 'static), waited: Duration) -> ImdsError {
        let (endpoint, path) = (self.endpoint, self.path);
        let mut kind = kind(error);
        if kind == ErrorKind::TimedOut && self.method == Method::PUT {
            kind = ErrorKind::TokenTimedOut;
        }
        let what = match kind {
            ErrorKind::Unreachable => format!("{endpoint}: {}", innermost(error)),
            ErrorKind::TokenTimedOut => format!(
                "the instance metadata service at {endpoint} takes the request for a token and \
                 does not answer within {waited:.1?}, as where its answer needs more hops than the \
                 instance's hop limit allows"
            ),
            ErrorKind::TimedOut => format!(
                "the instance metadata service at {endpoint} did not answer {path} within {waited:.1?}"
            ),
            ErrorKind::NotHttp | ErrorKind::Status(_) | ErrorKind::Invalid | ErrorKind::Client => {
                format!(
                    "what answers at {endpoint} for {path} does not speak HTTP to its end: {}",
                    innermost(error)
                )
            }
        };
        ImdsError::new(kind, what)
    }
}

/// The kind of an error of the HTTP library.
fn kind(error: &(dyn Error + 'static)) -> ErrorKind {
    for cause in causes(error) {
        let http = cause.downcast_ref::<reqwest::Error>();
        if http.is_some_and(reqwest::Error::is_connect) {
            return ErrorKind::Unreachable;
        }
        let io = cause.downcast_ref::<io::Error>();
        if http.is_some_and(reqwest::Error::is_timeout)
            || io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
        {
            return ErrorKind::TimedOut;
        }
    }
    ErrorKind::NotHttp
}
