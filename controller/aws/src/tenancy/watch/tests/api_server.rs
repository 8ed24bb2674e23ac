//! The in-memory API server of a management cluster: objects of any kind, their watches, and faults.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, Request, Response};
use kube::client::Body;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::client::testing::too_long;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The interval between two bookmarks in an idle watch.
const BETWEEN_BOOKMARKS: Duration = Duration::from_secs(30);

type BoxError = Box<dyn StdError + Send + Sync>;
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

#[derive(Clone, Default)]
pub(super) struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The group, version, kind and plural name of each custom resource.
    kinds: Vec<[&'static str; 4]>,
    /// The objects, keyed by plural name, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    version: u64,
    watches: Vec<(Scope, mpsc::UnboundedSender<Bytes>)>,
    /// The plural names for which a watch must begin with a list.
    expired: BTreeSet<String>,
    /// For each plural name and object name, the status of every response about that object.
    refused: BTreeMap<String, u16>,
    /// The plural name for which pages with more than one object are too large.
    large: Option<String>,
    /// The account that another replica writes before the controller's next write of an account.
    rival: Option<&'static str>,
    requests: Vec<String>,
}

/// The objects that a call selects.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scope {
    plural: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl Scope {
    /// The scope of a path, and of a field selector that contains a name.
    fn of(path: &str, query: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (["api", "v1", rest @ ..] | ["apis", _, _, rest @ ..]) = parts.as_slice() else {
            return None;
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            _ => (None, rest),
        };
        let parameters = url::form_urlencoded::parse(query.as_bytes());
        let mut selectors = parameters.filter(|(key, _)| key == "fieldSelector");
        let selected = selectors.next().map(|(_, selector)| {
            let name = selector.strip_prefix("metadata.name=");
            name.expect("a selector of a name").to_owned()
        });
        let name = rest.get(1).map(|&name| name.to_owned()).or(selected);
        Some(Self {
            plural: (*rest.first()?).to_owned(),
            namespace: namespace.map(ToOwned::to_owned),
            name,
        })
    }

    fn has(&self, plural: &str, namespace: &str, name: &str) -> bool {
        self.plural == plural
            && self.namespace.as_deref().is_none_or(|own| own == namespace)
            && self.name.as_deref().is_none_or(|own| own == name)
    }
}

impl State {
    fn tell(&mut self, kind: &str, plural: &str, object: &Value) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        // The field `type` precedes the field `object`, as in a response from kube-apiserver.
        let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        self.watches.retain(|(scope, watch)| {
            !scope.has(plural, text("namespace"), text("name"))
                || watch.send(line.clone().into()).is_ok()
        });
    }

    fn discovery(&self, path: &str) -> Option<Value> {
        let version = |group: &str, version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
        if path == "/apis" {
            let groups: BTreeMap<_, _> = self
                .kinds
                .iter()
                .map(|&[group, of, ..]| (group, version(group, of)))
                .collect();
            let groups: Vec<Value> = groups
                .into_iter()
                .map(|(group, version)| json!({"name": group, "versions": [version], "preferredVersion": version}))
                .collect();
            return Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}));
        }
        let (group, version) = path.strip_prefix("/apis/")?.split_once('/')?;
        if version.contains('/') {
            return None;
        }
        let of = |kind: &&[&str; 4]| kind[..2] == [group, version];
        let resources: Vec<Value> = self
            .kinds
            .iter()
            .filter(of)
            .map(|[_, _, kind, plural]| {
                json!({
                    "name": plural, "singularName": "", "kind": kind, "namespaced": true,
                    "verbs": ["get", "list", "watch"],
                })
            })
            .collect();
        Some(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{version}"),
            "resources": resources,
        }))
    }

    fn is_served(&self, path: &str, plural: &str) -> bool {
        path.starts_with("/api/v1/")
            || plural == "kubeletauthentications"
            || self.kinds.iter().any(|kind| kind[3] == plural)
    }
}

impl Server {
    /// Starts an API server that serves all kinds that refer to identities.
    pub(super) fn start() -> Self {
        let server = Self::default();
        for kind in super::KINDS {
            server.serve(kind);
        }
        server
    }

    pub(super) fn access(&self) -> ClusterAccess {
        let server = self.clone();
        ClusterAccess::in_memory(move |request| {
            let server = server.clone();
            async move { server.answer(request).await }
        })
    }

    pub(super) fn serve(&self, kind: [&'static str; 4]) {
        self.0.lock().kinds.push(kind);
    }

    /// Stops serving a kind: its objects are deleted, and its watches end.
    pub(super) fn withdraw(&self, plural: &str) {
        let mut state = self.0.lock();
        state.kinds.retain(|kind| kind[3] != plural);
        state.objects.retain(|(of, ..), _| of != plural);
        state.watches.retain(|(scope, _)| scope.plural != plural);
    }

    /// Stores an object with these fields in addition to its metadata.
    pub(super) fn put(&self, plural: &str, namespace: &str, name: &str, fields: &Value) {
        let mut state = self.0.lock();
        state.version += 1;
        let mut object = fields.clone();
        object["metadata"]["name"] = json!(name);
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = json!(namespace);
        }
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let before = state.objects.insert(key, object.clone());
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        state.tell(kind, plural, &object);
    }

    pub(super) fn remove(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.0.lock();
        state.version += 1;
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let object = state.objects.remove(&key).unwrap();
        state.tell("DELETED", plural, &object);
    }

    /// Closes all watches. The controller sees later changes only after a new list.
    pub(super) fn break_watches(&self) {
        let mut state = self.0.lock();
        let plurals = state.watches.drain(..).map(|(scope, _)| scope.plural);
        let plurals: Vec<String> = plurals.collect();
        state.expired.extend(plurals);
    }

