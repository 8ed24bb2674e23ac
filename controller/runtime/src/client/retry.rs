//! Pages of lists are asked for again by themselves.

use hyper::{Method, Request, Response};
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use tokio::time::Sleep;
use tower::BoxError;
use tower::retry::Policy;

/// Repeats the request for a page of a list, and no other, where the API server is too busy: otherwise
/// one page that fails makes a watch begin its list anew, and a list of hundreds of pages never ends.
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
            // Which answer it is for does not matter: a request is cloned in one way.
            Policy::<_, Response<B>, _>::clone_request(&mut self.0, request)
        });
        cloned.flatten()
    }
}
