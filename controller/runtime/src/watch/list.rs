//! Lists that decode each object separately.

use std::fmt::Debug;

use kube::Resource;
use kube::api::{Api, ListParams, Request};
use kube::core::ObjectList;
use serde::Deserialize;

use super::{Lenient, ReadAlone};
use crate::client::{CallError, Decoding, Excess, each_object, pages};

/// The maximum length of the token for the next page. Tokens are about 1 KiB long. The token is kept during the call
/// for the next page, and a tenant's API server can send a long token and delay the next response.
const MAX_TOKEN_LEN: usize = 16 * 1024;

/// An object of which only the metadata is decoded.
pub type MetadataOf<R> = Lenient<NoFields, R>;

/// An object that has no fields to decode.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct NoFields {}

/// Reads one page of a list.
///
/// # Errors
///
/// Like [`Api::list`], except that an invalid object is not an error, and a long token for the next page is an error.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub async fn page_of<K, R>(
    api: &Api<Lenient<K, R>>,
    page: &ListParams,
) -> kube::Result<ObjectList<Lenient<K, R>>>
where
    K: ReadAlone,
    R: Resource + Clone + Debug,
{
    let page = Decoding::new(Box::pin(api.list(page))).await?;
    with_short_token(page)
}

/// Returns one page of a metadata list.
///
/// # Errors
///
/// Like [`page_of`].
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) async fn metadata_page_of<R: Resource + Clone + Debug>(
    api: &Api<MetadataOf<R>>,
    page: &ListParams,
) -> kube::Result<ObjectList<MetadataOf<R>>> {
    let request = Request::new(api.resource_url()).list_metadata(page);
    let request = request.map_err(kube::Error::BuildRequest)?;
    let client = api.clone().into_client();
    let page: ObjectList<MetadataOf<R>> = Decoding::new(Box::pin(client.request(request))).await?;
    with_short_token(page)
}

fn with_short_token<T: Clone>(page: ObjectList<T>) -> kube::Result<ObjectList<T>> {
    let token = page.metadata.continue_.as_ref();
    let is_short = token.is_none_or(|token| token.len() <= MAX_TOKEN_LEN);
    let excess = || kube::Error::Service(Excess::Token(MAX_TOKEN_LEN).into());
    is_short.then_some(page).ok_or_else(excess)
}

/// All pages of a list.
///
/// # Errors
///
/// Returns an error if a page was rejected or could not be read.
pub(crate) async fn all_of<K, R>(
    api: &Api<Lenient<K, R>>,
    wanted: ListParams,
) -> Result<Vec<Lenient<K, R>>, CallError>
where
    K: ReadAlone,
    R: Resource + Clone + Debug,
{
    pages(wanted, |page| async move { page_of(api, &page).await }).await
}

/// Returns all pages of a metadata list.
///
/// # Errors
///
/// Like [`all_of`].
pub(crate) async fn all_metadata_of<R: Resource + Clone + Debug>(
    api: &Api<MetadataOf<R>>,
    wanted: ListParams,
) -> Result<Vec<MetadataOf<R>>, CallError> {
    let list = |page| async move { metadata_page_of(api, &page).await };
    pages(wanted, list).await
}

/// Calls `take` with each object of a list. Only one page is in memory, because a tenant's API server can return any
/// number of objects.
///
/// # Errors
///
/// Like [`all_of`].
pub(crate) async fn each_of<K, R>(
    api: &Api<Lenient<K, R>>,
    wanted: ListParams,
    take: impl FnMut(Lenient<K, R>),
) -> Result<(), CallError>
where
    K: ReadAlone,
    R: Resource + Clone + Debug,
{
    let list = |page| async move { page_of(api, &page).await };
    each_object(wanted, list, take).await
}

/// Calls `take` with each object of a metadata list, like [`each_of`].
///
/// # Errors
///
/// Like [`all_of`].
pub(crate) async fn each_metadata_of<R: Resource + Clone + Debug>(
    api: &Api<MetadataOf<R>>,
    wanted: ListParams,
    take: impl FnMut(MetadataOf<R>),
) -> Result<(), CallError> {
    let list = |page| async move { metadata_page_of(api, &page).await };
    each_object(wanted, list, take).await
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::Full;
    use hyper::Response;
    use hyper::body::Bytes;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use crate::client::{ClusterAccess, cause};

    #[tokio::test]
    async fn a_list_with_a_long_page_token_fails() {
        for (len, is_read) in [(MAX_TOKEN_LEN, true), (MAX_TOKEN_LEN + 1, false)] {
            let access = ClusterAccess::in_memory(move |_| {
                let list = json!({"metadata": {"continue": "t".repeat(len)}, "items": []});
                let answer = Full::new(Bytes::from(list.to_string()));
                async move { Response::new(answer) }
            });
            let api: Api<MetadataOf<Node>> = Api::all(access.client().clone());
            let wanted = ListParams::default();
            let listed = [
                page_of(&api, &wanted).await,
                metadata_page_of(&api, &wanted).await,
            ];
            for page in listed {
                let error = page.as_ref().err();
                let excess = error.and_then(|error| cause::<Excess>(error).copied());
                let expected = (!is_read).then_some(Excess::Token(MAX_TOKEN_LEN));
                assert_eq!(excess, expected, "{len}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_oversized_page_is_listed_in_smaller_pages() {
        const OBJECTS: usize = 40;
        let limits: Arc<Mutex<Vec<usize>>> = Arc::default();
        let asked = limits.clone();
        let access = ClusterAccess::in_memory(move |request| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let number = |key: &str| {
                let value = query.split('&').find_map(|pair| pair.strip_prefix(key));
                value.map_or(0, |value| value.parse::<usize>().unwrap())
            };
            let (first, limit) = (number("continue="), number("limit="));
            asked.lock().unwrap().push(limit);
            let next = (first + limit).min(OBJECTS);
            // A tenant can add as many labels and annotations to its objects as etcd accepts.
            let object = |number: usize| {
                let labels = json!({"a": "x".repeat(1 << 20)});
                json!({"metadata": {"name": number.to_string(), "labels": labels}})
            };
            let rest = (next < OBJECTS).then(|| next.to_string());
            let items: Vec<_> = (first..next).map(object).collect();
            let list = json!({"metadata": {"continue": rest}, "items": items});
            let answer = Full::new(Bytes::from(list.to_string()));
            async move { Response::new(answer) }
        });
        let api: Api<MetadataOf<Node>> = Api::all(access.client().clone());

        let all = all_of(&api, ListParams::default()).await.unwrap();

        let names = all.into_iter().filter_map(|one| one.metadata.name);
        let expected = (0..OBJECTS).map(|number| number.to_string());
        assert!(names.eq(expected), "each once, in order");
        let limits = limits.lock().unwrap().clone();
        assert_eq!(limits, [500, 125, 31, 7, 7, 7, 7, 3, 28], "{limits:?}");
    }
}
