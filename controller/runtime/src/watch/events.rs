//! The events of an open watch.
//!
//! kube's `Client::request_events` is not used, because it keeps a buffer of 8 KiB for each watch. Each cluster has
//! several watches, and most of them are idle. Here, a watch has a buffer only while it reads a line.

use std::error::Error as StdError;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::iter::successors;

use futures::io::AsyncBufReadExt as _;
use futures::stream::{BoxStream, StreamExt as _};
use hyper::header::{ACCEPT_ENCODING, HeaderValue};
use kube::api::{Api, Request, WatchEvent, WatchParams};
use kube::core::Status;
use kube::{Error, Resource};
use serde::de::DeserializeOwned;

/// The maximum number of causes in an error that are examined.
const MAX_CAUSES: usize = 16;

/// The text in hyper's error about a response that ends within a chunk.
const WITHIN_CHUNK: &str = "unexpected EOF during chunk";

/// Starts a watch at this version. The stream ends when the API server or the connection ends the watch.
///
/// # Errors
///
/// Returns an error if the call failed.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(super) async fn events_of<K>(
    api: &Api<K>,
    params: &WatchParams,
    version: &str,
) -> kube::Result<BoxStream<'static, kube::Result<WatchEvent<K>>>>
where
    K: Resource + Clone + DeserializeOwned + Send + 'static,
{
    let request = Request::new(api.resource_url()).watch(params, version);
    let mut request = request.map_err(Error::BuildRequest)?;
    // As in kube: an API server compresses each event separately, and decompression ends after the first event.
    let plain = HeaderValue::from_static("identity");
    request.headers_mut().insert(ACCEPT_ENCODING, plain);
    let body = api.clone().into_client().request_stream(request).await?;
    let lines = body.lines().take_while(|line| ready(!is_cut_off(line)));
    // An `async` block, because a ready event would reserve space for an object while the watch is idle.
    let events = lines.filter_map(|line| async move { event_of(line) });
    Ok(events.boxed())
}

/// Whether the connection ended within the response. The watch can continue at its last version.
fn is_cut_off(line: &io::Result<String>) -> bool {
    let Err(Some(cause)) = line.as_ref().map_err(io::Error::get_ref) else {
        return false;
    };
    let cause: &(dyn StdError + 'static) = cause;
    let causes = successors(Some(cause), |&cause| cause.source());
    cause.to_string().contains(WITHIN_CHUNK) || causes.take(MAX_CAUSES).any(is_end)
}

fn is_end(cause: &(dyn StdError + 'static)) -> bool {
    let cause = cause.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == ErrorKind::UnexpectedEof)
}

/// The event in a line. `None` if the response ended within the line.
fn event_of<K: DeserializeOwned>(line: io::Result<String>) -> Option<kube::Result<WatchEvent<K>>> {
    let line = match line {
        Ok(line) => line,
        Err(error) => return Some(Err(Error::ReadEvents(error))),
    };
    match serde_json::from_str(&line) {
        Ok(event) => Some(Ok(event)),
        Err(error) if error.is_eof() => None,
        Err(error) => {
            let status: Option<Status> = serde_json::from_str(&line).ok();
            let error = status.map_or(Error::SerdeError(error), |status| {
                Error::Api(status.boxed())
            });
            Some(Err(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::Response;
    use hyper::body::{Bytes, Frame};
    use k8s_openapi::api::core::v1::Node;

    use super::*;
    use crate::client::ClusterAccess;
    use crate::watch::Lenient;

    /// A chunk of a response, or the error after the last chunk.
    type Chunk = Result<&'static str, ErrorKind>;

    const FIRST: &str = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"n1\"}}}\n";

    /// The names in the events of a watch, if its response consists of these chunks. An error does not have a name.
    async fn names_in(chunks: &'static [Chunk]) -> Vec<Option<String>> {
        let access = ClusterAccess::in_memory(move |_| {
            let frames = chunks.iter().map(|chunk| {
                let chunk = chunk.map(|text| Frame::data(Bytes::from(text)));
                chunk.map_err(io::Error::from)
            });
            let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
            async move { Response::new(body) }
        });
        let api: Api<Lenient<Node>> = Api::all(access.client().clone());
        let parameters = WatchParams::default();
        let events = events_of(&api, &parameters, "1");
        let events = events.await.unwrap().map(|event| match event {
            Ok(
                WatchEvent::Added(node) | WatchEvent::Modified(node) | WatchEvent::Deleted(node),
            ) => node.metadata.name,
            Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) | Err(_) => None,
        });
        events.collect().await
    }

    #[tokio::test]
    async fn events_in_several_chunks_and_several_events_in_a_chunk_are_read() {
        let names = names_in(&[
            Ok("{\"type\":\"ADDED\",\"object\":{\"metada"),
            Ok(
                "ta\":{\"name\":\"n1\"}}}\n{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"n2\"}}}\n",
            ),
        ]);

        assert_eq!(names.await, [Some("n1".to_owned()), Some("n2".to_owned())]);
    }

    #[tokio::test]
    async fn a_watch_ends_without_an_error_if_its_response_is_cut_off() {
        let at_the_end = names_in(&[Ok(FIRST), Err(ErrorKind::UnexpectedEof)]);
        assert_eq!(at_the_end.await, [Some("n1".to_owned())]);

        let within_a_line = names_in(&[Ok(FIRST), Ok("{\"type\":\"ADD")]);
        assert_eq!(within_a_line.await, [Some("n1".to_owned())]);

        let broken = names_in(&[Ok(FIRST), Err(ErrorKind::ConnectionReset)]);
        assert_eq!(broken.await, [Some("n1".to_owned()), None]);
    }
}
