//! Limits of the calls and answers of an API server: a busy one gets few calls at a time, and a hostile one takes
//! neither memory nor time without bound. kube's client has no such limits.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use hyper::body::{Body, Bytes, Frame};
use hyper::{Request, Response, Uri};
use node_attestation_core::rate_limit::Rate;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tower::{BoxError, Service};

use super::flow::Flow;
use crate::memory::{Holding, Share};
use crate::object_key::ObjectKey;
use crate::turns::{FairTurns, Turn, TurnLimits};

pub(super) mod sieve;

use sieve::{Limits, Sieve};

/// The objects of a page of a list of a tenant's API server. A page is read whole.
pub(crate) const PAGE_SIZE: u32 = 16;

/// The same for the management cluster, as in client-go: 100,000 Machines are 200 pages.
pub(crate) const MANAGEMENT_PAGE_SIZE: u32 = 500;

/// The JSON of one object. etcd takes 1.5 MiB of it (`--max-request-bytes`); what is bytes there is
/// base64 here, and annotations, of which there are 256 KiB, may be escaped, six bytes for one.
const MAX_OBJECT_LEN: usize = 4 * 1024 * 1024;

/// The JSON of a page of an operator's API server: seven of the largest objects that etcd takes. Tenants of a
/// management cluster write them: a schema limits neither labels nor the length of the whole.
const MAX_PAGE_LEN: usize = 12 * 1024 * 1024;

/// The limit of values of a page of an operator's API server, each of which takes up to a hundred bytes: twice as many
/// as 500 honest objects have.
const MAX_PAGE_VALUES: usize = 256 * 1024;

/// A page of so few objects has no limit of values: each must be read, or it would hide the others.
const FEW: usize = 8;

/// The JSON of a page of a tenant's API server: several times what honest requests have. Where one
/// is longer, smaller pages are asked for, at last of one object.
const MAX_TENANT_PAGE_LEN: usize = 2 * 1024 * 1024;

/// The limit of values of an object of a tenant's API server: five for each of the largest number of revoked
/// credentials.
const MAX_VALUES: usize = 64 * 1024;

/// The limit of the average of values for each object of a page of a tenant's API server. An honest request has a
/// hundred.
const VALUES_AN_ITEM: usize = 256;

/// The least limit of values of a page or an event of a tenant's API server.
const MIN_VALUES: usize = 16 * 1024;

/// The resource of requests.
const REQUESTS: &str = "/certificatesigningrequests";

/// The limit of values of a request in a list or a watch: half of the limit of either, so that a page of one request
/// is always read.
const MAX_VALUES_OF_REQUEST: usize = MIN_VALUES / 2;

/// The memory that is reserved for the undecoded answers of one tenant's API server: a page of honest requests for
/// each signer.
const TENANT_SHARE: usize = 1024 * 1024;

/// The same for an API server that the operator configured, with lists of many kinds.
const OPERATOR_SHARE: usize = 64 * 1024 * 1024;

/// The limit of concurrent calls until their answers are read, without watches. kube-controller-manager's signer
/// makes five.
const CALLS_AT_ONCE: usize = 16;

/// The same for an API server that the operator configured, with calls for all clusters.
const MANAGEMENT_CALLS_AT_ONCE: usize = 64;

/// The limit of pages of one list of a tenant's API server: 20,000 requests, also if each has a page of its own.
const MAX_PAGES: usize = 25_000;

/// Deadline of an answer to its last byte, except of a watch.
const ANSWER_DEADLINE: Duration = super::READ_TIMEOUT;

/// Deadline of a watch, which the API server ends sooner.
const WATCH_DEADLINE: Duration = super::LONGEST_WATCH.saturating_add(Duration::from_secs(30));

/// An answer exceeds a limit, and is read no further.
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
    #[error("the API server's list has more than {0} pages")]
    Pages(usize),
    #[error("the answers of this API server and others take too much memory")]
    Memory,
    #[error("the API server's answer was not complete in time")]
    Time,
}

