//! Limits for calls to an API server, and for its responses.
//!
//! The limits protect a busy API server from many concurrent calls, and protect the controller's memory and time from a
//! hostile API server. kube's client has no such limits.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use hyper::body::{Body, Bytes, Frame};
use hyper::{Request, Response, Uri};
use node_attestation_core::cluster_line;
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::unshared::Unshared;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tower::{BoxError, Service};

use super::decoding::reading;
use super::flow::Flow;
use super::on_behalf::caller_of;
use super::processor::Processor;
use crate::log_lines::ClusterLines;
use crate::memory::{Holding, Share};
use crate::object_key::ObjectKey;
use crate::turns::{FairTurns, Turn, TurnLimits};

pub(super) mod sieve;

use sieve::{Limits, Sieve};

/// The page size for lists from a tenant's API server, in objects. Each page is read completely.
pub(crate) const PAGE_SIZE: u32 = 16;

/// The page size for the management cluster, as in client-go. 100,000 Machines need 200 pages.
pub(crate) const MANAGEMENT_PAGE_SIZE: u32 = 500;

/// The maximum JSON length of an object or an event. etcd accepts 1.5 MiB (`--max-request-bytes`). In JSON, bytes are
/// encoded as base64, and each byte of an annotation (up to 256 KiB) can be escaped as six bytes.
const MAX_OBJECT_LEN: usize = 4 * 1024 * 1024;

/// The maximum JSON length of a page from an operator's API server: seven of the largest objects that etcd accepts.
/// Tenants of a management cluster write these objects, and a schema limits neither labels nor the total length.
const MAX_PAGE_LEN: usize = 12 * 1024 * 1024;

/// The maximum number of values in a page from an operator's API server. A value takes up to 100 bytes. The limit is
/// twice the number of values in 500 normal objects.
const MAX_PAGE_VALUES: usize = 256 * 1024;

/// The number of objects that always fit into a page, regardless of their content.
const FEW: usize = 4;

/// The maximum number of values in one object in a list or a watch from an operator's API server. The rest of a larger
/// object is removed, and the object counts as unreadable. A `MachinePool` with 10,000 members has about 60,000 values.
///
/// The subtracted reserve is for fields that are never removed, and for the list itself.
const MAX_VALUES_OF_OBJECT: usize = MAX_PAGE_VALUES / FEW - 512;

/// The maximum JSON length of a page from a tenant's API server, which is several times the length of normal requests.
/// If a page is longer, smaller pages are requested, with at least one object.
const MAX_TENANT_PAGE_LEN: usize = 2 * 1024 * 1024;

/// The maximum number of values in an object from a tenant's API server: five for each entry in the largest revocation
/// list.
const MAX_VALUES: usize = 64 * 1024;

/// The maximum average number of values per object in a page from a tenant's API server. A normal request has about 100
/// values.
const VALUES_AN_ITEM: usize = 256;

/// The lowest limit of values for a page or an event from a tenant's API server.
const MIN_VALUES: usize = 16 * 1024;

/// The resource path of CSRs.
const REQUESTS: &str = "/certificatesigningrequests";

/// The maximum number of values in a CSR in a list or a watch. It is half of the limit for a page or an event.
/// Therefore, a page with one CSR can always be read.
const MAX_VALUES_OF_REQUEST: usize = MIN_VALUES / 2;

/// The maximum JSON length of a CSR in the response to a single call to a tenant's API server, and of an error from
/// this server. A request is at most 64 KiB long, which is 88 KiB in base64, and its certificate is a few kilobytes
/// long.
const MAX_LEN_OF_REQUEST: usize = 256 * 1024;

/// The maximum JSON length of any other object in the response to a single call to a tenant's API server. The largest
/// normal object, a revocation list, is not larger than the 1.5 MiB that etcd accepts.
const MAX_LEN_OF_SINGLE: usize = 2 * 1024 * 1024;

/// The memory that is reserved for undecoded responses from one tenant's API server: a page of normal CSRs for each
/// signer.
const TENANT_SHARE: usize = 1024 * 1024;

/// The memory that is reserved for an API server that an operator configured, with lists of many kinds. Responses to
/// calls that a tenant causes do not use this memory.
const OPERATOR_SHARE: usize = 64 * 1024 * 1024;

/// The limit on concurrent calls. A call counts until its response is read. Watches are not counted.
/// kube-controller-manager's signer makes five concurrent calls.
const CALLS_AT_ONCE: usize = 16;

/// The limit on concurrent calls to an API server that an operator configured. These calls serve all clusters.
pub(super) const MANAGEMENT_CALLS_AT_ONCE: usize = 64;

/// The maximum number of pages in one list from a tenant's API server. This is enough for 20,000 CSRs, even if each
/// page has only one CSR.
const MAX_PAGES: usize = 25_000;

