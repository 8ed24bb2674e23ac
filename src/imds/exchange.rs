//! One HTTP exchange with the service, within its limits.

use std::error::Error;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode, redirect};
use rustls::RootCertStore;
use zeroize::Zeroizing;

use super::error::ImdsError;
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
        let failed = |source| ImdsError::Client { source };
        // Never used, because there is no TLS here. Without one the library looks for a default.
        let tls = tls_configuration(RootCertStore::empty(), None)
            .map_err(|error| failed(io::Error::other(error)))?;
        reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .redirect(redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map(Self)
            .map_err(|error| failed(io::Error::other(error)))
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
        question.check(response.status())?;
        // Allocated in advance: a buffer that grows would leave copies of a secret in memory.
        let mut body = Zeroizing::new(Vec::with_capacity(USUAL_ANSWER_LEN));
        response
            .take(MAX_ANSWER_LEN + 1)
            .read_to_end(&mut body)
            .map_err(|error| failed(&error))?;
        if u64::try_from(body.len()).is_ok_and(|len| len <= MAX_ANSWER_LEN) {
            return Ok(body);
        }
        Err(ImdsError::TooLarge {
            path: question.path.to_owned(),
            limit: MAX_ANSWER_LEN,
        })
    }
}

impl Question<'_> {
    fn check(&self, status: StatusCode) -> Result<(), ImdsError> {
        match status.as_u16() {
            200 => Ok(()),
            status => Err(ImdsError::Status {
                path: self.path.to_owned(),
                status,
            }),
        }
    }

    fn explain(&self, error: &(dyn Error + 'static), waited: Duration) -> ImdsError {
        let endpoint = self.endpoint.to_owned();
        let path = self.path.to_owned();
        match Fault::of(error) {
            Fault::Connect => ImdsError::Unreachable {
                tried: format!("{endpoint}: {}", innermost(error)),
            },
            Fault::Timeout => ImdsError::TimedOut {
                endpoint,
                path,
                waited,
            },
            Fault::Other => ImdsError::NotHttp {
                endpoint,
                path,
                why: innermost(error),
            },
        }
    }
}

enum Fault {
    Connect,
    Timeout,
    Other,
}

impl Fault {
    fn of(error: &(dyn Error + 'static)) -> Self {
        for cause in causes(error) {
            if let Some(error) = cause.downcast_ref::<reqwest::Error>() {
                if error.is_connect() {
                    return Self::Connect;
                }
                if error.is_timeout() {
                    return Self::Timeout;
                }
            }
            let io = cause.downcast_ref::<io::Error>();
            if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
                return Self::Timeout;
            }
        }
        Self::Other
    }
}