impl Excess {
    /// Whether a page of fewer objects may be read.
    pub(crate) fn is_of_size(self) -> bool {
        matches!(self, Self::Length(_) | Self::Values(_))
    }
}

/// The party that configured an API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedBy {
    /// The operator of this controller.
    Operator,
    /// A tenant, who may run the API server too.
    Tenant,
}

/// The value of a parameter of this call.
fn parameter<'a>(asked: &'a Uri, key: &str) -> Option<&'a str> {
    let mut pairs = asked.query().unwrap_or_default().split('&');
    pairs.find_map(|pair| pair.strip_prefix(key))
}

/// The limits of the answer to this call, or of each event of a watch.
fn limits(asked: &Uri, named_by: NamedBy) -> Limits {
    let lines = parameter(asked, "watch=").is_some();
    let page = parameter(asked, "limit=").map(|limit| limit.parse::<usize>().unwrap_or(1));
    let one = Limits {
        lines,
        ..one_object(named_by)
    };
    match (named_by, page.filter(|_| !lines)) {
        (NamedBy::Operator, None) => one,
        (NamedBy::Operator, Some(items)) => Limits {
            bytes: MAX_PAGE_LEN,
            values: if items > FEW {
                MAX_PAGE_VALUES
            } else {
                usize::MAX
            },
            ..one
        },
        (NamedBy::Tenant, page) => Limits {
            bytes: match page {
                Some(2..) => MAX_TENANT_PAGE_LEN,
                Some(_) | None => MAX_OBJECT_LEN,
            },
            values: match page {
                Some(items) => items.saturating_mul(VALUES_AN_ITEM).max(MIN_VALUES),
                None if lines || asked.path().contains(REQUESTS) => MIN_VALUES,
                None => MAX_VALUES,
            },
            items: page.unwrap_or(usize::MAX),
            // A requester may set any number of labels.
            object: if asked.path().ends_with(REQUESTS) {
                MAX_VALUES_OF_REQUEST
            } else {
                usize::MAX
            },
            ..one
        },
    }
}

/// The namespace of the object or list that is asked for; empty for what is in none, and for all namespaces.
fn namespace_of(asked: &Uri) -> &str {
    let mut parts = asked.path().split('/');
    let found = parts.find(|part| *part == "namespaces");
    found.and_then(|_| parts.next()).unwrap_or_default()
}

fn one_object(named_by: NamedBy) -> Limits {
    Limits {
        bytes: MAX_OBJECT_LEN,
        values: match named_by {
            NamedBy::Operator => usize::MAX,
            NamedBy::Tenant => MAX_VALUES,
        },
        ..Limits::ANY
    }
}

/// A service with limited calls and answers.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    service: S,
    named_by: NamedBy,
    turns: FairTurns,
    share: Share,
    /// The flow of its watches and lists.
    flow: Option<Flow>,
    pages: Pages,
    cuts: Cuts,
}

/// The pages that were requested of each list in progress, by its path.
type Pages = Arc<Mutex<HashMap<String, usize>>>;

/// The time at which the log may name another request that was cut.
type Cuts = Arc<Mutex<Instant>>;

/// A tenant can change such a request all the time, and each list has it.
const CUTS_TOLD: Rate = Rate {
    burst: 1,
    every: Duration::from_hours(1),
};

