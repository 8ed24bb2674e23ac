//! Clients that report the traffic on watches.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;

/// Returns a client that calls `report` for each chunk of a watch, after the events in the chunk are applied. The
/// argument is the time at which the chunk was read. Therefore a store that applies events slowly does not count as
/// current.
///
/// A quiet watch has only bookmarks, which the stream does not return as events. Therefore the bytes of the body are
/// reported, which contain an event or a bookmark. The head of a response is not reported, because an API server also
/// sends the head for a version that it has not reached. A list page is not reported, because the store remains
/// outdated until the list is complete.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn listening(
    client: Client,
    report: impl Fn(Instant) + Clone + Send + Sync + Unpin + 'static,
) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, report) = (client.clone(), report.clone());
        async move {
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.split('&').any(|pair| pair.starts_with("watch="));
            let response: Response<Body> = client.send(request).await?;
            let is_success = is_watch && response.status().is_success();
            Ok::<_, kube::Error>(response.map(|body| WatchBody {
                body,
                report: is_success.then_some(report),
                read: None,
            }))
        }
    });
    Client::new(service, namespace)
}

/// The body of a response, which reports its chunks.
struct WatchBody<F> {
    body: Body,
    /// `None` if the response is not an open watch.
    report: Option<F>,
    /// The time at which the last chunk was read. `None` before the first chunk, and after the report.
    read: Option<Instant>,
}

impl<F: Fn(Instant) + Unpin> hyper::body::Body for WatchBody<F> {
    type Data = Bytes;
    type Error = <Body as hyper::body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // The reader requests the next chunk after it has handled all events in the last chunk.
        if let Some(read) = self.read.take()
            && let Some(report) = &self.report
        {
            report(read);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.read = frame.as_ref().map(|_| Instant::now());
        Poll::Ready(frame)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "this is the door")]
mod tests {
    use std::time::Duration;

    use futures::StreamExt as _;
    use futures::channel::mpsc::unbounded;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_applied_chunk_is_reported_with_the_time_of_its_read() {
        let (sender, chunks) = unbounded::<&'static str>();
        let chunks = std::sync::Mutex::new(Some(chunks));
        let service = tower::service_fn(move |_: Request<Body>| {
            let chunks = chunks.lock().unwrap().take().unwrap();
            let frame = |chunk| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(chunk)));
            let body = StreamBody::new(chunks.map(frame)).boxed_unsync();
            async move { Ok::<_, std::convert::Infallible>(Response::new(body)) }
        });
        let (begin, reports) = (
            Instant::now(),
            std::sync::Arc::<std::sync::Mutex<Vec<u64>>>::default(),
        );
        let report = reports.clone();
        let report = move |at: Instant| report.lock().unwrap().push((at - begin).as_secs());
        let client = listening(Client::new(service, "default"), report);
        let request = Request::get("/a?watch=1").body(Body::empty()).unwrap();
        let mut body = client.send(request).await.unwrap().into_body();
        let seen = || reports.lock().unwrap().clone();
        let later = |seconds| tokio::time::advance(Duration::from_secs(seconds));

        later(10).await;
        sender.unbounded_send("first").unwrap();
        body.frame().await.unwrap().unwrap();
        assert_eq!(seen(), [0; 0], "the head");

        // Applying the events takes 90 seconds.
        later(90).await;
        sender.unbounded_send("second").unwrap();
        assert_eq!(seen(), [0; 0]);
        body.frame().await.unwrap().unwrap();
        assert_eq!(seen(), [10]);

        drop(sender);
        assert!(body.frame().await.is_none());
        assert_eq!(seen(), [10, 100]);
    }
}