    /// Closes all watches in the middle of a line.
    pub(super) fn cut_watches(&self) {
        for (_, watch) in self.0.lock().watches.drain(..) {
            drop(watch.send(Bytes::from_static(b"{\"type\": \"ADDED\", \"object\": {\n")));
        }
    }

    pub(super) fn refuse(&self, plural: &str, status: Option<u16>) {
        let mut state = self.0.lock();
        match status {
            Some(status) => drop(state.refused.insert(plural.to_owned(), status)),
            None => drop(state.refused.remove(plural)),
        }
    }

    pub(super) fn has_large_pages_of(&self, plural: &str) {
        self.0.lock().large = Some(plural.to_owned());
    }

    pub(super) fn rival(&self, account: &'static str) {
        self.0.lock().rival = Some(account);
    }

    pub(super) fn object(&self, plural: &str, namespace: &str, name: &str) -> Value {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.0.lock().objects[&key].clone()
    }

    /// The calls so far about objects with this plural name.
    pub(super) fn requests(&self, plural: &str) -> Vec<String> {
        let state = self.0.lock();
        let own = |request: &&String| {
            let (_, path) = request.split_once(' ').unwrap();
            let (path, query) = path.split_once('?').unwrap();
            Scope::of(path, query).is_some_and(|scope| scope.plural == plural)
        };
        state.requests.iter().filter(own).cloned().collect()
    }

    /// The names in the open watches for this plural name.
    pub(super) fn watched(&self, plural: &str) -> Vec<Option<String>> {
        let state = self.0.lock();
        let open = state.watches.iter().filter(|(_, watch)| !watch.is_closed());
        let own = open.filter(|(scope, _)| scope.plural == plural);
        own.map(|(scope, _)| scope.name.clone()).collect()
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let mut state = self.0.lock();
        state
            .requests
            .push(format!("{} {path}?{query}", head.method));
        if let Some(found) = state.discovery(path) {
            return json_answer(200, &found);
        }
        let Some(scope) = Scope::of(path, query) else {
            return status(404);
        };
        if let Some(code) = state.refused.get(&scope.plural) {
            return status(*code);
        }
        if !state.is_served(path, &scope.plural) {
            return status(404);
        }
        let is_one = path.ends_with(&format!("/{}", scope.name.as_deref().unwrap_or("/")));
        match head.method {
            Method::PATCH => patch(&mut state, &scope, &body),
            Method::GET if is_one => get(&state, &scope),
            Method::GET if query.contains("watch=true") => watch(&mut state, scope),
            _ => list(&mut state, &scope, query),
        }
    }
}

fn key(scope: &Scope) -> (String, String, String) {
    let Scope {
        plural,
        namespace,
        name,
    } = scope.clone();
    (
        plural,
        namespace.unwrap_or_default(),
        name.unwrap_or_default(),
    )
}

fn get(state: &State, scope: &Scope) -> Answer {
    let found = state.objects.get(&key(scope));
    found.map_or_else(|| status(404), |object| json_answer(200, object))
}

fn patch(state: &mut State, scope: &Scope, body: &Bytes) -> Answer {
    const ANNOTATION: &str = "attestation.cluster.x-k8s.io/aws-account";
    let patch: Value = serde_json::from_slice(body).unwrap();
    state.version += 1;
    let (version, rival) = (state.version.to_string(), state.rival.take());
    let Some(object) = state.objects.get_mut(&key(scope)) else {
        return status(404);
    };
    let metadata = &mut object["metadata"];
    if let Some(rival) = rival {
        metadata["annotations"][ANNOTATION] = json!(rival);
        metadata["resourceVersion"] = json!(version);
    }
    if patch["metadata"]["resourceVersion"] != metadata["resourceVersion"] {
        return status(409);
    }
    metadata["annotations"][ANNOTATION] = patch["metadata"]["annotations"][ANNOTATION].clone();
    metadata["resourceVersion"] = json!(version);
    json_answer(200, object)
}

fn list(state: &mut State, scope: &Scope, query: &str) -> Answer {
    if state.large.as_ref() == Some(&scope.plural) && !query.ends_with("limit=1") {
        return respond(200, stream::iter([Err(too_long())]));
    }
    state.expired.remove(&scope.plural);
    let own = state.objects.iter();
    let own = own.filter(|((plural, namespace, name), _)| scope.has(plural, namespace, name));
    let items: Vec<&Value> = own.map(|(_, object)| object).collect();
    let version = state.version.to_string();
    json_answer(
        200,
        &json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items}),
    )
}

fn watch(state: &mut State, scope: Scope) -> Answer {
    if state.expired.contains(&scope.plural) {
        return status(410);
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    state.watches.push((scope, sender));
    let metadata = json!({"resourceVersion": state.version.to_string()});
    let bookmark = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "A", "metadata": metadata}});
    let bookmark = Bytes::from(format!("{bookmark}\n"));
    let lines = stream::unfold(receiver, move |mut receiver| {
        let bookmark = bookmark.clone();
        async move {
            let line = match timeout(BETWEEN_BOOKMARKS, receiver.recv()).await {
                Ok(line) => line?,
                Err(_) => bookmark,
            };
            Some((Ok(Frame::data(line)), receiver))
        }
    });
    respond(200, lines)
}

fn status(code: u16) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "", "message": "refused by the test",
        "code": code,
    });
    json_answer(code, &status)
}

pub(super) fn json_answer(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string()));
    let answer = Response::builder().status(code);
    let body = body.map_err(|never| match never {});
    answer.body(body.boxed_unsync()).unwrap()
}

fn respond(
    code: u16,
    frames: impl stream::Stream<Item = Result<Frame<Bytes>, BoxError>> + Send + 'static,
) -> Answer {
    let body = StreamBody::new(frames.boxed()).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}
