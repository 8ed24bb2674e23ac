//! Calls that count against the turns of a tenant's namespace, for objects in other places.

use std::sync::Arc;

use hyper::Request;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

/// The namespace of the tenant on whose behalf a call is made. It is stored in the extensions of the request.
#[derive(Debug, Clone)]
struct OnBehalfOf(Arc<str>);

/// Counts a call against the turns of this namespace, even if the call is for a cluster-scoped resource.
pub(crate) fn on_behalf_of<B>(mut request: Request<B>, namespace: &str) -> Request<B> {
    let caller = OnBehalfOf(namespace.into());
    request.extensions_mut().insert(caller);
    request
}

/// A client whose calls count against the turns of this namespace, also for objects in other namespaces.
#[expect(
    clippy::disallowed_methods,
    reason = "the requests of a client, unchanged"
)]
pub(crate) fn client_on_behalf_of(client: &Client, namespace: &str) -> Client {
    let place = client.default_namespace().to_owned();
    let (client, namespace) = (client.clone(), namespace.to_owned());
    let service = service_fn(move |request: Request<Body>| {
        let (client, request) = (client.clone(), on_behalf_of(request, &namespace));
        async move { client.send(request).await }
    });
    Client::new(service, place)
}

/// The namespace of the tenant on whose behalf a call is made, if it is not the namespace of the object.
pub(crate) fn caller_of<B>(request: &Request<B>) -> Option<&str> {
    let caller = request.extensions().get::<OnBehalfOf>();
    caller.map(|OnBehalfOf(namespace)| &**namespace)
}
