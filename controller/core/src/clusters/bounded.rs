//! Bounds on what an API server is asked and answers: one that is busy gets no more calls than it
//! can bear, and one that is hostile neither our memory nor our patience. The client itself sends
//! whatever it is given and reads whatever comes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use hyper::body::{Body, Bytes, Frame};
use hyper::{Request, Response, StatusCode, Uri};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tower::{BoxError, Service};

/// How many requests a page of a list has; it is read whole.
pub(super) const PAGE_SIZE: u32 = 16;

/// The JSON of one object. etcd takes 1.5 MiB of it (`--max-request-bytes`); what is bytes there is
/// base64 here, and annotations, of which there are 256 KiB, may be escaped, six bytes for one.
const MAX_OBJECT_LEN: usize = 4 * 1024 * 1024;

/// The JSON of a page that holds nothing but the largest objects.
const MAX_PAGE_LEN: usize = 16 * MAX_OBJECT_LEN;

/// Calls at a time whose answers are not read to the end yet, but for watches.
/// kube-controller-manager's signer makes five.
const CALLS_AT_ONCE: usize = 16;

/// For an answer to its last byte. The longest is a watch, which the API server ends sooner.
const ANSWER_DEADLINE: Duration = super::READ_TIMEOUT;

/// An answer that is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Excess {
    #[error("the API server's answer is longer than {0} bytes")]
    Length(usize),
    #[error("an event of the API server's watch is longer than {0} bytes")]
    Event(usize),
    #[error("the API server's answer was not complete after {} s", ANSWER_DEADLINE.as_secs())]
    Time,
}

/// What may be held of an answer at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// It is read whole before it is looked at.
    Whole(usize),
    /// It is a line for each event.
    Line(usize),
}

impl Bound {
    fn of(asked: &Uri) -> Self {
        let query = asked.query().unwrap_or_default();
        let has = |key: &str| query.split('&').any(|pair| pair.starts_with(key));
        if has("watch=") {
            Self::Line(MAX_OBJECT_LEN)
        } else if has("limit=") {
            Self::Whole(MAX_PAGE_LEN)
        } else {
            Self::Whole(MAX_OBJECT_LEN)
        }
    }

    /// Of an answer with this status: an error is one object, whatever was asked.
    fn answered(self, status: StatusCode) -> Self {
        if status.is_success() {
            self
        } else {
            Self::Whole(MAX_OBJECT_LEN)
        }
    }
}

/// A service whose calls and answers are bounded.
#[derive(Debug, Clone)]
pub(super) struct Bounded<S> {
    service: S,
    turns: Arc<Semaphore>,
}

impl<S> Bounded<S> {
    /// Bounds what this service is asked and answers.
    pub(super) fn new(service: S) -> Self {
        Self {
            service,
            turns: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
        }
    }
}

impl<S, A, B> Service<Request<A>> for Bounded<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<BoundedBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let deadline = Instant::now() + ANSWER_DEADLINE;
        let bound = Bound::of(request.uri());
        let turns = self.turns.clone();
        // Nothing is sent before the future is polled.
        let answer = self.service.call(request);
        let answer = async move {
            let turn = turns.acquire_owned().await;
            (turn, answer.await)
        };
        async move {
            let (turn, answer) = timeout_at(deadline, answer)
                .await
                .map_err(|_| Excess::Time)?;
            let answer = answer.map_err(Into::into)?;
            let bound = bound.answered(answer.status());
            let turn = match bound {
                Bound::Whole(_) => turn.ok(),
                // A watch has no end to wait for.
                Bound::Line(_) => None,
            };
            Ok(answer.map(|body| BoundedBody::new(body, bound, deadline, turn)))
        }
        .boxed()
    }
}

/// A body that fails where it exceeds its bound or its time.
#[derive(Debug)]
pub(super) struct BoundedBody<B> {
    body: B,
    bound: Bound,
    held: usize,
    deadline: Pin<Box<Sleep>>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl<B> BoundedBody<B> {
    fn new(body: B, bound: Bound, deadline: Instant, turn: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            body,
            bound,
            held: 0,
            deadline: Box::pin(sleep_until(deadline)),
            _turn: turn,
        }
    }

    fn count(&mut self, data: &[u8]) -> Result<(), Excess> {
        match self.bound {
            Bound::Whole(max) => {
                self.held = self.held.saturating_add(data.len());
                if self.held > max {
                    return Err(Excess::Length(max));
                }
            }
            Bound::Line(max) => {
                for (index, line) in data.split(|byte| *byte == b'\n').enumerate() {
                    if index > 0 {
                        self.held = 0;
                    }
                    self.held = self.held.saturating_add(line.len());
                    if self.held > max {
                        return Err(Excess::Event(max));
                    }
                }
            }
        }
        Ok(())
    }
}

impl<B> Body for BoundedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(Excess::Time.into())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let frame = frame.map(|frame| {
            let frame = frame.map_err(Into::into)?;
            if let Some(data) = frame.data_ref() {
                self.count(data)?;
            }
            Ok(frame)
        });
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests;
