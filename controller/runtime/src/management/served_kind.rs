//! A test management cluster that serves one kind in varying versions.

use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use crate::client::ClusterAccess;

/// The kind, and the API server that serves it.
#[derive(Debug, Clone, Default)]
pub(super) struct ServedKind(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    versions: Vec<&'static str>,
    /// The status fields in the definition of the kind.
    fields: Vec<&'static str>,
    has_objects: bool,
    lookups: usize,
    definitions: usize,
    patches: Vec<String>,
}

impl ServedKind {
    /// A kind that is not served yet, although its objects exist.
    pub(super) fn new(group: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self(Arc::new(Mutex::new(State {
            group,
            kind,
            plural,
            has_objects: true,
            ..State::default()
        })))
    }

    /// Defines a status with these fields.
    pub(super) fn with_fields(self, fields: &[&'static str]) -> Self {
        self.0.lock().unwrap().fields = fields.to_vec();
        self
    }

    /// Serves the kind in these versions from now on.
    pub(super) fn serve(&self, versions: &[&'static str]) {
        self.0.lock().unwrap().versions = versions.to_vec();
    }

    /// Removes all objects.
    pub(super) fn remove_objects(&self) {
        self.0.lock().unwrap().has_objects = false;
    }

    /// The number of discovery calls for a version of the group.
    pub(super) fn lookups(&self) -> usize {
        self.0.lock().unwrap().lookups
    }

    /// The number of times that the definition was read.
    pub(super) fn definitions(&self) -> usize {
        self.0.lock().unwrap().definitions
    }

    /// The paths of patches to existing objects since the last call.
    pub(super) fn patches(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().patches)
    }

    /// Access to the management cluster.
    pub(super) fn access(&self) -> ClusterAccess {
        let served = self.clone();
        ClusterAccess::in_memory(move |request: Request<Body>| {
            let mut state = served.0.lock().unwrap();
            let answer = state.answer(request.method(), request.uri().path());
            async move { answer }
        })
    }
}

impl State {
    fn answer(&mut self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let (group, kind, plural) = (self.group, self.kind, self.plural);
        let (found, not_found) = (
            |object: &Value| response(200, object.to_string()),
            || {
                let status = json!({"kind": "Status", "code": 404, "reason": "NotFound"});
                response(404, status.to_string())
            },
        );
        if path == "/apis" {
            let versions = self.versions.iter();
            let versions = versions.map(
                |version| json!({"groupVersion": format!("{group}/{version}"), "version": version}),
            );
            let versions: Vec<Value> = versions.collect();
            let groups = json!([{"name": group, "versions": versions}]);
            return found(&json!({"kind": "APIGroupList", "groups": groups}));
        }
        if path.starts_with("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/") {
            self.definitions += 1;
            let fields = self.fields.iter();
            let fields = fields.map(|field| ((*field).to_owned(), json!({"type": "string"})));
            let status: serde_json::Map<String, Value> = fields.collect();
            let schema =
                json!({"openAPIV3Schema": {"properties": {"status": {"properties": status}}}});
            let versions = self.versions.iter();
            let versions = versions.map(
                |version| json!({"name": version, "subresources": {"status": {}}, "schema": schema}),
            );
            let versions: Vec<Value> = versions.collect();
            return found(&json!({"metadata": {"name": plural}, "spec": {"versions": versions}}));
        }
        let rest = path.strip_prefix(&format!("/apis/{group}/"));
        let (version, object) = rest.map_or((path, None), |rest| match rest.split_once('/') {
            Some((version, object)) => (version, Some(object)),
            None => (rest, None),
        });
        self.lookups += usize::from(object.is_none());
        if !self.versions.contains(&version) {
            // For an unserved path, the API server returns this text instead of a Status.
            return response(404, "404 page not found\n".to_owned());
        }
        let Some(object) = object else {
            let resource = json!({
                "name": plural, "kind": kind, "namespaced": true, "singularName": "", "verbs": ["patch"],
            });
            let list =
                json!({"kind": "APIResourceList", "groupVersion": "", "resources": [resource]});
            return found(&list);
        };
        if !self.has_objects {
            return not_found();
        }
        assert_eq!(*method, Method::PATCH, "{path}");
        self.patches.push(format!("{version}/{object}"));
        found(&json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": {}}))
    }
}

fn response(code: u16, body: String) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(body));
    Response::builder().status(code).body(body).unwrap()
}
