//! HTTP exchanges with the API server, each within its limits.
//!
//! Every exchange runs on a thread of its own, and the caller waits for it only until the deadline.
//! Neither a resolver that hangs nor a server that sends a byte a second can block the caller.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read};
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT, CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};

use super::error::{ApiError, ApiFault};
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
#[derive(Debug)]
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

/// An HTTP answer of any status.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

/// A report of an exchange's thread.
enum Report {
    Head(Head),
    Body(Vec<u8>),
    Failed(ApiError),
}

struct Head {
    status: StatusCode,
    date: Option<SystemTime>,
    retry_after: Option<Duration>,
}

/// The lines of a streamed answer.
#[derive(Debug)]
pub(super) struct Lines {
    reports: Receiver<Report>,
}

/// The next part of a streamed answer.
#[derive(Debug)]
pub(super) enum Next {
    Line(Vec<u8>),
    End,
    Deadline,
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

    /// Sends the request and reads the whole answer. Pauses if the server asks for it and the
    /// deadline allows.
    pub(super) fn exchange(
        &self,
        question: &Question,
        deadline: Deadline,
    ) -> Result<Answer, ApiError> {
        let (head, reports) = self.patiently(question, deadline, Reading::Whole)?;
        let body = match self.report(&reports, question.what, deadline)? {
            Report::Body(body) => body,
            Report::Failed(error) => return Err(error),
            Report::Head(_) => Vec::new(),
        };
        Ok(Answer {
            status: head.status,
            body,
        })
    }

    /// Sends the request and streams the lines of the answer. An answer other than 200 is read as a
    /// whole.
    pub(super) fn stream(
        &self,
        question: &Question,
        deadline: Deadline,
    ) -> Result<Result<Lines, Answer>, ApiError> {
        let (head, reports) = self.patiently(question, deadline, Reading::Lines)?;
        if head.status == StatusCode::OK {
            return Ok(Ok(Lines { reports }));
        }
        match self.report(&reports, question.what, deadline)? {
            Report::Body(body) => Ok(Err(Answer {
                status: head.status,
                body,
            })),
            Report::Failed(error) => Err(error),
            Report::Head(_) => Ok(Err(Answer {
                status: head.status,
                body: Vec::new(),
            })),
        }
    }

    fn patiently(
        &self,
        question: &Question,
        deadline: Deadline,
        reading: Reading,
    ) -> Result<(Head, Receiver<Report>), ApiError> {
        let mut pauses = 0;
        loop {
            let reports = self.start(question.clone(), deadline, reading)?;
            let head = match self.report(&reports, question.what, deadline)? {
                Report::Head(head) => head,
                Report::Failed(error) => return Err(error),
                Report::Body(_) => continue,
            };
            self.compare_clocks(&head)?;
            match head.retry_after {
                Some(pause) if pauses < MAX_PAUSES && pause < deadline.remaining() => {
                    pauses += 1;
                    thread::sleep(pause);
                }
                Some(_) | None => return Ok((head, reports)),
            }
        }
    }

    fn start(
        &self,
        question: Question,
        deadline: Deadline,
        reading: Reading,
    ) -> Result<Receiver<Report>, ApiError> {
        let (sender, reports) = sync_channel(1);
        let exchange = Exchange {
            client: Client::clone(&self.client),
            server: self.server.clone(),
            name: self.name.clone(),
            what: question.what,
            reading,
        };
        thread::Builder::new()
            .name("exchange".to_owned())
            .spawn(move || exchange.run(question, deadline, &sender))
            .map_err(|source| ApiFault::Client(source).of(&self.server))?;
        Ok(reports)
    }

    fn report(
        &self,
        reports: &Receiver<Report>,
        what: &'static str,
        deadline: Deadline,
    ) -> Result<Report, ApiError> {
        reports
            .recv_timeout(deadline.remaining())
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => ApiFault::TimedOut(what),
                RecvTimeoutError::Disconnected => {
                    ApiFault::Client(io::Error::other("its thread has ended"))
                }
            })
            .map_err(|fault| fault.of(&self.server))
    }

    fn compare_clocks(&self, head: &Head) -> Result<(), ApiError> {
        let Some(theirs) = head.date else {
            return Ok(());
        };
        let ours = clock::now();
        let apart = ours
            .duration_since(theirs)
            .unwrap_or_else(|error| error.duration());
        if apart > MAX_SKEW {
            return Err(ApiFault::ClockSkew { theirs, ours }.of(&self.server));
        }
        Ok(())
    }

    /// The error for an answer that is no success.
    pub(super) fn refusal(&self, answer: &Answer) -> ApiError {
        let failure = failure(&answer.body);
        let message = one_line(&failure.message, MAX_MESSAGE_LEN);
        let status = answer.status.as_u16();
        let fault = match status {
            401 => ApiFault::Unauthorized(message),
            403 => ApiFault::Forbidden(message),
            429 => ApiFault::TooManyRequests(message),
            400..=499 => ApiFault::Refused {
                status,
                reason: one_line(&failure.reason, MAX_MESSAGE_LEN),
                message,
            },
            500..=599 => ApiFault::Server { status, message },
            _ => ApiFault::NotAnApiServer(status),
        };
        fault.of(&self.server)
    }
}

