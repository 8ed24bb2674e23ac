//! One question and its answer, within their limits.

use std::error::Error;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode, redirect};
use rustls::RootCertStore;
use zeroize::Zeroizing;

use super::error::ImdsError;
use crate::clock::Deadline;
use crate::failure::innermost;
use crate::kube::tls_configuration;

/// The service is on the same host, so it connects at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// From the first byte out to the last byte in. With a valid credential a run has five seconds, and
/// this leaves time for a second try.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest answer, the signed document, has 2 KiB.
const MAX_ANSWER_LEN: u64 = 64 * 1024;

/// More than any answer with a secret in it has.
const USUAL_ANSWER_LEN: usize = 16 * 1024;

/// Asks questions.
#[derive(Debug)]
pub(super) struct Client(reqwest::blocking::Client);

/// What is asked of whom.
pub(super) struct Question<'a> {
    pub(super) method: Method,
    pub(super) endpoint: &'a str,
    pub(super) path: &'a str,
    pub(super) header: (&'static str, &'a str),
}

impl Client {
    pub(super) fn new() -> Result<Self, ImdsError> {
        let failed = |source| ImdsError::Client { source };
        // Never used, for there is no TLS here; but without one the library looks for a default.
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

    /// The body of a good answer.
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
        // Sized before, so that no copy of a secret is left behind by growing.
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
        let path = self.path.to_owned();
        match status.as_u16() {
            200 => Ok(()),
            401 => Err(ImdsError::Unauthorized { path }),
            403 => Err(ImdsError::Forbidden { path }),
            404 => Err(ImdsError::NotFound { path }),
            status => Err(ImdsError::Status { path, status }),
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
    /// An error of reading is an I/O error around the library's own.
    fn of(error: &(dyn Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<reqwest::Error>() {
                if error.is_connect() {
                    return Self::Connect;
                }
                if error.is_timeout() {
                    return Self::Timeout;
                }
            }
            let io = error.downcast_ref::<io::Error>();
            if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
                return Self::Timeout;
            }
            // It does not name what it wraps as its source, only the source of that.
            next = match io.and_then(io::Error::get_ref) {
                Some(wrapped) => Some(wrapped),
                None => error.source(),
            };
        }
        Self::Other
    }
}
