//! Watches a request until it is decided.

use std::thread;
use std::time::Duration;

use kubelet_attestation::backoff::Backoff;
use reqwest::StatusCode;

use super::client::ApiClient;
use super::error::ApiError;
use super::transport::{Stream, failure};
use super::types::{CsrObject, CsrState, WireBookmark, WireEvent};
use crate::clock::Deadline;

/// The pauses before another watch, until an event arrives. The default wait of one minute allows more than ten
/// attempts.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(5),
};

/// A wait for a decision, with the last known state of the request.
pub(super) struct Watch<'a> {
    client: &'a ApiClient,
    pub(super) seen: CsrObject,
    /// The resource version at which the next watch continues. After a bookmark, this version can be later than the
    /// object's own resource version.
    version: String,
    deadline: Deadline,
    pause: Duration,
}

/// The result of one watch.
pub(super) enum Ended {
    /// The request has the last known state: decided, or pending at the deadline.
    Seen,
    /// The request was deleted, or a different request has its name.
    Gone,
    /// The watch ended or failed. Another watch continues from the last version.
    Cut,
    /// The server no longer has the version, so the object must be listed.
    Expired,
}

impl ApiClient {
    /// Watches the request until it is decided or deleted, or until the deadline. Returns the last known state: pending
    /// at the deadline, and `None` if the request was deleted or a different request has its name.
    ///
    /// If a watch ends, fails or falls behind, this function starts another watch. If no watch is running at the
    /// deadline, this function returns the error of the last attempt.
    pub fn wait(&self, csr: &CsrObject, deadline: Deadline) -> Result<Option<CsrObject>, ApiError> {
        Watch::new(self, csr, deadline).run()
    }
}

impl<'a> Watch<'a> {
    pub(super) fn new(client: &'a ApiClient, csr: &CsrObject, deadline: Deadline) -> Self {
        let version = csr.resource_version.clone();
        Self {
            client,
            seen: csr.clone(),
            version,
            deadline,
            pause: PAUSES.first,
        }
    }

    pub(super) fn run(mut self) -> Result<Option<CsrObject>, ApiError> {
        if self.seen.state != CsrState::Pending {
            return Ok(Some(self.seen));
        }
        loop {
            let ended = match self.once() {
                Ok(Ended::Expired) => self.list(),
                ended => ended,
            };
            let trouble = match ended {
                Ok(Ended::Seen) => return Ok(Some(self.seen)),
                Ok(Ended::Gone) => return Ok(None),
                Ok(Ended::Cut | Ended::Expired) => None,
                Err(error) if error.may_pass() => Some(error),
                Err(error) => return Err(error),
            };
            let asked = trouble.as_ref().and_then(|error| error.retry_after);
            let pause = self.pause.max(asked.unwrap_or_default());
            if pause >= self.deadline.remaining() {
                return trouble.map_or(Ok(Some(self.seen)), Err);
            }
            thread::sleep(pause);
            self.pause = PAUSES.following(self.pause);
        }
    }

    fn once(&mut self) -> Result<Ended, ApiError> {
        let client = self.client;
        let stream = client.watch(&self.seen.name, &self.version, self.deadline)?;
        if stream.status == StatusCode::OK {
            return self.follow(stream);
        }
        let answer = stream.whole()?;
        if answer.status == StatusCode::GONE || failure(&answer.body).code == 410 {
            return Ok(Ended::Expired);
        }
        Err(client.transport.refusal(&answer))
    }

    fn follow(&mut self, mut stream: Stream<'_>) -> Result<Ended, ApiError> {
        loop {
            let line = match stream.line() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(Ended::Cut),
                // At the deadline, a watch without a decision is not an error, because the request is still pending.
                Err(error) if self.deadline.passed() && error.may_pass() => {
                    return Ok(Ended::Seen);
                }
                Err(error) if error.may_pass() => return Ok(Ended::Cut),
                Err(error) => return Err(error),
            };
            if let Some(ended) = self.take(&line)? {
                return Ok(ended);
            }
            self.pause = PAUSES.first;
        }
    }

    /// Processes one event.
    pub(super) fn take(&mut self, line: &[u8]) -> Result<Option<Ended>, ApiError> {
        let Ok(event) = serde_json::from_slice::<WireEvent<'_>>(line) else {
            // The line is truncated. The next watch receives the event again.
            return Ok(Some(Ended::Cut));
        };
        match event.kind.as_ref() {
            "ADDED" | "MODIFIED" => {
                let object = self.client.object(event.object.get().as_bytes())?;
                Ok(self.see(object))
            }
            "DELETED" => Ok(Some(Ended::Gone)),
            "BOOKMARK" => {
                let bookmark: WireBookmark = serde_json::from_str(event.object.get())
                    .map_err(|why| self.client.not_an_object(&why))?;
                self.version = bookmark.metadata.resource_version;
                Ok(None)
            }
            "ERROR" => Ok(Some(match failure(event.object.get().as_bytes()).code {
                410 => Ended::Expired,
                _ => Ended::Cut,
            })),
            _ => Ok(None),
        }
    }

    /// Lists the object, because a list has a resource version from which a watch can continue. The object's own
    /// version might have expired.
    fn list(&mut self) -> Result<Ended, ApiError> {
        let (object, version) = self.client.list(&self.seen.name, self.deadline)?;
        let Some(object) = object else {
            return Ok(Ended::Gone);
        };
        let ended = self.see(object);
        self.version = version;
        Ok(ended.unwrap_or(Ended::Cut))
    }

    fn see(&mut self, object: CsrObject) -> Option<Ended> {
        if object.uid != self.seen.uid {
            return Some(Ended::Gone);
        }
        self.version.clone_from(&object.resource_version);
        self.seen = object;
        let decided = self.seen.state != CsrState::Pending;
        decided.then_some(Ended::Seen)
    }
}

#[cfg(test)]
mod tests;
