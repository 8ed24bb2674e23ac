//! Error responses from tenants' API servers, without the text of other servers.
//!
//! A tenant chooses the server to which the controller connects, and can read the error in a condition. Therefore an
//! error page of a server that only the controller can reach must not become part of an error. Only a Kubernetes
//! `Status` is kept, because every API server sends its errors in this form.

use futures::future::{BoxFuture, FutureExt as _};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Bytes};
use hyper::{Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tower::BoxError;

/// The message that replaces the text from another server.
const MESSAGE: &str = "the error is not a Kubernetes Status, and is not shown";

/// The reason that replaces the text from another server. Kubernetes does not have this reason, so only the code is
/// relevant.
const REASON: &str = "NotAStatus";

/// The fields that identify a `Status`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    kind: String,
    api_version: String,
}

/// A response whose body can be replaced.
type Replaceable<B> = Response<Either<B, Full<Bytes>>>;

/// Replaces the body of an error that is not a Kubernetes `Status`. Other responses are not changed.
pub(super) fn without_foreign_text<B>(
    response: Response<B>,
) -> BoxFuture<'static, Result<Replaceable<B>, BoxError>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    async move {
        let code = response.status();
        if !code.is_client_error() && !code.is_server_error() {
            return Ok(response.map(Either::Left));
        }
        let (head, body) = response.into_parts();
        let collected = body.collect().await.map_err(Into::<BoxError>::into)?;
        let text = collected.to_bytes();
        let text = if is_status(&text) {
            text
        } else {
            replacement(code)
        };
        Ok(Response::from_parts(head, Either::Right(Full::new(text))))
    }
    .boxed()
}

fn is_status(text: &[u8]) -> bool {
    let identity: Option<Identity> = serde_json::from_slice(text).ok();
    identity.is_some_and(|identity| identity.kind == "Status" && identity.api_version == "v1")
}

fn replacement(code: StatusCode) -> Bytes {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": REASON, "message": MESSAGE,
    });
    status.to_string().into()
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use kube::client::{self, ClientBuilder};
    use kube::core::Status;
    use serde_json::Value;
    use tower::service_fn;

    use super::*;

    /// The text of this response after it has passed the filter.
    async fn filtered(code: u16, text: &str) -> String {
        let body = Full::new(Bytes::from(text.to_owned()));
        let response = Response::builder().status(code).body(body).unwrap();

        let response = without_foreign_text(response).await.unwrap();

        assert_eq!(response.status().as_u16(), code);
        let body = response.into_body().collect().await.unwrap();
        String::from_utf8(body.to_bytes().to_vec()).unwrap()
    }

    fn status() -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": 403, "reason": "Forbidden", "message": "a role is missing",
        })
    }

    #[tokio::test]
    async fn an_error_that_is_not_a_kubernetes_status_is_replaced() {
        let without = |field: &str| {
            let mut status = status();
            status.as_object_mut().unwrap().remove(field);
            status.to_string()
        };
        let with = |field: &str, value: &str| {
            let mut status = status();
            status[field] = value.into();
            status.to_string()
        };
        for text in [
            "a role is missing".to_owned(),
            json!("a role is missing").to_string(),
            without("kind"),
            without("apiVersion"),
            with("kind", "Error"),
            with("apiVersion", "example.com/v1"),
        ] {
            for code in [403, 500] {
                let status: Status = serde_json::from_str(&filtered(code, &text).await).unwrap();

                let read = (status.code, status.reason.as_str(), status.message.as_str());
                assert_eq!(read, (code, REASON, MESSAGE), "{text}");
            }
        }
    }

    #[tokio::test]
    async fn a_kubernetes_status_and_other_responses_are_unchanged() {
        for (code, text) in [
            (403, status().to_string()),
            (500, status().to_string()),
            (200, "a role is missing".to_owned()),
            (302, "a role is missing".to_owned()),
        ] {
            assert_eq!(filtered(code, &text).await, text, "{code}");
        }
    }

    #[tokio::test]
    async fn an_error_page_of_another_server_is_not_in_the_error() {
        let server = service_fn(|_: Request<client::Body>| async {
            let page = Full::new(Bytes::from("a page for the controller only"));
            Ok::<_, BoxError>(Response::builder().status(403).body(page).unwrap())
        });
        let builder = ClientBuilder::new(server, "default");
        let client = crate::client::limited_for_tenant(builder, "a");

        let error = crate::preflight::version(&client).await.unwrap_err();

        let kube::Error::Api(status) = &error else {
            panic!("it is a refusal: {error}");
        };
        assert_eq!((status.code, status.message.as_str()), (403, MESSAGE));
        assert!(!format!("{error} {error:?}").contains("a page"), "{error}");
    }
}
