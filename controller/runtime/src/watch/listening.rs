//! Clients that report the traffic of watches.

use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;

use crate::metrics::WatchMetrics;

/// Returns a client that calls `told` for each chunk of a watch.
///
/// kube's watcher does not expose bookmarks, and a quiet watch has no other events. So the bytes count: the head of a
/// response, an event, or a bookmark. A page of a list does not count, because the store stays outdated until the list
/// is complete.
pub fn listening(client: Client, told: impl Fn() + Clone + Send + Sync + 'static) -> Client {
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

/// Returns a client whose watches are measured.
pub(crate) fn measured(client: Client, metrics: &WatchMetrics) -> Client {
    if !metrics.is_on() {
        return client;
    }
    let metrics = metrics.clone();
    listening(client, move || metrics.heard())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::Full;
    use hyper::body::Bytes;

    use super::*;
    use crate::client::ClusterAccess;
    use crate::metrics::{Format, Metrics};

    #[tokio::test(start_paused = true)]
    async fn only_a_watch_event_resets_the_watch_age() {
        let metrics = Metrics::new("1");
        let watch = metrics.watch("Node");
        let access = ClusterAccess::in_memory(|request| async move {
            let is_refused = request.uri().path() == "/refused";
            let answer = Response::builder().status(if is_refused { 403 } else { 200 });
            answer.body(Full::new(Bytes::from("{}"))).unwrap()
        });
        let client = measured(access.client().clone(), &watch);
        let age = || {
            let text = metrics.text(Format::OpenMetrics);
            let name = r#"node_attestation_watch_age_seconds{kind="Node"} "#;
            let mut lines = text.lines();
            let age = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            age.parse::<f64>().unwrap()
        };
        tokio::time::advance(Duration::from_secs(100)).await;
        for (path, silence) in [
            ("/a", 100.0),
            ("/refused?watch=true", 100.0),
            ("/a?watch=1", 0.0),
        ] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let answer = client.send(request).await.unwrap();
            answer.into_body().collect_bytes().await.unwrap();
            assert!((age() - silence).abs() < 1.0, "{path}: {}", age());
        }
    }
}
