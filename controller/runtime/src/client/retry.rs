//! Retries for list pages.

use hyper::{Method, Request, Response};
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use tokio::time::Sleep;
use tower::BoxError;
use tower::retry::Policy;

/// Retries only requests for a list page, if the API server is too busy. Without retries, a watch would restart its
/// list after one failed page, and a list with hundreds of pages would never complete.
#[derive(Clone, Default)]
pub(crate) struct RetryLists(RetryPolicy);

impl<B> Policy<Request<Body>, Response<B>, BoxError> for RetryLists {
    type Future = Sleep;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Sleep> {
        self.0.retry(request, result)
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let is_page = |query: &str| query.split('&').any(|pair| pair.starts_with("limit="));
        let is_list = request.method() == Method::GET && request.uri().query().is_some_and(is_page);
        let cloned = is_list.then(|| {
            // The response type does not matter, because every request is cloned in the same way.
            Policy::<_, Response<B>, _>::clone_request(&mut self.0, request)
        });
        cloned.flatten()
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "it is about the call, and not about its objects"
)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use hyper::body::Bytes;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, ListParams, PostParams};
    use serde_json::json;

    use crate::client::ClusterAccess;

    /// Creates an API server that answers its first two calls with this status. Also returns the number of calls.
    fn failing_twice(code: u16) -> (Api<ConfigMap>, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let access = ClusterAccess::in_memory(move |_| {
            let code = match counted.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => code,
                _ => 200,
            };
            let list = json!({
                "apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": [],
            });
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
                "reason": "", "message": "",
            });
            let body = if code == 200 { list } else { status };
            let body = Full::new(Bytes::from(body.to_string()));
            async move { hyper::Response::builder().status(code).body(body).unwrap() }
        });
        (Api::namespaced(access.client().clone(), "a"), calls)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_page_is_retried_if_the_api_server_is_overloaded() {
        for code in [429, 503, 504] {
            let (api, calls) = failing_twice(code);

            let listed = api.list(&ListParams::default().limit(500)).await;

            assert!(listed.is_ok(), "{code}: {listed:?}");
            assert_eq!(calls.load(Ordering::Relaxed), 3, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn gets_creates_and_permanent_errors_are_not_retried() {
        let (api, calls) = failing_twice(503);
        assert!(api.get("a").await.is_err());
        assert_eq!(calls.load(Ordering::Relaxed), 1);

        let (api, calls) = failing_twice(503);
        let created = api
            .create(&PostParams::default(), &ConfigMap::default())
            .await;
        assert!(created.is_err());
        assert_eq!(calls.load(Ordering::Relaxed), 1);

        let (api, calls) = failing_twice(403);
        assert!(api.list(&ListParams::default().limit(500)).await.is_err());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
