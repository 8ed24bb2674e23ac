//! HTTP exchanges with the API server, each within its limits.

use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kubelet_attestation::backoff::Backoff;
use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT, CONTENT_TYPE, DATE, HeaderName, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};
use rustls::ClientConfig;
use zeroize::Zeroizing;

use super::error::{ApiError, ApiErrorKind, is_retried};
use super::proxy::{Failed, ProxyServer, connect_status};
use super::tls;
use super::types::WireFailure;
use crate::clock::{self, CLOCK_LEEWAY, Deadline};
use crate::failure::{Code, causes, innermost, one_line};
use crate::http;

/// The maximum length of a response, in bytes. It is ten times the size of a CSR with the largest evidence. etcd does
/// not accept objects of more than 1.5 MiB.
pub(super) const MAX_ANSWER_LEN: u64 = 1024 * 1024;

/// The pauses before another attempt, if the server does not request longer pauses.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(5),
};

/// The maximum wait for the status of a proxy.
const PROXY_STATUS: Duration = Duration::from_secs(2);

/// The maximum length of a message from an API server, in bytes. The length is sufficient for a complete message, and
/// short enough for a journal.
const MAX_MESSAGE_LEN: usize = 1024;

const CHECK_BINDING: &str =
    "check that the group of the bootstrap token is bound to system:node-bootstrapper";

/// The hint for status 400 and 422: an admission webhook rejects requests with 400 by default, and a
/// `ValidatingAdmissionPolicy` rejects them with 422.
const CHECK_ADMISSION: &str = "check the ValidatingAdmissionPolicy, the admission webhook or the \
                               invalid field in the message";

const JSON: &str = "application/json";

/// The content type of server-side apply. The body can be JSON, because all JSON is valid YAML.
const APPLY: &str = "application/apply-patch+yaml";

/// The connection to an API server.
///
/// The client runs on a separate thread, and the caller waits for it only until the deadline. Therefore, a resolver
/// that hangs, or a server that sends one byte per second, cannot block the caller.
#[derive(Debug)]
pub(super) struct Transport {
    // The client is never dropped: a drop waits for the client's thread, which might wait for a resolver that never
    // answers.
    client: ManuallyDrop<Client>,
    pub(super) server: String,
    url: Url,
    name: String,
    proxy: Option<Proxied>,
}

/// The proxy, and the TLS configuration for an https proxy.
type Proxied = (ProxyServer, Arc<ClientConfig>);

/// An HTTP request.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Option<Vec<u8>>,
    /// The action, for error messages.
    pub(super) what: &'static str,
}

impl Question {
    /// A GET request.
    pub(super) fn read(url: Url, what: &'static str) -> Self {
        Self {
            method: Method::GET,
            url,
            body: None,
            what,
        }
    }
}

/// An HTTP response with any status.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Zeroizing<Vec<u8>>,
    /// The pause that the server requests.
    pub(super) retry_after: Option<Duration>,
}

/// An HTTP response with any status. Its body can be read until the deadline of its request.
#[derive(Debug)]
pub(super) struct Stream<'a> {
    pub(super) status: StatusCode,
    retry_after: Option<Duration>,
    transport: &'a Transport,
    what: &'static str,
    body: BufReader<Response>,
}

impl Transport {
    /// Creates a transport; `name` is the expected name in the server's certificate.
    pub(super) fn new(client: Client, url: &Url, name: String, proxy: Option<Proxied>) -> Self {
        Self {
            client: ManuallyDrop::new(client),
            server: url.as_str().trim_end_matches('/').to_owned(),
            url: url.clone(),
            name,
            proxy,
        }
    }

    /// Sends the request, and reads the whole response. Retries temporary errors until the deadline. The pauses are at
    /// least as long as the pause that the server requests.
    ///
    /// It is safe to send each request twice: a second create of the same object gets a conflict.
    pub(super) fn exchange(
        &self,
        question: &Question,
        deadline: Deadline,
    ) -> Result<Answer, ApiError> {
        let mut pause = PAUSES.first;
        let mut last = None;
        loop {
            let outcome = self.exchange_once(question, deadline);
            let asked = match &outcome {
                Ok(answer) if is_retried(answer.status) => answer.retry_after,
                Err(error) if error.may_pass() => error.retry_after,
                Ok(_) | Err(_) => return outcome,
            };
            let wait = pause.max(asked.unwrap_or_default());
            if wait >= deadline.remaining() {
                // If the deadline interrupted this attempt, return the error of the previous attempt, which is more
                // precise.
                return match last {
                    Some(last) if outcome.is_err() && deadline.passed() => last,
                    Some(_) | None => outcome,
                };
            }
            last = Some(outcome);
            thread::sleep(wait);
            pause = PAUSES.following(pause);
        }
    }

