//! Tests of responses at a limit, and of responses just above it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::pending;
use futures::stream::{self, Stream, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};

use super::super::on_behalf::on_behalf_of;
use super::*;

mod management;

const OBJECT: &str = "https://h/apis/certificates.k8s.io/v1/certificatesigningrequests/a/status";
const NODE: &str = "https://h/api/v1/nodes/a";
const PAGE: &str = "https://h/apis/certificates.k8s.io/v1/certificatesigningrequests?&limit=16";
const WATCH: &str = "https://h/apis/certificates.k8s.io/v1/certificatesigningrequests?&watch=true";
const BINDINGS_PAGE: &str =
    "https://h/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?&limit=16";
const BINDINGS_WATCH: &str =
    "https://h/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?&watch=true";

/// A server that answers every call with this status and these chunks.
struct Server<P> {
    status: u16,
    pieces: Option<P>,
}

type Answered<P> = Response<StreamBody<stream::Map<P, fn(Vec<u8>) -> Piece>>>;
type Piece = Result<Frame<Bytes>, Infallible>;

impl<P: Stream<Item = Vec<u8>> + Send + 'static> Service<Request<()>> for Server<P> {
    type Response = Answered<P>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Answered<P>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let frame: fn(Vec<u8>) -> Piece = |piece| Ok(Frame::data(piece.into()));
        let body = StreamBody::new(self.pieces.take().unwrap().map(frame));
        let answer = Response::builder().status(self.status).body(body).unwrap();
        std::future::ready(Ok(answer))
    }
}

/// Reads a response to the end, and returns its length.
async fn read<P>(url: &str, status: u16, pieces: P) -> Result<usize, Excess>
where
    P: Stream<Item = Vec<u8>> + Send + Unpin + 'static,
{
    read_of(NamedBy::Operator, url, status, pieces).await
}