/// The deadline for the last byte of a response that is not a watch.
const ANSWER_DEADLINE: Duration = super::READ_TIMEOUT;

/// The deadline for a watch. The API server normally ends the watch earlier.
const WATCH_DEADLINE: Duration = super::LONGEST_WATCH.saturating_add(Duration::from_secs(30));

/// A response exceeds a limit, and reading stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Excess {
    #[error("the API server's response is longer than {0} bytes")]
    Length(usize),
    #[error("an event of the API server's watch is longer than {0} bytes")]
    Event(usize),
    #[error("the API server's response has more than {0} values")]
    Values(usize),
    #[error("the API server's response has more objects than the requested {0}")]
    Items(usize),
    #[error("the API server's list has more than {0} pages")]
    Pages(usize),
    #[error("the API server's page token is longer than {0} bytes")]
    Token(usize),
    #[error("the resourceVersion of an object from the API server is longer than {0} bytes")]
    Version(usize),
    #[error("the responses from API servers exceed the available memory")]
    Memory,
    #[error(
        "the connections to the API servers of the namespace exceed the namespace's share of the memory"
    )]
    Connections,
    #[error("the API server's response was not complete in time")]
    Time,
}

impl Excess {
    /// Whether a page with fewer objects might be readable.
    pub(crate) fn is_of_size(self) -> bool {
        matches!(self, Self::Length(_) | Self::Values(_))
    }
}

/// The party that configured an API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedBy {
    /// The operator of this controller.
    Operator,
    /// A tenant, who can also operate the API server.
    Tenant,
}

/// The value of a query parameter in this call.
fn parameter<'a>(asked: &'a Uri, key: &str) -> Option<&'a str> {
    let mut pairs = asked.query().unwrap_or_default().split('&');
    pairs.find_map(|pair| pair.strip_prefix(key))
}

/// The limits for the response to this call, or for each event of a watch.
fn limits(asked: &Uri, named_by: NamedBy) -> Limits {
    let lines = parameter(asked, "watch=").is_some();
    let page = parameter(asked, "limit=").map(|limit| limit.parse::<usize>().unwrap_or(1));
    let one = Limits {
        lines,
        bytes: MAX_OBJECT_LEN,
        ..Limits::ANY
    };
    match (named_by, page.filter(|_| !lines)) {
        (NamedBy::Operator, None) => Limits {
            // A single object or a document is read completely.
            object: if lines {
                MAX_VALUES_OF_OBJECT
            } else {
                usize::MAX
            },
            ..one
        },
        (NamedBy::Operator, Some(_)) => Limits {
            bytes: MAX_PAGE_LEN,
            values: MAX_PAGE_VALUES,
            object: MAX_VALUES_OF_OBJECT,
            ..one
        },
        (NamedBy::Tenant, page) => {
            let is_request = asked.path().contains(REQUESTS);
            Limits {
                bytes: match page {
                    Some(2..) => MAX_TENANT_PAGE_LEN,
                    Some(_) => MAX_OBJECT_LEN,
                    None if lines => MAX_OBJECT_LEN,
                    None if is_request => MAX_LEN_OF_REQUEST,
                    None => MAX_LEN_OF_SINGLE,
                },
                values: match page {
                    Some(items) => items.saturating_mul(VALUES_AN_ITEM).max(MIN_VALUES),
                    None if lines || is_request => MIN_VALUES,
                    None => MAX_VALUES,
                },
                items: page.unwrap_or(usize::MAX),
                // A requester can set any number of labels.
                object: if asked.path().ends_with(REQUESTS) {
                    MAX_VALUES_OF_REQUEST
                } else {
                    usize::MAX
                },
                ..one
            }
        }
    }
}

/// The limits for an error, which is a single object.
fn limits_of_error(named_by: NamedBy) -> Limits {
    let (bytes, values) = match named_by {
        NamedBy::Operator => (MAX_OBJECT_LEN, usize::MAX),
        NamedBy::Tenant => (MAX_LEN_OF_REQUEST, MIN_VALUES),
    };
    Limits {
        bytes,
        values,
        ..Limits::ANY
    }
}

/// The namespace of the requested object or list. Empty for cluster-scoped resources and for all namespaces.
fn namespace_of(asked: &Uri) -> &str {
    let mut parts = asked.path().split('/');
    let found = parts.find(|part| *part == "namespaces");
    found.and_then(|_| parts.next()).unwrap_or_default()
}

/// A service with limits for its calls and responses.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    service: S,
    named_by: NamedBy,
    turns: FairTurns,
    share: Share,
    /// The flow of responses, if the API server belongs to a tenant.
    flow: Option<Flow>,
    /// The processor time budget for decoding responses, if the API server belongs to a tenant.
    processor: Option<Processor>,
    pages: Pages,
    cuts: Arc<Cuts>,
}

