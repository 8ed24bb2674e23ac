//! A single call to an API server: deadline, errors, and write parameters.

use std::error::Error;
use std::iter;
use std::time::Duration;

use hyper::StatusCode;
use kube::api::{ListParams, PatchParams, PostParams};
use kube::core::{ObjectList, Status};
use kubelet_attestation::errors::shortened;
use node_attestation_core::refusal::Unavailable;
use serde::de::Error as _;
use tokio::time::timeout;

use super::decoding::Decoding;
use super::response_limits::{Excess, MANAGEMENT_PAGE_SIZE};

/// The name of this controller as a field manager and as the reporter of Events.
pub(crate) const CONTROLLER: &str = "node-attestation-controller";

/// The deadline for a call about one small object. The API server's own limit is 60 s.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// The maximum length of a string in a rejection. A caller can hold the error during its next call, and a tenant's API
/// server can delay the response to that call.
const MAX_REFUSAL_LEN: usize = 4096;

/// A call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The API server did not respond in time.
    #[error("the API server did not respond within {} s", .0.as_secs())]
    Deadline(Duration),
    /// The API server rejected the call, and did not write anything.
    #[error("the API server rejected the call with {} {}: {}", .0.code, .0.reason, .0.message)]
    Refused(Box<Status>),
    /// There was no response, or the response was invalid.
    #[error("the call to the API server failed")]
    Failed(#[source] Box<kube::Error>),
}

impl CallError {
    fn has(&self, code: StatusCode) -> bool {
        matches!(self, Self::Refused(status) if status.code == code)
    }

    /// Whether the object already exists, or has changed since it was read.
    pub(crate) fn is_conflict(&self) -> bool {
        self.has(StatusCode::CONFLICT)
    }

    /// Whether the object is missing.
    pub(crate) fn is_not_found(&self) -> bool {
        self.has(StatusCode::NOT_FOUND)
    }

    /// Whether the object is invalid, so a repeated write would also fail.
    pub(crate) fn is_invalid(&self) -> bool {
        self.has(StatusCode::UNPROCESSABLE_ENTITY)
    }
}

/// The first error of this type among the causes of `error`.
pub(crate) fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut causes = iter::successors(Some(error), |&error| error.source());
    causes.find_map(|cause| cause.downcast_ref())
}

impl From<CallError> for Unavailable {
    fn from(error: CallError) -> Self {
        Self::new(error)
    }
}

/// Makes a call with the deadline [`CALL_DEADLINE`].
pub(crate) fn call<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> impl Future<Output = Result<T, CallError>> {
    in_time(CALL_DEADLINE, call)
}

/// Makes a call with this deadline.
///
/// The future is boxed here, because kube's future takes 5 KiB, and a task reserves space for every future that it can
/// await. An `async fn` would store the future in its own state before boxing it.
pub(crate) fn in_time<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> impl Future<Output = Result<T, CallError>> {
    let call = Decoding::new(Box::pin(call));
    async move {
        let answer = timeout(deadline, call).await;
        let answer = answer.map_err(|_| CallError::Deadline(deadline))?;
        answer.map_err(reduced)
    }
}

/// The error of a call, without the parts of the response that are not used.
fn reduced(error: kube::Error) -> CallError {
    if let kube::Error::Api(mut status) = error {
        reduce(&mut status);
        return CallError::Refused(status);
    }
    let error = if let kube::Error::FromUtf8(error) = error {
        // The error contains the whole response.
        kube::Error::Service(error.utf8_error().into())
    } else if let kube::Error::SerdeError(error) = error {
        kube::Error::SerdeError(serde_json::Error::custom(without_value(&error)))
    } else {
        error
    };
    CallError::Failed(Box::new(error))
}

/// The text of a parser's error without the value in it, which can be a secret, and can be megabytes long.
pub(crate) fn without_value(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let quotes = ['"', '`'];
    match (text.find(quotes), text.rfind(quotes)) {
        (Some(first), Some(last)) if first < last => {
            let before = text.get(..=first).unwrap_or_default();
            let after = text.get(last..).unwrap_or_default();
            format!("{before}...{after}")
        }
        _ => text,
    }
}

/// Removes the unused parts of a rejection. Three bytes of JSON for a cause take 72 bytes of memory.
fn reduce(status: &mut Status) {
    status.metadata = None;
    status.details = None;
    for text in [&mut status.message, &mut status.reason] {
        *text = shortened(text, MAX_REFUSAL_LEN).to_owned();
    }
}

/// Returns all pages of `list`. Each page is read completely. If a page is too long, it is requested again with fewer
/// objects, as in watches.
///
/// The parameter is an ordinary closure, because the future of an `AsyncFn` cannot be spawned.
pub(crate) async fn pages<T, F>(
    wanted: ListParams,
    list: impl Fn(ListParams) -> F,
) -> Result<Vec<T>, CallError>
where
    T: Clone,
    F: Future<Output = Result<ObjectList<T>, kube::Error>>,
{
    let mut all = Vec::new();
    each_object(wanted, list, |object| all.push(object)).await?;
    Ok(all)
}