impl Lines {
    pub(super) fn next(&self, deadline: Deadline) -> Result<Next, ApiError> {
        match self.reports.recv_timeout(deadline.remaining()) {
            Ok(Report::Body(line)) => Ok(Next::Line(line)),
            Ok(Report::Failed(error)) => Err(error),
            Ok(Report::Head(_)) | Err(RecvTimeoutError::Disconnected) => Ok(Next::End),
            Err(RecvTimeoutError::Timeout) => Ok(Next::Deadline),
        }
    }
}

/// The `Status` in an error answer, or an empty one.
pub(super) fn failure(body: &[u8]) -> WireFailure {
    serde_json::from_slice(body).unwrap_or_default()
}

#[derive(Debug, Clone, Copy)]
enum Reading {
    Whole,
    Lines,
}

/// One exchange, on its own thread. If the caller has left, nobody receives its reports, and it
/// ends.
struct Exchange {
    client: Client,
    server: String,
    name: String,
    what: &'static str,
    reading: Reading,
}

impl Exchange {
    fn run(self, question: Question, deadline: Deadline, reports: &SyncSender<Report>) {
        if let Err(error) = self.converse(question, deadline, reports) {
            // If the caller has left, its deadline has passed, and it needs no report.
            drop(reports.send(Report::Failed(error)));
        }
    }

    fn converse(
        &self,
        question: Question,
        deadline: Deadline,
        reports: &SyncSender<Report>,
    ) -> Result<(), ApiError> {
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
        let response = request.send().map_err(|error| self.explain(&error))?;
        let head = Head::of(&response);
        let lines = matches!(self.reading, Reading::Lines) && head.status == StatusCode::OK;
        if reports.send(Report::Head(head)).is_err() {
            return Ok(());
        }
        if lines {
            self.lines(response, reports)
        } else {
            self.whole(response, reports)
        }
    }

    fn whole(&self, response: Response, reports: &SyncSender<Report>) -> Result<(), ApiError> {
        let mut body = Vec::new();
        response
            .take(MAX_ANSWER_LEN + 1)
            .read_to_end(&mut body)
            .map_err(|error| self.explain(&error))?;
        self.within_limit(&body)?;
        drop(reports.send(Report::Body(body)));
        Ok(())
    }

    fn lines(&self, response: Response, reports: &SyncSender<Report>) -> Result<(), ApiError> {
        let mut reader = BufReader::new(response);
        loop {
            let mut line = Vec::new();
            (&mut reader)
                .take(MAX_ANSWER_LEN + 1)
                .read_until(b'\n', &mut line)
                .map_err(|error| self.explain(&error))?;
            self.within_limit(&line)?;
            if line.is_empty() || reports.send(Report::Body(line)).is_err() {
                return Ok(());
            }
        }
    }

    fn within_limit(&self, bytes: &[u8]) -> Result<(), ApiError> {
        if u64::try_from(bytes.len()).is_ok_and(|len| len <= MAX_ANSWER_LEN) {
            return Ok(());
        }
        Err(ApiFault::TooLarge(MAX_ANSWER_LEN).of(&self.server))
    }

    fn explain(&self, error: &(dyn Error + 'static)) -> ApiError {
        let is_timeout = |error: &reqwest::Error| error.is_timeout();
        let fault = if let Some(why) = tls::fault(error, &self.name) {
            ApiFault::Tls(why)
        } else if causes(error).any(|cause| cause.downcast_ref().is_some_and(is_timeout)) {
            ApiFault::TimedOut(self.what)
        } else {
            ApiFault::Unreachable(innermost(error))
        };
        fault.of(&self.server)
    }
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