    /// Sends the request once, and reads the whole response.
    pub(super) fn exchange_once(
        &self,
        question: &Question,
        deadline: Deadline,
    ) -> Result<Answer, ApiError> {
        self.send(question, deadline)?.whole()
    }

    /// Sends the request.
    pub(super) fn send(
        &self,
        question: &Question,
        deadline: Deadline,
    ) -> Result<Stream<'_>, ApiError> {
        let response = self.try_once(question, deadline)?;
        self.compare_clocks(&response)?;
        Ok(Stream {
            status: response.status(),
            retry_after: retry_after(&response),
            transport: self,
            what: question.what,
            body: BufReader::new(response),
        })
    }

    fn try_once(&self, question: &Question, deadline: Deadline) -> Result<Response, ApiError> {
        let mut request = self
            .client
            .request(question.method.clone(), question.url.clone())
            .header(ACCEPT, JSON)
            .timeout(deadline.remaining());
        if let Some(body) = &question.body {
            let content_type = if question.method == Method::PATCH {
                APPLY
            } else {
                JSON
            };
            request = request
                .header(CONTENT_TYPE, content_type)
                .body(body.clone());
        }
        let answer = request.send();
        answer.map_err(|error| {
            let failed = Failed::of(&error);
            match (&self.proxy, failed) {
                (Some(proxy), Some(failed)) => self.of_proxy(proxy, &failed, &error, deadline),
                _ => self.explain(&error, question.what),
            }
        })
    }

    /// The error for a proxy that cannot be reached, or that does not connect to the server.
    fn of_proxy(
        &self,
        (proxy, tls): &Proxied,
        failed: &Failed,
        error: &(dyn Error + 'static),
        deadline: Deadline,
    ) -> ApiError {
        let server = &self.server;
        let Failed::ToConnect(why) = failed else {
            let host = proxy.host();
            if let Some((why, _)) = tls::fault(error, &host) {
                let what = format!("TLS with {proxy} failed: {why}");
                return ApiError::of_proxy(what, tls::may_pass(error));
            }
            // The HTTP library drops the cause of a SOCKS error.
            let why = Some(plain(error)).filter(|why| !why.starts_with("SOCKS error"));
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            return ApiError::of_proxy(format!("cannot reach {proxy}{why}"), true);
        };
        let timeout = deadline.remaining().min(PROXY_STATUS);
        let status = connect_status(proxy, &self.url, tls, timeout);
        let why = match status.map(StatusCode::from_u16) {
            Some(Ok(status)) if !status.is_success() => format!("status {status}"),
            _ => why.clone(),
        };
        let refused = status.is_some_and(|status| (400..500).contains(&status));
        ApiError::of_proxy(
            format!("{proxy} does not connect to {server}: {why}"),
            !refused,
        )
    }

    fn compare_clocks(&self, response: &Response) -> Result<(), ApiError> {
        let date = header(response, &DATE);
        let Some(theirs) = date.and_then(|date| httpdate::parse_http_date(date).ok()) else {
            return Ok(());
        };
        let ours = clock::now();
        // If the local clock is behind by more than this time, a new certificate appears not to be valid yet.
        if clock::apart(ours, theirs) <= CLOCK_LEEWAY {
            return Ok(());
        }
        let [theirs, ours] = [theirs, ours].map(humantime::format_rfc3339_seconds);
        let server = &self.server;
        Err(ApiError::other(
            Code::ClockSkew,
            format!(
                "the clock of {server} shows {theirs}, but the clock of this machine shows {ours}"
            ),
            "set the clock of this machine with NTP",
        ))
    }

    /// The error in an answer.
    pub(super) fn refusal(&self, answer: &Answer) -> ApiError {
        ApiError {
            retry_after: answer.retry_after,
            ..self.refused(answer)
        }
    }

    fn refused(&self, answer: &Answer) -> ApiError {
        let server = &self.server;
        let failure = failure(&answer.body);
        let status = answer.status.as_u16();
        let reason = one_line(&failure.reason, MAX_MESSAGE_LEN);
        let message = one_line(&failure.message, MAX_MESSAGE_LEN);
        let colon = if message.is_empty() { "" } else { ": " };
        let says = |what: &str| format!("{server} {what}{colon}{message}");
        match status {
            401 => ApiError::new(
                ApiErrorKind::Unauthorized,
                Code::Unauthorized,
                says("does not accept the credential (401 Unauthorized)"),
                "give this machine a new bootstrap token",
            ),
            403 => ApiError::new(
                ApiErrorKind::Forbidden,
                Code::Refused,
                says("forbids the request (403 Forbidden)"),
                CHECK_BINDING,
            ),
            429 => ApiError::unavailable(says("rejects the request: too many requests (429)")),
            400..=499 => ApiError::new(
                ApiErrorKind::Refused,
                Code::Refused,
                says(&format!("refuses the request ({status} {reason})")),
                CHECK_ADMISSION,
            ),
            500..=599 => ApiError::unavailable(says(&format!("has an internal error ({status})"))),
            _ => ApiError::not_an_api_server(format!(
                "{server} returned status {status}, but the response is not from an API server"
            )),
        }
    }

    fn too_long(&self) -> ApiError {
        ApiError::not_an_api_server(format!(
            "the response from {} is longer than {MAX_ANSWER_LEN} bytes",
            self.server
        ))
    }

    fn explain(&self, error: &(dyn Error + 'static), what: &str) -> ApiError {
        let server = &self.server;
        if let Some((why, cure)) = tls::fault(error, &self.name) {
            let what = format!("TLS with {server} failed: {why}");
            return if tls::may_pass(error) {
                ApiError::unavailable(what)
            } else {
                ApiError::other(Code::Unreachable, what, cure)
            };
        }
        let by = self.proxy.as_ref();
        let by = by.map_or_else(String::new, |(proxy, _)| format!(" through {proxy}"));
        let what = if http::failed_by(error, reqwest::Error::is_timeout) {
            format!("{server} did not respond in time{by} ({what})")
        } else {
            format!("cannot reach {server}{by}: {}", plain(error))
        };
        if self.proxy.is_some() {
            ApiError::of_proxy(what, true)
        } else {
            ApiError::unavailable(what)
        }
    }
}

impl Stream<'_> {
    /// Reads the next line; `None` at the end of the answer.
    pub(super) fn line(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        let mut line = Vec::new();
        (&mut self.body)
            .take(MAX_ANSWER_LEN + 1)
            .read_until(b'\n', &mut line)
            .map_err(|error| self.transport.explain(&error, self.what))?;
        if u64::try_from(line.len()).is_ok_and(|len| len > MAX_ANSWER_LEN) {
            return Err(self.transport.too_long());
        }
        Ok((!line.is_empty()).then_some(line))
    }

    /// Reads the whole answer.
    pub(super) fn whole(self) -> Result<Answer, ApiError> {
        let body = http::read(self.body, MAX_ANSWER_LEN, Zeroizing::default())
            .map_err(|error| self.transport.explain(&error, self.what))?
            .ok_or_else(|| self.transport.too_long())?;
        Ok(Answer {
            status: self.status,
            body,
            retry_after: self.retry_after,
        })
    }
}

