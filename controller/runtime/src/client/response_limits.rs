//! Bounds on what an API server is asked and answers: one that is busy gets no more calls than it
//! can bear, and one that is hostile neither our memory nor our patience. The client itself sends
//! whatever it is given and reads whatever comes.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use hyper::body::{Body, Bytes, Frame};
use hyper::{Request, Response, StatusCode, Uri};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tower::{BoxError, Service};

use super::flow::Flow;
use super::sieve::{Limits, Sieve, TooMuch};
use crate::memory::{Holding, Share};

/// The objects of a page of a list of a tenant's API server; it is read whole.
pub(crate) const PAGE_SIZE: u32 = 16;

/// The same for the management cluster's, as client-go has it: 100,000 Machines are 200 pages.
pub(crate) const MANAGEMENT_PAGE_SIZE: u32 = 500;

/// The JSON of one object. etcd takes 1.5 MiB of it (`--max-request-bytes`); what is bytes there is
/// base64 here, and annotations, of which there are 256 KiB, may be escaped, six bytes for one.
const MAX_OBJECT_LEN: usize = 4 * 1024 * 1024;

/// The JSON of a page of an operator's API server that holds nothing but the largest objects.
const MAX_PAGE_LEN: usize = 16 * MAX_OBJECT_LEN;

/// The JSON of a page of a tenant's API server: several times what honest requests have. Where one
/// is longer, smaller pages are asked for, at last of one object.
const MAX_TENANT_PAGE_LEN: usize = 2 * 1024 * 1024;

/// What an object of a tenant's API server has at most: five for each of the most revoked
/// credentials that there may be.
const MAX_VALUES: usize = 64 * 1024;

/// What each object of a page of a tenant's API server has on average at most. An honest request
/// has a hundred.
const VALUES_AN_ITEM: usize = 256;

/// What a page of a tenant's API server, or an event, has at least room for.
const MIN_VALUES: usize = 16 * 1024;

/// The resource of requests.
const REQUESTS: &str = "/certificatesigningrequests";

/// What a request has at most on a page or in a watch of requests: half of what either has room for, so that
/// a page of one request is always read.
const MAX_VALUES_OF_REQUEST: usize = MIN_VALUES / 2;

/// What the answers of one tenant's API server may take before they are decoded, whatever others
/// take: a page of honest requests for each signer.
const TENANT_SHARE: usize = 1024 * 1024;

/// The same for an API server that the operator named: its largest page.
const OPERATOR_SHARE: usize = MAX_PAGE_LEN;

/// Calls at a time whose answers are not read to the end yet, but for watches.
/// kube-controller-manager's signer makes five.
const CALLS_AT_ONCE: usize = 16;

/// The same for an API server that the operator named, which is asked for all clusters.
const MANAGEMENT_CALLS_AT_ONCE: usize = 64;

/// For an answer to its last byte, but for a watch.
const ANSWER_DEADLINE: Duration = super::READ_TIMEOUT;

/// For a watch, which the API server ends sooner.
const WATCH_DEADLINE: Duration = super::LONGEST_WATCH.saturating_add(Duration::from_secs(30));

/// An answer that is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Excess {
    #[error("the API server's answer is longer than {0} bytes")]
    Length(usize),
    #[error("an event of the API server's watch is longer than {0} bytes")]
    Event(usize),
    #[error("the API server's answer has more than {0} values")]
    Values(usize),
    #[error("the API server's answer has more objects than the {0} that were asked for")]
    Items(usize),
    #[error("the answers of this API server and others take too much memory")]
    Memory,
    #[error("the API server's answer was not complete in time")]
    Time,
}

impl Excess {
    /// Whether fewer objects at once might be read.
    pub(crate) fn is_of_size(self) -> bool {
        match self {
            Self::Length(_) | Self::Values(_) => true,
            Self::Event(_) | Self::Items(_) | Self::Memory | Self::Time => false,
        }
    }

    /// The excess that this error comes from.
    pub(crate) fn behind(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut error = Some(error);
        while let Some(cause) = error {
            if let Some(excess) = cause.downcast_ref::<Self>() {
                return Some(*excess);
            }
            error = cause.source();
        }
        None
    }
}

/// The party that configured an API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedBy {
    /// Whoever runs this controller.
    Operator,
    /// A tenant, who may run the API server too.
    Tenant,
}

/// What may be held of an answer at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// It is read whole before it is looked at.
    Whole(Limits),
    /// It is a line for each event.
    Line(Limits),
}

