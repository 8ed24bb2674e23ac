//! HTTP exchanges with the API server, each within its limits.
//!
//! Every exchange runs on a thread of its own, and the caller waits for it only until the deadline.
//! Neither a resolver that hangs nor a server that sends a byte a second can block the caller.

use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT, CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};

use super::error::{ApiError, ApiErrorKind};
use super::tls;
use super::types::WireFailure;
use crate::clock::{self, Deadline};
use crate::failure::{causes, innermost, one_line};

/// Ten times a request with the largest evidence. etcd accepts no object of more than 1.5 MiB.
pub(super) const MAX_ANSWER_LEN: u64 = 1024 * 1024;

/// The clock skew that certificates tolerate: signers back-date them by as much, ours and
/// kube-controller-manager alike.
const MAX_SKEW: Duration = Duration::from_mins(5);

/// How often a server may ask for a pause.
const MAX_PAUSES: u32 = 3;

/// Enough for any message of an API server, and short enough for a journal.
const MAX_MESSAGE_LEN: usize = 1024;

const JSON: &str = "application/json";

/// Server-side apply. Its bodies may be JSON, because all JSON is YAML.
const APPLY: &str = "application/apply-patch+yaml";

/// The connection to one API server.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    // Dropping the client would wait for its thread, which may itself wait for a resolver that
    // never answers.
    client: ManuallyDrop<Client>,
    server: String,
    name: String,
}

/// An HTTP request.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Option<Vec<u8>>,
    /// The action, for error messages.
    pub(super) what: &'static str,
}

impl Question {
    /// A GET.
    pub(super) fn read(url: Url, what: &'static str) -> Self {
        Self {
            method: Method::GET,
            url,
            body: None,
            what,
        }
    }
}

/// An HTTP answer of any status.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

/// A report of an exchange's thread.
enum Report {
    Head(Head),
    Line(Vec<u8>),
}

type Reports = Receiver<Result<Report, ApiError>>;

struct Head {
    status: StatusCode,
    date: Option<SystemTime>,
    retry_after: Option<Duration>,
}

/// An HTTP answer of any status, whose body arrives in lines.
#[derive(Debug)]
pub(super) struct Stream<'a> {
    pub(super) status: StatusCode,
    transport: &'a Transport,
    what: &'static str,
    reports: Reports,
}

impl Transport {
    /// `name` is the expected name in the server's certificate.
    pub(super) fn new(client: Client, server: String, name: String) -> Self {
        Self {
            client: ManuallyDrop::new(client),
            server,
            name,
        }
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Sends the request and reads the whole answer.
    pub(super) fn exchange(
        &self,
        question: &Question,
        deadline: Deadline,
    ) -> Result<Answer, ApiError> {
        self.send(question, deadline)?.whole(deadline)
    }

    /// Sends the request. Pauses if the server asks for it and the deadline allows.
    pub(super) fn send(
        &self,
        question: &Question,
        deadline: Deadline,
    ) -> Result<Stream<'_>, ApiError> {
        let mut pauses = 0;
        loop {
            let reports = self.start(question.clone(), deadline)?;
            let head = match self.report(&reports, question.what, deadline)? {
                Some(Report::Head(head)) => head,
                Some(Report::Line(_)) | None => {
                    let ended = io::Error::other("its thread has ended");
                    return Err(ApiError::of_client(&self.server, &ended));
                }
            };
            self.compare_clocks(&head)?;
            match head.retry_after {
                Some(pause) if pauses < MAX_PAUSES && pause < deadline.remaining() => {
                    pauses += 1;
                    thread::sleep(pause);
                }
                Some(_) | None => {
                    return Ok(Stream {
                        status: head.status,
                        transport: self,
                        what: question.what,
                        reports,
                    });
                }
            }
        }
    }

    fn start(&self, question: Question, deadline: Deadline) -> Result<Reports, ApiError> {
        // One report at a time: a server that sends faster than the caller reads has to wait.
        let (sender, reports) = sync_channel(1);
        let transport = self.clone();
        let run = move || {
            if let Err(error) = transport.converse(question, deadline, &sender) {
                // If the caller has left, its deadline has passed, and it needs no report.
                drop(sender.send(Err(error)));
            }
        };
        thread::Builder::new()
            .name("exchange".to_owned())
            .spawn(run)
            .map_err(|error| ApiError::of_client(&self.server, &error))?;
        Ok(reports)
    }