/// For each path, the number of pages that the list in progress has requested. Each tenant API server has a separate
/// map.
type Pages = Arc<Unshared<BTreeMap<String, usize>>>;

/// The log of truncated CSRs from an API server.
#[derive(Debug)]
struct Cuts {
    /// The earliest time for the next log line about a truncated CSR.
    next: Unshared<Instant>,
    lines: ClusterLines,
}

/// The rate of log lines about truncated CSRs. A tenant can change such a CSR at any time, and each list contains it.
const CUTS_LOGGED: Rate = Rate {
    burst: 1,
    every: Duration::from_hours(1),
};

impl<S> Bounded<S> {
    /// Limits the calls to this service, and its responses. The API server belongs to the operator, or to a tenant with
    /// this namespace.
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
            processor: (named_by == NamedBy::Tenant).then(|| Processor::of(namespace)),
            pages: Arc::default(),
            cuts: Arc::new(Cuts {
                next: Unshared::new(Instant::now()),
                lines: ClusterLines::of_namespace(namespace),
            }),
        }
    }

    /// Counts a page of a list from a tenant's API server. Every page except the first has a continue token.
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
        // Calls to the management cluster take turns by tenant. All calls to a tenant's API server wait in one queue.
        let tenant = match (named_by, caller_of(&request)) {
            (NamedBy::Operator, Some(namespace)) => namespace,
            (NamedBy::Operator, None) => namespace_of(request.uri()),
            (NamedBy::Tenant, _) => "",
        };
        let line = self.turns.line(&ObjectKey::new(tenant, ""));
        // Without a separate share, a tenant with large objects could exhaust the memory for the watches of all
        // tenants.
        let holding = if tenant.is_empty() {
            self.share.holding()
        } else {
            Share::of_call(tenant).holding()
        };
        let is_page = !limits.lines && parameter(request.uri(), "limit=").is_some();
        let (flow, processor) = (self.flow.clone(), self.processor.clone());
        // For an operator's API server, the watch logs the object.
        let cuts = flow.is_some().then(|| self.cuts.clone());
        if is_page
            && flow.is_some()
            && let Err(excess) = self.count_page(request.uri())
        {
            return async move { Err(excess.into()) }.boxed();
        }
        // The request is sent when the future is polled.
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
            let limits = if answer.status().is_success() {
                limits
            } else {
                limits_of_error(named_by)
            };
            let (turn, deadline) = if limits.lines {
                // A watch does not hold the turn until it ends.
                (None, Instant::now() + WATCH_DEADLINE)
            } else {
                (Some(turn), deadline)
            };
            let page = flow.as_ref().filter(|_| is_page);
            let pause = page.and_then(|flow| flow.count_page().err());
            Ok(answer.map(|body| BoundedBody {
                body,
                sieve: Sieve::new(limits),
                longest: 0,
                holding,
                deadline: Box::pin(sleep_until(deadline)),
                flow,
                processor,
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
    processor: Option<Processor>,
    pause: Option<Pin<Box<Sleep>>>,
    /// The log of truncated CSRs, if the API server belongs to a tenant.
    cuts: Option<Arc<Cuts>>,
    _turn: Option<Turn>,
}

impl Cuts {
    fn log(&self) {
        const MESSAGE: &str = "ignoring a request with too many labels or other fields";
        let max = MAX_VALUES_OF_REQUEST;
        let is_first = CUTS_LOGGED
            .take(&mut *self.next.lock(), Instant::now())
            .is_ok();
        if is_first {
            cluster_line!(
                &self.lines,
                WARN,
                max,
                "{MESSAGE}; more such messages within an hour are logged only with -v"
            );
        } else {
            tracing::debug!(max, "{MESSAGE}");
        }
    }
}

impl<B> BoundedBody<B> {
    /// The part of this chunk that must be forwarded. A line reader keeps a buffer for the longest line.
    fn pass(&mut self, piece: Bytes) -> Result<Bytes, Excess> {
        let wait = self
            .flow
            .as_ref()
            .and_then(|flow| flow.count(piece.len()).err());
        self.pause = wait.map(|wait| Box::pin(sleep(wait)));
        let passed = self.sieve.pass(piece)?;
        if self.sieve.take_cut()
            && let Some(cuts) = &self.cuts
        {
            cuts.log();
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
        let is_measured = self.processor.as_ref().is_none_or(reading);
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let frame = frame.map(|frame| match frame.map_err(Into::into)?.into_data() {
            Ok(data) => {
                if let Some(processor) = &self.processor
                    && !is_measured
                {
                    processor.charge_bytes(data.len());
                }
                Ok(Frame::data(self.pass(data)?))
            }
            Err(frame) => Ok(frame),
        });
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests;
