//! Clients that tell of what an API server sends on watches.

use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;

use crate::metrics::WatchMetrics;

/// The same client, which calls `told` for each piece of a watch.
///
/// kube's watcher keeps bookmarks to itself, and a quiet watch has nothing else. So what counts is
/// the bytes: the head of an answer, an event, or a bookmark. A page of a list counts for nothing: the store
/// is as old as before until the list is complete.
pub(crate) fn listening(client: Client, told: impl Fn() + Clone + Send + Sync + 'static) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, told) = (client.clone(), told.clone());
        async move {
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.split('&').any(|pair| pair.starts_with("watch="));
            let response: Response<Body> = client.send(request).await?;
            let is_success = is_watch && response.status().is_success();
            let heard = move || {
                if is_success {
                    told();
                }
            };
            heard();
            Ok::<_, kube::Error>(response.map(|body| {
                body.map_frame(move |frame| {
                    heard();
                    frame
                })
            }))
        }
    });
    Client::new(service, namespace)
}

/// The same client, whose watches are measured.
pub(crate) fn measured(client: Client, metrics: &WatchMetrics) -> Client {
    if !metrics.is_on() {
        return client;
    }
    let metrics = metrics.clone();
    listening(client, move || metrics.heard())
}
