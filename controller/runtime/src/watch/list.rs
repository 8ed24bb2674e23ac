//! Lists, of which each object is read for itself.

use std::fmt::Debug;

use kube::Resource;
use kube::api::{Api, ListParams, Request};
use kube::core::ObjectList;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Lenient;
use crate::client::{CallError, pages};

/// An object of which only the metadata are read.
pub type MetadataOf<R> = Lenient<NoFields, R>;

/// No field of an object.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct NoFields {}

/// One page of a list.
///
/// # Errors
///
/// As [`Api::list`], except that each object in the page is one.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub async fn page_of<K, R>(
    api: &Api<Lenient<K, R>>,
    page: &ListParams,
) -> kube::Result<ObjectList<Lenient<K, R>>>
where
    K: Clone + Debug + DeserializeOwned,
    R: Resource + Clone + Debug,
{
    api.list(page).await
}

/// One page of a list of metadata.
///
/// # Errors
///
/// As [`page_of`].
pub(crate) async fn metadata_page_of<R: Resource + Clone + Debug>(
    api: &Api<MetadataOf<R>>,
    page: &ListParams,
) -> kube::Result<ObjectList<MetadataOf<R>>> {
    let request = Request::new(api.resource_url()).list_metadata(page);
    let request = request.map_err(kube::Error::BuildRequest)?;
    api.clone().into_client().request(request).await
}

/// All pages of a list.
///
/// # Errors
///
/// A page was refused, or did not come.
pub(crate) async fn all_of<K, R>(
    api: &Api<Lenient<K, R>>,
    wanted: ListParams,
) -> Result<Vec<Lenient<K, R>>, CallError>
where
    K: Clone + Debug + DeserializeOwned,
    R: Resource + Clone + Debug,
{
    pages(wanted, |page| async move { page_of(api, &page).await }).await
}

/// All pages of a list of metadata.
///
/// # Errors
///
/// As [`all_of`].
pub(crate) async fn all_metadata_of<R: Resource + Clone + Debug>(
    api: &Api<MetadataOf<R>>,
    wanted: ListParams,
) -> Result<Vec<MetadataOf<R>>, CallError> {
    let list = |page| async move { metadata_page_of(api, &page).await };
    pages(wanted, list).await
}