impl Bound {
    fn of(asked: &Uri, named_by: NamedBy) -> Self {
        let query = asked.query().unwrap_or_default();
        let value = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key));
        // Whoever may file a request may give it any number of labels.
        let is_of_requests = asked.path().ends_with(REQUESTS);
        let object = if is_of_requests && named_by == NamedBy::Tenant {
            MAX_VALUES_OF_REQUEST
        } else {
            usize::MAX
        };
        if value("watch=").is_some() {
            Self::Line(Limits {
                object,
                ..Self::one(named_by, MIN_VALUES)
            })
        } else if let Some(limit) = value("limit=") {
            Self::Whole(Limits {
                object,
                ..Self::page(named_by, limit.parse().unwrap_or(1))
            })
        } else {
            Self::Whole(Self::one(named_by, MAX_VALUES))
        }
    }

    fn one(named_by: NamedBy, values: usize) -> Limits {
        match named_by {
            NamedBy::Operator => Limits {
                bytes: MAX_OBJECT_LEN,
                values: usize::MAX,
                items: usize::MAX,
                object: usize::MAX,
            },
            NamedBy::Tenant => Limits {
                bytes: MAX_OBJECT_LEN,
                values,
                items: usize::MAX,
                object: usize::MAX,
            },
        }
    }

    fn page(named_by: NamedBy, items: usize) -> Limits {
        match named_by {
            NamedBy::Operator => Limits {
                bytes: MAX_PAGE_LEN,
                values: usize::MAX,
                items: usize::MAX,
                object: usize::MAX,
            },
            NamedBy::Tenant => Limits {
                bytes: if items <= 1 {
                    MAX_OBJECT_LEN
                } else {
                    MAX_TENANT_PAGE_LEN
                },
                values: items.saturating_mul(VALUES_AN_ITEM).max(MIN_VALUES),
                items,
                object: usize::MAX,
            },
        }
    }

    /// Of an answer with this status: an error is one object, whatever was asked.
    fn answered(self, status: StatusCode, named_by: NamedBy) -> Self {
        if status.is_success() {
            self
        } else {
            Self::Whole(Self::one(named_by, MAX_VALUES))
        }
    }

    fn exceeded(self, by: TooMuch) -> Excess {
        let (Self::Whole(limits) | Self::Line(limits)) = self;
        match (by, self) {
            (TooMuch::Bytes, Self::Whole(_)) => Excess::Length(limits.bytes),
            (TooMuch::Bytes, Self::Line(_)) => Excess::Event(limits.bytes),
            (TooMuch::Values, _) => Excess::Values(limits.values),
            (TooMuch::Items, _) => Excess::Items(limits.items),
        }
    }
}

/// A service whose calls and answers are bounded.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    service: S,
    named_by: NamedBy,
    turns: Arc<Semaphore>,
    share: Share,
    /// Of its watches.
    flow: Option<Flow>,
}

impl<S> Bounded<S> {
    /// Bounds what this service is asked and answers.
    pub(crate) fn new(service: S, named_by: NamedBy) -> Self {
        let (own, calls) = match named_by {
            NamedBy::Operator => (OPERATOR_SHARE, MANAGEMENT_CALLS_AT_ONCE),
            NamedBy::Tenant => (TENANT_SHARE, CALLS_AT_ONCE),
        };
        Self {
            service,
            named_by,
            turns: Arc::new(Semaphore::new(calls)),
            share: Share::new(own),
            flow: (named_by == NamedBy::Tenant).then(Flow::new),
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
        let named_by = self.named_by;
        let bound = Bound::of(request.uri(), named_by);
        let holding = self.share.holding();
        let turns = self.turns.clone();
        let flow = self.flow.clone();
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
            let bound = bound.answered(answer.status(), named_by);
            let (turn, flow, deadline) = match bound {
                Bound::Whole(_) => (turn.ok(), None, deadline),
                // A watch has no end to wait for.
                Bound::Line(_) => (None, flow, Instant::now() + WATCH_DEADLINE),
            };
            Ok(answer.map(|body| BoundedBody::new(body, bound, holding, deadline, flow, turn)))
        }
        .boxed()
    }
}

/// A body that fails where it exceeds its bound or its time.
#[derive(Debug)]
pub(crate) struct BoundedBody<B> {
    body: B,
    bound: Bound,
    sieve: Sieve,
    longest: usize,
    holding: Holding,
    deadline: Pin<Box<Sleep>>,
    flow: Option<Flow>,
    pause: Option<Pin<Box<Sleep>>>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl<B> BoundedBody<B> {
    fn new(
        body: B,
        bound: Bound,
        holding: Holding,
        deadline: Instant,
        flow: Option<Flow>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let sieve = match bound {
            Bound::Whole(limits) => Sieve::new(limits, false),
            Bound::Line(limits) => Sieve::new(limits, true),
        };
        Self {
            body,
            bound,
            sieve,
            longest: 0,
            holding,
            deadline: Box::pin(sleep_until(deadline)),
            flow,
            pause: None,
            _turn: turn,
        }
    }

    /// What is passed on of this piece. A reader of lines keeps the room that the longest took.
    fn pass(&mut self, piece: Bytes) -> Result<Bytes, Excess> {
        let wait = self
            .flow
            .as_ref()
            .and_then(|flow| flow.count(piece.len()).err());
        self.pause = wait.map(|wait| Box::pin(sleep(wait)));
        let passed = self.sieve.pass(piece);
        let passed = passed.map_err(|by| self.bound.exceeded(by))?;
        if self.sieve.take_cut() {
            tracing::warn!(
                max = MAX_VALUES_OF_REQUEST,
                "a request with too many labels or other fields is not read"
            );
        }
        self.longest = self.longest.max(self.sieve.passed());
        if self.holding.resize(self.longest) {
            Ok(passed)
        } else {
            Err(Excess::Memory)
        }
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
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let frame = frame.map(|frame| match frame.map_err(Into::into)?.into_data() {
            Ok(data) => Ok(Frame::data(self.pass(data)?)),
            Err(frame) => Ok(frame),
        });
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests;