impl<S> Bounded<S> {
    /// Limits the calls and answers of this service: of the operator, or of a tenant with this namespace.
    pub(crate) fn new(service: S, named_by: NamedBy, namespace: &str) -> Self {
        let (own, calls) = match named_by {
            NamedBy::Operator => (OPERATOR_SHARE, MANAGEMENT_CALLS_AT_ONCE),
            NamedBy::Tenant => (TENANT_SHARE, CALLS_AT_ONCE),
        };
        Self {
            service,
            named_by,
            turns: FairTurns::new(TurnLimits {
                all: calls,
                of_cluster: calls,
            }),
            share: Share::new(namespace, own),
            flow: (named_by == NamedBy::Tenant).then(|| Flow::new(namespace)),
            pages: Arc::default(),
            cuts: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// Counts a page of a list of a tenant's API server. One that is not the first has a token to continue with.
    fn count_page(&self, asked: &Uri) -> Result<(), Excess> {
        let mut pages = self.pages.lock();
        if parameter(asked, "continue=").is_none_or(str::is_empty) {
            pages.remove(asked.path());
            return Ok(());
        }
        let count = pages.entry(asked.path().to_owned()).or_insert(1);
        *count += 1;
        if *count > MAX_PAGES {
            return Err(Excess::Pages(MAX_PAGES));
        }
        Ok(())
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
        let limits = limits(request.uri(), named_by);
        let holding = self.share.holding();
        // The tenants of a management cluster take turns. A tenant's own API server has one line.
        let tenant = match named_by {
            NamedBy::Operator => namespace_of(request.uri()),
            NamedBy::Tenant => "",
        };
        let line = self.turns.line(&ObjectKey::new(tenant, ""));
        let is_page = !limits.lines && parameter(request.uri(), "limit=").is_some();
        let flow = self.flow.clone().filter(|_| limits.lines || is_page);
        let cuts = self.cuts.clone();
        if is_page
            && flow.is_some()
            && let Err(excess) = self.count_page(request.uri())
        {
            return async move { Err(excess.into()) }.boxed();
        }
        // Nothing is sent before the future is polled.
        let answer = self.service.call(request);
        let answer = async move {
            let turn = line.turn().await;
            (turn, answer.await)
        };
        async move {
            let (turn, answer) = timeout_at(deadline, answer)
                .await
                .map_err(|_| Excess::Time)?;
            let answer = answer.map_err(Into::into)?;
            // An error is one object.
            let limits = if answer.status().is_success() {
                limits
            } else {
                one_object(named_by)
            };
            let (turn, deadline) = if limits.lines {
                // The end of a watch is not waited for.
                (None, Instant::now() + WATCH_DEADLINE)
            } else {
                (Some(turn), deadline)
            };
            let page = flow.as_ref().filter(|_| !limits.lines);
            let pause = page.and_then(|flow| flow.count_page().err());
            Ok(answer.map(|body| BoundedBody {
                body,
                sieve: Sieve::new(limits),
                longest: 0,
                holding,
                deadline: Box::pin(sleep_until(deadline)),
                flow,
                pause: pause.map(|wait| Box::pin(sleep(wait))),
                cuts,
                _turn: turn,
            }))
        }
        .boxed()
    }
}

/// A body that fails if it exceeds its limits or its deadline.
#[derive(Debug)]
pub(crate) struct BoundedBody<B> {
    body: B,
    sieve: Sieve,
    longest: usize,
    holding: Holding,
    deadline: Pin<Box<Sleep>>,
    flow: Option<Flow>,
    pause: Option<Pin<Box<Sleep>>>,
    cuts: Cuts,
    _turn: Option<Turn>,
}

impl<B> BoundedBody<B> {
    fn log_cut(&self) {
        const MESSAGE: &str = "a request with too many labels or other fields is not read";
        let max = MAX_VALUES_OF_REQUEST;
        let is_first = CUTS_TOLD
            .take(&mut *self.cuts.lock(), Instant::now())
            .is_ok();
        if is_first {
            tracing::warn!(
                max,
                "{MESSAGE}; further ones within an hour are logged with -v"
            );
        } else {
            tracing::debug!(max, "{MESSAGE}");
        }
    }

    /// The part of this piece that is passed on. A reader of lines keeps the memory of the longest.
    fn pass(&mut self, piece: Bytes) -> Result<Bytes, Excess> {
        let wait = self
            .flow
            .as_ref()
            .and_then(|flow| flow.count(piece.len()).err());
        self.pause = wait.map(|wait| Box::pin(sleep(wait)));
        let passed = self.sieve.pass(piece)?;
        if self.sieve.take_cut() {
            self.log_cut();
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