async fn read_of<P>(named_by: NamedBy, url: &str, status: u16, pieces: P) -> Result<usize, Excess>
where
    P: Stream<Item = Vec<u8>> + Send + Unpin + 'static,
{
    let server = Server {
        status,
        pieces: Some(pieces),
    };
    let mut service = Bounded::new(server, named_by, "tenant-a");
    let request = Request::builder().uri(url).body(()).unwrap();
    let answer = service.call(request).await.unwrap();
    match answer.into_body().collect().await {
        Ok(body) => Ok(body.to_bytes().len()),
        Err(error) => Err(*error.downcast().unwrap()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_no_call_decodes_is_charged_by_its_length() {
    const NAMESPACE: &str = "undecoded";
    let body = format!("\"{}\"", "a".repeat(1_000_000));
    let server = Server {
        status: 200,
        pieces: Some(stream::iter([body.into_bytes()])),
    };
    let mut service = Bounded::new(server, NamedBy::Tenant, NAMESPACE);
    let request = Request::builder().uri(NODE).body(()).unwrap();

    let answer = service.call(request).await.unwrap();
    answer.into_body().collect().await.unwrap();

    let taken = crate::client::taken_processor_time(NAMESPACE);
    assert!(taken >= Duration::from_millis(32), "{taken:?}");
}

/// An API server that never responds, and counts the calls.
struct Silent(Arc<AtomicUsize>);

impl Service<Request<()>> for Silent {
    type Response = Response<StreamBody<stream::Empty<Piece>>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let asked = self.0.clone();
        async move {
            asked.fetch_add(1, Ordering::Relaxed);
            pending().await
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_are_limited() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut service = Bounded::new(Silent(asked.clone()), NamedBy::Tenant, "tenant-a");
    let calls = (0..3 * CALLS_AT_ONCE).map(|_| {
        let request = Request::builder().uri(OBJECT).body(()).unwrap();
        service.call(request)
    });
    let calls: Vec<_> = calls.collect();

    let first = Duration::from_secs(1);
    let waited = tokio::time::timeout(first, futures::future::join_all(calls)).await;

    assert!(waited.is_err());
    assert_eq!(asked.load(Ordering::Relaxed), CALLS_AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn a_flooding_namespace_gets_half_of_the_management_calls() {
    const ALL: usize = MANAGEMENT_CALLS_AT_ONCE;
    let url = |namespace: &str| format!("https://a/api/v1/namespaces/{namespace}/secrets/a");
    for (named_by, alone, expected) in [
        (NamedBy::Operator, true, ALL),
        (NamedBy::Operator, false, ALL / 2 + 1),
        (NamedBy::Tenant, false, CALLS_AT_ONCE),
    ] {
        let asked = Arc::new(AtomicUsize::new(0));
        let mut service = Bounded::new(Silent(asked.clone()), named_by, "");
        let victim = if alone { "tenant-a" } else { "tenant-b" };
        let flood = vec!["tenant-a"; 2 * ALL];
        let calls = [victim].into_iter().chain(flood).map(|namespace| {
            let request = Request::builder().uri(url(namespace)).body(()).unwrap();
            service.call(request)
        });
        let calls: Vec<_> = calls.collect();

        let first = Duration::from_secs(1);
        let waited = tokio::time::timeout(first, futures::future::join_all(calls)).await;

        assert!(waited.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn name_lookups_of_a_flooding_namespace_get_half_of_the_slots() {
    const ALL: usize = MANAGEMENT_CALLS_AT_ONCE;
    let asked = Arc::new(AtomicUsize::new(0));
    let mut service = Bounded::new(Silent(asked.clone()), NamedBy::Operator, "");
    let flood = vec!["tenant-a"; 2 * ALL];
    let lookups = ["tenant-b"].into_iter().chain(flood).map(|namespace| {
        let request = Request::builder().uri("https://a/apis/a/v1").body(());
        service.call(on_behalf_of(request.unwrap(), namespace))
    });
    let lookups: Vec<_> = lookups.collect();

    let first = Duration::from_secs(1);
    let waited = tokio::time::timeout(first, futures::future::join_all(lookups)).await;

    assert!(waited.is_err());
    assert_eq!(asked.load(Ordering::Relaxed), ALL / 2 + 1);
}

#[test]
fn a_call_counts_against_the_namespace_of_its_object() {
    for (path, expected) in [
        ("/api/v1/namespaces/tenant-a/secrets/a", "tenant-a"),
        (
            "/apis/cluster.x-k8s.io/v1beta2/namespaces/tenant-a/clusters",
            "tenant-a",
        ),
        ("/apis/cluster.x-k8s.io/v1beta2/clusters", ""),
        ("/api/v1/namespaces", ""),
        ("/api/v1/nodes/namespaces", ""),
    ] {
        let uri: Uri = format!("https://a{path}").parse().unwrap();
        assert_eq!(namespace_of(&uri), expected, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_keeps_its_slot_until_it_is_read() {
    for (url, sent) in [(OBJECT, CALLS_AT_ONCE), (WATCH, 3 * CALLS_AT_ONCE)] {
        let silent = tower::service_fn(|_: Request<()>| async {
            let never = stream::pending::<Piece>();
            Ok::<_, Infallible>(Response::new(StreamBody::new(never)))
        });
        let mut service = Bounded::new(silent, NamedBy::Tenant, "tenant-a");
        let (begun, mut answers) = (Instant::now(), vec![]);
        let second = Duration::from_secs(1);
        for _ in 0..3 * CALLS_AT_ONCE {
            let request = Request::builder().uri(url).body(()).unwrap();
            let answer = tokio::time::timeout(second, service.call(request)).await;
            answers.extend(answer.ok());
        }
        assert_eq!(answers.len(), sent, "{url}");
        answers.pop();
        let request = Request::builder().uri(url).body(()).unwrap();
        assert!(service.call(request).await.is_ok(), "{url}");
        assert!(begun.elapsed() < ANSWER_DEADLINE);
    }
}

fn of_length(len: usize) -> impl Stream<Item = Vec<u8>> + Send + Unpin + 'static {
    stream::iter([vec![b'x'; len / 2], vec![b'x'; len - len / 2]])
}

#[tokio::test]
async fn a_page_or_object_over_its_size_limit_is_refused() {
    for (url, max) in [(OBJECT, MAX_OBJECT_LEN), (PAGE, MAX_PAGE_LEN)] {
        assert_eq!(read(url, 200, of_length(max)).await, Ok(max));
        assert_eq!(
            read(url, 200, of_length(max + 1)).await,
            Err(Excess::Length(max))
        );
    }
}

#[tokio::test]
async fn newlines_count_toward_the_length_limit() {
    let lines = stream::iter(vec![vec![b'\n'; MAX_OBJECT_LEN]; 2]);

    assert_eq!(
        read(OBJECT, 200, lines).await,
        Err(Excess::Length(MAX_OBJECT_LEN))
    );
}

#[tokio::test]
async fn a_watch_has_no_limit_but_each_event_has_the_object_limit() {
    let mut event = vec![b'x'; MAX_OBJECT_LEN];
    event.push(b'\n');
    let all = event.len() * 3;
    let events = stream::iter(vec![event; 3]);
    assert_eq!(read(WATCH, 200, events).await, Ok(all));

    let excess = Err(Excess::Event(MAX_OBJECT_LEN));
    assert_eq!(
        read(WATCH, 200, of_length(MAX_OBJECT_LEN + 1)).await,
        excess
    );
    let after_another = stream::iter([b"{}\n".to_vec(), vec![b'x'; MAX_OBJECT_LEN + 1]]);
    assert_eq!(read(WATCH, 200, after_another).await, excess);
}

#[tokio::test]
async fn every_error_response_is_limited_to_the_size_of_one_object() {
    for url in [OBJECT, PAGE, WATCH] {
        for status in [302, 403, 503] {
            let lines = stream::iter(vec![vec![b'\n'; MAX_OBJECT_LEN]; 2]);
            assert_eq!(
                read(url, status, lines).await,
                Err(Excess::Length(MAX_OBJECT_LEN)),
                "{status} {url}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_response_ends_at_its_deadline() {
    for (url, deadline) in [
        (OBJECT, ANSWER_DEADLINE),
        (PAGE, ANSWER_DEADLINE),
        (WATCH, WATCH_DEADLINE),
    ] {
        let begun = Instant::now();
        let trickle = stream::unfold((), |()| async {
            sleep(Duration::from_secs(1)).await;
            Some((b"x\n".to_vec(), ()))
        });

        assert_eq!(
            read(url, 200, Box::pin(trickle)).await,
            Err(Excess::Time),
            "{url}"
        );
        assert_eq!(begun.elapsed(), deadline);
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_never_starts_times_out() {
    let begun = Instant::now();
    let silent = tower::service_fn(|_: Request<()>| async {
        pending::<()>().await;
        Ok::<_, Infallible>(Response::new(http_body_util::Empty::<Bytes>::new()))
    });

    let request = Request::builder().uri(OBJECT).body(()).unwrap();
    let error = Bounded::new(silent, NamedBy::Tenant, "tenant-a")
        .call(request)
        .await
        .unwrap_err();

    assert_eq!(*error.downcast::<Excess>().unwrap(), Excess::Time);
    assert_eq!(begun.elapsed(), ANSWER_DEADLINE);
}

/// The known ways to use much memory with few bytes, in a page of a list and in an event.
fn amplified() -> [(&'static str, String, Excess); 4] {
    let many = |element: &str| vec![element; MAX_TENANT_PAGE_LEN / 3 - 100].join(",");
    let page = |object: &str| format!(r#"{{"metadata":{{}},"items":[{object}]}}"#);
    let event = |object: &str| format!(r#"{{"type":"ADDED","object":{object}}}"#) + "\n";
    let subjects = format!(
        r#"{{"metadata":{{"name":"a"}},"subjects":[{}]}}"#,
        many("{}")
    );
    [
        (PAGE, page(&many("{}")), Excess::Items(16)),
        (BINDINGS_PAGE, page(&subjects), Excess::Values(MIN_VALUES)),
        (BINDINGS_WATCH, event(&subjects), Excess::Values(MIN_VALUES)),
        (NODE, subjects, Excess::Values(MAX_VALUES)),
    ]
}

#[tokio::test]
async fn a_tenant_response_with_too_many_values_is_refused() {
    for (url, text, excess) in amplified() {
        let pieces = stream::iter(vec![text.into_bytes()]);
        let read = read_of(NamedBy::Tenant, url, 200, pieces).await;
        assert_eq!(read, Err(excess), "{url}");
    }
}

#[tokio::test]
async fn megabytes_of_managed_fields_are_removed() {
    let many = vec!["{}"; 300_000].join(",");
    let object = format!(r#"{{"metadata":{{"name":"a","managedFields":[{many}]}}}}"#);
    for (url, text) in [
        (PAGE, format!(r#"{{"metadata":{{}},"items":[{object}]}}"#)),
        (
            WATCH,
            format!(r#"{{"type":"ADDED","object":{object}}}"#) + "\n",
        ),
        (OBJECT, object.clone()),
    ] {
        let pieces = stream::iter(vec![text.into_bytes()]);
        let read = read_of(NamedBy::Tenant, url, 200, pieces).await;
        assert!(read.is_ok_and(|read| read < 200), "{url}");
    }
}

#[tokio::test]
async fn a_response_with_endless_managed_fields_is_refused() {
    let begin = br#"{"metadata":{"name":"a","managedFields":[""#.to_vec();
    let whole = || stream::iter([begin.clone()]).chain(stream::repeat(vec![b'x'; 1024 * 1024]));
    for (named_by, max) in [
        (NamedBy::Operator, MAX_OBJECT_LEN),
        (NamedBy::Tenant, MAX_LEN_OF_REQUEST),
    ] {
        let read = read_of(named_by, OBJECT, 200, Box::pin(whole())).await;
        assert_eq!(read, Err(Excess::Length(max)), "{named_by:?}");
    }
}

#[tokio::test]
async fn a_tenant_response_over_the_length_limit_is_refused() {
    let alone = PAGE.replace("limit=16", "limit=1");
    let request = OBJECT.trim_end_matches("/status");
    for (url, status, max) in [
        (PAGE, 200, MAX_TENANT_PAGE_LEN),
        (&*alone, 200, MAX_OBJECT_LEN),
        (NODE, 200, MAX_LEN_OF_SINGLE),
        (OBJECT, 200, MAX_LEN_OF_REQUEST),
        (request, 200, MAX_LEN_OF_REQUEST),
        (PAGE, 403, MAX_LEN_OF_REQUEST),
        (NODE, 403, MAX_LEN_OF_REQUEST),
        (WATCH, 403, MAX_LEN_OF_REQUEST),
    ] {
        let read = async |len| read_of(NamedBy::Tenant, url, status, of_length(len)).await;
        assert_eq!(read(max).await, Ok(max), "{status} {url}");
        let excess = Err(Excess::Length(max));
        assert_eq!(read(max + 1).await, excess, "{status} {url}");
    }
    // The largest request in base64. The other fields together have the same length.
    const { assert!(MAX_LEN_OF_REQUEST > 2 * 64 * 1024 * 4 / 3) };
}

#[tokio::test(start_paused = true)]
async fn single_responses_of_a_tenant_api_server_are_rate_limited() {
    const MIB: usize = 1024 * 1024;
    let server = tower::service_fn(|_: Request<()>| async {
        let text = format!("\"{}\"", "x".repeat(MIB));
        Ok::<_, Infallible>(Response::new(http_body_util::Full::new(Bytes::from(text))))
    });
    for (named_by, is_limited) in [(NamedBy::Operator, false), (NamedBy::Tenant, true)] {
        let mut service = Bounded::new(server, named_by, "tenant");
        let begun = Instant::now();
        for _ in 0..400 {
            let request = Request::builder().uri(NODE).body(()).unwrap();
            let answer = service.call(request).await.unwrap();
            answer.into_body().collect().await.unwrap();
        }
        // The rate is 1 MiB per second for the server, and 8 MiB per second for all clusters together.
        let waited = begun.elapsed();
        assert_eq!(waited > Duration::from_secs(30), is_limited, "{waited:?}");
    }
}

#[tokio::test]
async fn unread_responses_share_one_memory_limit() {
    let mut service = Bounded::new(
        tower::service_fn(|_: Request<()>| async {
            let pieces = stream::iter([Ok::<_, Infallible>(Frame::data(
                vec![b'x'; 512 * 1024].into(),
            ))]);
            Ok::<_, Infallible>(Response::new(StreamBody::new(
                pieces.chain(stream::pending()),
            )))
        }),
        NamedBy::Tenant,
        "tenant-a",
    );
    service.share = Share::alone(TENANT_SHARE);
    let mut open = Vec::new();
    let excess = loop {
        assert!(open.len() < 10, "there is no bound");
        let request = Request::builder().uri(WATCH).body(()).unwrap();
        let mut body = service.call(request).await.unwrap().into_body();
        match body.frame().await.unwrap() {
            Ok(_) => open.push(body),
            Err(error) => break *error.downcast::<Excess>().unwrap(),
        }
    };

    assert_eq!((open.len(), excess), (2, Excess::Memory));
    open.pop();
    let request = Request::builder().uri(WATCH).body(()).unwrap();
    let mut body = service.call(request).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
}

/// The beginning of a page that continues a list.
const NEXT_PAGE: &str =
    "https://h/apis/certificates.k8s.io/v1/certificatesigningrequests?&limit=16&continue=a";

#[tokio::test(start_paused = true)]
async fn a_list_from_a_tenant_api_server_is_limited_in_pages_and_rate() {
    let server = tower::service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(http_body_util::Full::new(Bytes::from("{}"))))
    });
    let mut service = Bounded::new(server, NamedBy::Tenant, "tenant");
    let mut page = async |url| {
        let request = Request::builder().uri(url).body(()).unwrap();
        let answer = service.call(request).await;
        let body = answer.map_err(|error| *error.downcast::<Excess>().unwrap())?;
        body.into_body().collect().await.unwrap();
        Ok(())
    };
    let begun = Instant::now();
    for _ in 1..MAX_PAGES {
        assert_eq!(page(NEXT_PAGE).await, Ok(()));
    }
    // The rate is 64 pages per second for the server, and 512 for all clusters together.
    assert!(begun.elapsed() > Duration::from_secs(30));
    assert_eq!(page(NEXT_PAGE).await, Err(Excess::Pages(MAX_PAGES)));

    assert_eq!(page(PAGE).await, Ok(()), "another list");
    assert_eq!(page(NEXT_PAGE).await, Ok(()));
}

#[tokio::test]
async fn a_single_object_has_the_same_value_limit_as_a_watch_event() {
    let request = OBJECT.trim_end_matches("/status");
    for url in [request, OBJECT] {
        let values = async |count: usize| {
            let text = format!("[{}0]", "0,".repeat(count));
            let pieces = stream::iter([text.into_bytes()]);
            read_of(NamedBy::Tenant, url, 200, pieces).await
        };
        assert!(values(MIN_VALUES - 1).await.is_ok());
        let excess = values(MIN_VALUES).await;
        assert_eq!(excess, Err(Excess::Values(MIN_VALUES)));
    }
}