/// The pause that the server requests.
fn retry_after(response: &Response) -> Option<Duration> {
    pause(header(response, &RETRY_AFTER)?, header(response, &DATE))
}

/// A pause in seconds, or until a time on the server's own clock. A time in the past means no pause.
fn pause(asked: &str, date: Option<&str>) -> Option<Duration> {
    let time = |text| httpdate::parse_http_date(text).ok();
    let asked = asked.trim();
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let theirs = date.and_then(time).unwrap_or_else(clock::now);
    Some(clock::until(time(asked)?, theirs))
}

/// The innermost cause, in words that an operator understands without the TLS library's documentation.
fn plain(error: &(dyn Error + 'static)) -> String {
    let is_end = |cause: &(dyn Error + 'static)| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::UnexpectedEof)
    };
    if causes(error).any(is_end) {
        "the server closed the connection before it responded".to_owned()
    } else {
        innermost(error)
    }
}

/// The `Status` in a response body. Empty if the body is not a `Status`.
pub(super) fn failure(body: &[u8]) -> WireFailure {
    serde_json::from_slice(body).unwrap_or_default()
}

fn header<'a>(response: &'a Response, name: &HeaderName) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_after_header_has_seconds_or_a_server_time() {
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        for (asked, seconds) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("Sun, 06 Nov 1994 08:49:57 GMT", Some(20)),
            ("Sun, 06 Nov 1994 08:49:17 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(pause(asked, date), expected, "{asked}");
        }
        assert_eq!(
            pause("Sun, 06 Nov 1994 08:49:37 GMT", None),
            Some(Duration::ZERO)
        );
    }
}
