//! Tests of responses from a management cluster whose objects tenants can write.

use super::*;

/// An object with this number of labels.
fn object(labels: usize) -> String {
    let labels: Vec<_> = (0..labels)
        .map(|number| format!("\"{number}\":1"))
        .collect();
    let labels = labels.join(",");
    format!(r#"{{"metadata":{{"labels":{{{labels}}}}}}}"#)
}

#[tokio::test]
async fn a_management_page_with_too_many_values_is_refused() {
    // Whether the client reads each object completely.
    let read = async |limit: usize, objects: usize, labels: usize| {
        let items = vec![object(labels); objects].join(",");
        let page = format!(r#"{{"items":[{items}]}}"#).into_bytes();
        let len = page.len();
        let url = format!("https://a/apis/cluster.x-k8s.io/v1beta2/machines?limit={limit}");
        read(&url, 200, stream::iter([page]))
            .await
            .map(|read| read == len)
    };
    let most = MAX_VALUES_OF_OBJECT;
    for limit in [500, FEW, 1] {
        assert_eq!(read(limit, 1, most).await, Ok(true), "{limit}");
        assert_eq!(read(limit, 1, most + 1).await, Ok(false), "{limit}");
    }
    // The client can always read a page with few objects, so it can try larger pages afterwards.
    assert_eq!(read(500, FEW, most).await, Ok(true));
    assert_eq!(read(500, FEW, 70_000).await, Ok(false));
    let excess = read(500, FEW + 1, most).await.unwrap_err();
    assert_eq!(excess, Excess::Values(MAX_PAGE_VALUES));
    assert!(excess.is_of_size(), "a smaller page is requested");
    // etcd accepts objects of 1.5 MiB.
    const { assert!(7 * 1536 * 1024 <= MAX_PAGE_LEN) };
}

#[tokio::test]
async fn a_management_watch_event_with_too_many_values_is_refused() {
    let most = MAX_VALUES_OF_OBJECT;
    for (labels, is_whole) in [(most, true), (most + 1, false)] {
        let object = object(labels);
        let event = format!(r#"{{"type":"ADDED","object":{object}}}"#) + "\n";
        let event = event.into_bytes();
        let len = event.len();
        let read = read(WATCH, 200, stream::iter([event])).await;
        assert_eq!(read.map(|read| read == len), Ok(is_whole), "{labels}");
    }
}

#[tokio::test]
async fn large_responses_for_a_namespace_leave_memory_to_all_others() {
    // The longest possible JSON text of a Secret.
    const LARGE: usize = 3 * 1024 * 1024;
    let server = tower::service_fn(|request: Request<()>| {
        let is_small = request.uri().path().ends_with("small");
        let mut text = vec![b'x'; if is_small { 4096 } else { LARGE }];
        text[0] = b'"';
        let pieces = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(text)))]);
        let body = StreamBody::new(pieces.chain(stream::pending()));
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let mut service = Bounded::new(server, NamedBy::Operator, "");
    let mut watch = async |path: &str| {
        let url = format!("https://a/api/v1/{path}?&watch=true");
        let request = Request::builder().uri(url).body(()).unwrap();
        let mut body = service.call(request).await.unwrap().into_body();
        match body.frame().await.unwrap() {
            Ok(_) => Ok(body),
            Err(error) => Err(*error.downcast::<Excess>().unwrap()),
        }
    };
    let mut open = Vec::new();
    let excess = loop {
        assert!(open.len() < 100, "there is no limit");
        match watch("namespaces/large-a/secrets").await {
            Ok(body) => open.push(body),
            Err(excess) => break excess,
        }
    };

    assert_eq!(excess, Excess::Memory);
    for path in [
        "secrets",
        "namespaces/large-b/secrets",
        // Each call has memory for a small response.
        "namespaces/large-a/small",
    ] {
        assert!(watch(path).await.is_ok(), "{path}");
    }
    // These calls can use only 32 MiB, even if no other namespace makes calls.
    assert_eq!(open.len(), 10);
}
