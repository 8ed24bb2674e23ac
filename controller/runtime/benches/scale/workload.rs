//! Workload clusters in which a machine joins.

use std::sync::{Arc, Mutex};

use hyper::Method;
use node_attestation_core::testing;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api_server::{Answer, ApiServer, Call, Network};
use crate::management::written;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// A workload cluster's API server, with one request.
pub(crate) struct Workload {
    pub(crate) server: Arc<ApiServer>,
    request: Mutex<Option<Value>>,
    /// The time at which the certificate was written.
    issued: Mutex<Option<Instant>>,
    progress: Arc<Notify>,
}

impl Workload {
    /// Creates a cluster that already has a pending request. `progress` is notified when the request is answered.
    pub(crate) fn new(network: Network, progress: Arc<Notify>) -> Self {
        Self {
            server: Arc::new(ApiServer::new(network)),
            request: Mutex::new(Some(request())),
            issued: Mutex::default(),
            progress,
        }
    }

    pub(crate) fn issued(&self) -> Option<Instant> {
        *self.issued.lock().unwrap()
    }

    pub(crate) fn answer(&self, call: &Call) -> Answer {
        let parts: Vec<&str> = call.path.split('/').skip(1).collect();
        match (&call.method, parts.as_slice()) {
            (&Method::GET, ["version"]) => Answer::Object(json!({
                "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            })),
            (&Method::POST, [.., "selfsubjectaccessreviews"]) => reviewed(call, true),
            (&Method::POST, [.., "subjectaccessreviews"]) => reviewed(call, false),
            (_, [.., "certificatesigningrequests", _, _]) => {
                self.written(&call.body);
                Answer::Object(written(call))
            }
            (&Method::GET, _) if call.is_watch() => Answer::Watch,
            (&Method::GET, [.., "certificatesigningrequests"]) => self.requests(),
            (&Method::GET, [.., "certificatesigningrequests", _]) => {
                let request = self.request.lock().unwrap().clone();
                request.map_or(Answer::Status(404), Answer::Object)
            }
            (&Method::GET, parts) if is_list(parts) => Answer::Items(0, Box::new(|_| Value::Null)),
            (&Method::GET, _) => Answer::Status(404),
            _ => Answer::Object(written(call)),
        }
    }

    fn requests(&self) -> Answer {
        let request = self.request.lock().unwrap().clone();
        let count = usize::from(request.is_some());
        Answer::Items(
            count,
            Box::new(move |_| request.clone().unwrap_or_default()),
        )
    }

    fn written(&self, request: &Value) {
        if request["status"]["certificate"].is_string() {
            self.issued.lock().unwrap().get_or_insert_with(Instant::now);
            self.request.lock().unwrap().take();
            self.server.send(REQUESTS, "DELETED", request);
            self.progress.notify_one();
        }
    }
}

/// Whether the path ends with a resource, and not with the name of an object or a subresource.
fn is_list(parts: &[&str]) -> bool {
    let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = parts else {
        return false;
    };
    matches!(rest, [_] | ["namespaces", _, _])
}

fn reviewed(call: &Call, allowed: bool) -> Answer {
    let mut review = call.body.clone();
    review["status"] = json!({"allowed": allowed});
    Answer::Object(review)
}

fn request() -> Value {
    let mut request = testing::valid();
    request.metadata.name = Some("csr-1".to_owned());
    request.metadata.uid = Some("csr-1-uid".to_owned());
    request.metadata.resource_version = Some("1".to_owned());
    serde_json::to_value(request).unwrap()
}