/// Calls `take` with each object on all pages of `list`. Only one page is in memory.
pub(crate) async fn each_object<T, F>(
    wanted: ListParams,
    list: impl Fn(ListParams) -> F,
    mut take: impl FnMut(T),
) -> Result<(), CallError>
where
    T: Clone,
    F: Future<Output = Result<ObjectList<T>, kube::Error>>,
{
    let mut pages = Pages::new(wanted);
    while let Some(page) = pages.next(&list).await? {
        page.into_iter().for_each(&mut take);
    }
    Ok(())
}

/// The number of objects to request in a list's next page.
///
/// A page that is too long is requested again with fewer objects. After these objects, the page size grows again, so
/// that a few large objects of one tenant do not slow down the lists of all tenants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageSize {
    most: u32,
    size: u32,
    /// The number of objects that remain until the end of the last page that was too long.
    rest: u32,
}

impl PageSize {
    /// Starts with the maximum size.
    pub(crate) fn new(most: u32) -> Self {
        Self {
            most,
            size: most,
            rest: 0,
        }
    }

    /// The number of objects to request.
    pub(crate) fn limit(self) -> u32 {
        match self.rest {
            0 => self.size,
            rest => self.size.min(rest),
        }
    }

    /// Records that a page was read, and determines the size of the next page.
    pub(crate) fn read(&mut self) {
        self.rest = self.rest.saturating_sub(self.limit());
        if self.rest == 0 {
            self.size = self.most.min(self.size.saturating_mul(4));
        }
    }

    /// Reduces the size after a failure. Returns whether reading a smaller page could succeed.
    pub(crate) fn shrink(&mut self, error: &(dyn Error + 'static)) -> bool {
        let limit = self.limit();
        let is_too_large = cause::<Excess>(error).is_some_and(|excess| excess.is_of_size());
        if !is_too_large || limit <= 1 {
            return false;
        }
        self.rest = limit;
        self.size = (limit / 4).max(1);
        true
    }
}

/// The pages of a list, so that a caller can process each page before the next page is read.
#[derive(Debug)]
pub(crate) struct Pages {
    /// The parameters for the next page. `None` after the last page.
    next: Option<ListParams>,
    size: PageSize,
}

impl Pages {
    pub(crate) fn new(wanted: ListParams) -> Self {
        Self::of_size(MANAGEMENT_PAGE_SIZE, wanted)
    }

    /// Pages with at most this number of objects.
    pub(crate) fn of_size(most: u32, wanted: ListParams) -> Self {
        Self {
            next: Some(wanted),
            size: PageSize::new(most),
        }
    }

    /// Whether the last page was read.
    pub(crate) fn are_read(&self) -> bool {
        self.next.is_none()
    }

    /// Reads the next page. `None` after the last page.
    pub(crate) async fn next<T, F>(
        &mut self,
        list: impl Fn(ListParams) -> F,
    ) -> Result<Option<Vec<T>>, CallError>
    where
        T: Clone,
        F: Future<Output = Result<ObjectList<T>, kube::Error>>,
    {
        let Some(page) = self.next.take() else {
            return Ok(None);
        };
        let answer = loop {
            match call(list(page.clone().limit(self.size.limit()))).await {
                Err(error) if self.size.shrink(&error) => {}
                answer => break answer?,
            }
        };
        self.size.read();
        let next = answer.metadata.continue_.filter(|next| !next.is_empty());
        self.next = next.map(|next| page.continue_token(&next));
        Ok(Some(answer.items))
    }
}

/// The parameters for writing a whole object, with `manager` as the field manager.
pub(crate) fn post(manager: &str) -> PostParams {
    PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    }
}

/// The parameters for a merge patch, with `manager` as the field manager.
pub(crate) fn merge(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    }
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::errors::error_chain;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn the_error_of_an_invalid_response_does_not_contain_the_response() {
        let long = "v".repeat(1 << 20);
        let unparsed = serde_json::from_value::<bool>(json!(long)).unwrap_err();
        let bytes = [long.as_bytes(), &[0xff]].concat();
        let not_utf8 = String::from_utf8(bytes).unwrap_err();
        for (error, expected) in [
            (
                kube::Error::SerdeError(unparsed),
                "string \"...\", expected",
            ),
            (kube::Error::FromUtf8(not_utf8), "from index 1048576"),
        ] {
            let failed = call(async move { Err::<(), _>(error) }).await.unwrap_err();

            let kept = format!("{failed:?}");
            assert!(kept.len() < MAX_REFUSAL_LEN, "{} bytes", kept.len());
            let text = error_chain(&failed);
            assert!(text.contains(expected), "{text}");
        }
    }

    #[tokio::test]
    async fn only_the_used_parts_of_a_refusal_are_kept() {
        let status = json!({
            "metadata": {}, "code": 422, "reason": "Invalid", "message": "m".repeat(1 << 20),
            "details": {"name": "a", "causes": [{}, {}]},
        });
        let status: Box<Status> = serde_json::from_value(status).unwrap();

        let refused = call(async { Err::<(), _>(kube::Error::Api(status)) }).await;

        let refused = refused.unwrap_err();
        assert!(refused.is_invalid(), "{refused}");
        let CallError::Refused(status) = refused else {
            panic!("it is a refusal");
        };
        assert_eq!(status.message.len(), MAX_REFUSAL_LEN);
        assert_eq!(status.reason, "Invalid");
        assert!(status.details.is_none() && status.metadata.is_none());
    }
}