    /// The next report. `None` at the end of the answer.
    fn report(
        &self,
        reports: &Reports,
        what: &str,
        deadline: Deadline,
    ) -> Result<Option<Report>, ApiError> {
        match reports.recv_timeout(deadline.remaining()) {
            Ok(report) => report.map(Some),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out(what)),
        }
    }

    fn timed_out(&self, what: &str) -> ApiError {
        let what = format!("{} did not answer in time ({what})", self.server);
        ApiErrorKind::TimedOut.error(what)
    }

    fn compare_clocks(&self, head: &Head) -> Result<(), ApiError> {
        let Some(theirs) = head.date else {
            return Ok(());
        };
        let ours = clock::now();
        let apart = ours
            .duration_since(theirs)
            .unwrap_or_else(|error| error.duration());
        if apart <= MAX_SKEW {
            return Ok(());
        }
        let [theirs, ours] = [theirs, ours].map(humantime::format_rfc3339_seconds);
        Err(ApiErrorKind::ClockSkew.error(format!(
            "the clock of {} says {theirs}, ours says {ours}; set the clock",
            self.server
        )))
    }

    /// The error in an answer.
    pub(super) fn refusal(&self, answer: &Answer) -> ApiError {
        let server = &self.server;
        let failure = failure(&answer.body);
        let status = answer.status.as_u16();
        let (kind, what) = match status {
            401 => (
                ApiErrorKind::Unauthorized,
                format!("{server} does not accept the credential (401 Unauthorized)"),
            ),
            403 => (
                ApiErrorKind::Forbidden,
                format!("{server} forbids it (403 Forbidden)"),
            ),
            429 => (
                ApiErrorKind::TooManyRequests,
                format!("{server} has too many requests (429)"),
            ),
            400..=499 => {
                let reason = one_line(&failure.reason, MAX_MESSAGE_LEN);
                let what = format!("{server} refuses the request ({status} {reason})");
                (ApiErrorKind::Refused, what)
            }
            500..=599 => (
                ApiErrorKind::Server,
                format!("{server} is out of order ({status})"),
            ),
            _ => {
                return ApiErrorKind::NotAnApiServer.error(format!(
                    "{server} answers {status}, which no API server does; is something between us \
                     and it?"
                ));
            }
        };
        let message = one_line(&failure.message, MAX_MESSAGE_LEN);
        let colon = if message.is_empty() { "" } else { ": " };
        kind.error(format!("{what}{colon}{message}"))
    }

    /// On the exchange's thread: sends the request and reports the answer.
    fn converse(
        &self,
        question: Question,
        deadline: Deadline,
        reports: &SyncSender<Result<Report, ApiError>>,
    ) -> Result<(), ApiError> {
        let what = question.what;
        let content_type = if question.method == Method::PATCH {
            APPLY
        } else {
            JSON
        };
        let mut request = self
            .client
            .request(question.method, question.url)
            .header(ACCEPT, JSON)
            .timeout(deadline.remaining());
        if let Some(body) = question.body {
            request = request.header(CONTENT_TYPE, content_type).body(body);
        }
        let response = request.send().map_err(|error| self.explain(&error, what))?;
        if reports.send(Ok(Report::Head(Head::of(&response)))).is_err() {
            return Ok(());
        }
        let mut reader = BufReader::new(response);
        loop {
            let mut line = Vec::new();
            (&mut reader)
                .take(MAX_ANSWER_LEN + 1)
                .read_until(b'\n', &mut line)
                .map_err(|error| self.explain(&error, what))?;
            self.within_limit(&line)?;
            if line.is_empty() || reports.send(Ok(Report::Line(line))).is_err() {
                return Ok(());
            }
        }
    }

    fn within_limit(&self, bytes: &[u8]) -> Result<(), ApiError> {
        if u64::try_from(bytes.len()).is_ok_and(|len| len <= MAX_ANSWER_LEN) {
            return Ok(());
        }
        Err(ApiErrorKind::NotAnApiServer.error(format!(
            "the answer of {} is longer than {MAX_ANSWER_LEN} bytes",
            self.server
        )))
    }

    fn explain(&self, error: &(dyn Error + 'static), what: &str) -> ApiError {
        let server = &self.server;
        let is_timeout = |error: &reqwest::Error| error.is_timeout();
        if let Some(why) = tls::fault(error, &self.name) {
            ApiErrorKind::Tls.error(format!("TLS with {server} failed: {why}"))
        } else if causes(error).any(|cause| cause.downcast_ref().is_some_and(is_timeout)) {
            self.timed_out(what)
        } else {
            let why = innermost(error);
            ApiErrorKind::Unreachable.error(format!("cannot reach {server}: {why}"))
        }
    }
}

impl Stream<'_> {
    /// The next line. `None` at the end of the answer.
    pub(super) fn line(&self, deadline: Deadline) -> Result<Option<Vec<u8>>, ApiError> {
        let report = self.transport.report(&self.reports, self.what, deadline)?;
        Ok(report.and_then(|report| match report {
            Report::Line(line) => Some(line),
            Report::Head(_) => None,
        }))
    }

    /// The whole answer.
    pub(super) fn whole(self, deadline: Deadline) -> Result<Answer, ApiError> {
        let mut body = Vec::new();
        while let Some(line) = self.line(deadline)? {
            body.extend(line);
            self.transport.within_limit(&body)?;
        }
        Ok(Answer {
            status: self.status,
            body,
        })
    }
}

/// The `Status` in an answer's body, as far as it is one.
pub(super) fn failure(body: &[u8]) -> WireFailure {
    serde_json::from_slice(body).unwrap_or_default()
}

impl Head {
    fn of(response: &Response) -> Self {
        let status = response.status();
        let asks_for_patience = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        Self {
            status,
            date: text(response.headers(), &DATE)
                .and_then(|date| httpdate::parse_http_date(date).ok()),
            retry_after: text(response.headers(), &RETRY_AFTER)
                .filter(|_| asks_for_patience)
                .and_then(|seconds| seconds.parse().ok())
                .map(Duration::from_secs),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &reqwest::header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
