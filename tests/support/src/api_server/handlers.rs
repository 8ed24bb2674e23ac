//! The execution of authenticated requests.

use serde_json::{Value, json};

use super::auth::{User, admit_node, asks_who, authorize};
use super::csr::{self, Part};
use super::custom;
use super::resource::{NODES, REQUESTS, Resource, Target, Verb};
use super::signer::{Signer, decide};
use super::status::{FieldError, Refusal, details};
use super::store::{Selection, Store, page};
use super::watch::WatchPlan;
use crate::pki::CertificateAuthority;

/// The maximum size of an object in etcd, in bytes.
const LARGEST_OBJECT: usize = 1_571_658;

/// The content type of server-side apply, which creates missing objects.
const APPLY: &str = "application/apply-patch+yaml";

/// The content of a response.
#[derive(Debug)]
pub(super) enum Reply {
    /// One JSON document.
    Json(u16, Value),
    /// Plain text.
    Text(u16, &'static str),
    /// A stream of changes.
    Watch(WatchPlan),
}

/// A request with its body.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) user: &'a User,
    pub(super) target: &'a Target,
    pub(super) content_type: &'a str,
    pub(super) body: &'a [u8],
}

/// Executes a request, or rejects it with a reason.
pub(super) fn handle(
    store: &mut Store,
    signer: &Signer,
    authority: &CertificateAuthority,
    call: &Call<'_>,
) -> Result<Reply, Refusal> {
    let target = call.target;
    authorize(call.user, target)?;
    // client-go's typed clients send protobuf by default.
    if call.content_type == "application/vnd.kubernetes.protobuf" {
        return Err(Refusal::unsupported_media_type(call.content_type));
    }
    if asks_who(target) {
        return Ok(Reply::Json(201, who(call.user)));
    }
    let Some(resource) = target.resource(store.resources()) else {
        return Ok(without_resource(store, target));
    };
    let stored = |object: &Value| Reply::Json(200, resource.show(object));
    match target.verb {
        Verb::Create => {
            let object = create(store, resource, call)?;
            if resource == &REQUESTS {
                decide(
                    store,
                    signer,
                    authority,
                    object["metadata"]["name"].as_str().unwrap(),
                );
            }
            Ok(Reply::Json(201, object))
        }
        Verb::Get => Ok(stored(&*store.get(
            resource,
            &target.namespace,
            &target.name,
        )?)),
        Verb::List => {
            let items = store.list(&Selection::parse(resource, target)?);
            Ok(Reply::Json(
                200,
                page(resource, store.version(), &items, target),
            ))
        }
        Verb::Watch => WatchPlan::new(store, resource, target).map(Reply::Watch),
        Verb::Update => {
            let object = parse(call.body)?;
            custom::check_replacement(resource, &object)?;
            update(store, resource, call, object).map(|object| stored(&object))
        }
        Verb::Patch => {
            let known = store.get(resource, &target.namespace, &target.name);
            if call.content_type == APPLY && known.is_err() {
                return create(store, resource, call).map(|object| Reply::Json(201, object));
            }
            let object = patched(store, resource, call)?;
            update(store, resource, call, object).map(|object| stored(&object))
        }
        Verb::Delete => delete(store, resource, call),
        Verb::Other => Err(Refusal::new(
            405,
            "MethodNotAllowed",
            "method not allowed",
            Value::Null,
        )),
    }
}

fn who(user: &User) -> Value {
    json!({
        "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "status": {"userInfo": {
            "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        }},
    })
}

fn without_resource(store: &Store, target: &Target) -> Reply {
    match target.path.trim_end_matches('/') {
        "/readyz" | "/livez" | "/healthz" => Reply::Text(200, "ok"),
        "/version" => Reply::Json(
            200,
            json!({
                "major": "1", "minor": "36", "gitVersion": "v1.36.3",
                "gitCommit": "", "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z",
                "goVersion": "go1.26.8", "compiler": "gc", "platform": "linux/amd64",
            }),
        ),
        path => super::discovery::answer(store.resources(), path)
            .map_or(Reply::Text(404, "404 page not found\n"), |found| {
                Reply::Json(200, found)
            }),
    }
}

fn parse(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body)
        .ok()
        .filter(Value::is_object)
        .ok_or_else(|| Refusal::bad_request("the object provided is unrecognized"))
}

fn create(
    store: &mut Store,
    resource: &'static Resource,
    call: &Call<'_>,
) -> Result<Value, Refusal> {
    let mut object = parse(call.body)?;
    let expected = (resource.api_version(), resource.kind);
    let given = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    if (given("apiVersion"), given("kind").as_str()) != expected {
        let message = format!(
            "the API version in the data ({}, Kind={}) does not match the expected ({}, Kind={})",
            given("apiVersion"),
            given("kind"),
            expected.0,
            expected.1,
        );
        return Err(Refusal::bad_request(&message));
    }
    let name = name_of_new(resource, &mut object)?;
    admit_node(call.user, call.target, &name)?;
    let metadata = &mut object["metadata"];
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove(field);
        }
    }
    if resource.namespaced {
        metadata["namespace"] = call.target.namespace.as_str().into();
    }
    if resource.custom {
        custom::prepare_new(resource, &mut object);
    }
    if resource == &REQUESTS {
        call.user.stamp(&mut object["spec"]);
        object["status"] = json!({});
        let errors = csr::check_spec(&object["spec"]);
        if !errors.is_empty() {
            return Err(Refusal::invalid(resource, &name, &errors));
        }
    }
    if call.body.len() > LARGEST_OBJECT {
        let message = "etcdserver: request is too large";
        return Err(Refusal::new(500, "InternalError", message, json!({})));
    }
    if call.target.parameter("dryRun").is_some() {
        return Ok(object);
    }
    store
        .create(resource, object)
        .map(|object| (*object).clone())
}

fn name_of_new(resource: &Resource, object: &mut Value) -> Result<String, Refusal> {
    let text = |field: &str| {
        object["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let mut name = text("name");
    if name.is_empty() && !text("generateName").is_empty() {
        let suffix: String = super::random_uid().chars().take(5).collect();
        name = format!("{}{suffix}", text("generateName"));
    }
    let error = if name.is_empty() {
        Some(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ))
    } else if matches!(name.as_str(), "." | "..") || name.contains(['/', '%']) {
        let why = "may not be '.' or '..' and may not contain '/' or '%'";
        Some(FieldError::invalid(
            "metadata.name",
            &format!("{name:?}"),
            why,
        ))
    } else {
        None
    };
    match error {
        Some(error) => Err(Refusal::invalid(resource, &name, &[error])),
        None => {
            object["metadata"]["name"] = name.as_str().into();
            Ok(name)
        }
    }
}

fn patched(store: &Store, resource: &'static Resource, call: &Call<'_>) -> Result<Value, Refusal> {
    let target = call.target;
    let mut object = (*store.get(resource, &target.namespace, &target.name)?).clone();
    let patch: Value = serde_json::from_slice(call.body)
        .map_err(|_| Refusal::bad_request("error decoding patch"))?;
    match call.content_type {
        // Lists are replaced, and not merged as in strategic merge patches. Fields do not have owners.
        APPLY | "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
            json_patch::merge(&mut object, &patch);
        }
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_value(patch)
                .map_err(|_| Refusal::bad_request("error decoding patch"))?;
            json_patch::patch(&mut object, &patch).map_err(|error| {
                let message = format!(
                    "the server rejected our request due to an error in our request: {error}"
                );
                Refusal::new(422, "Invalid", &message, json!({}))
            })?;
        }
        other => return Err(Refusal::unsupported_media_type(other)),
    }
    Ok(object)
}

fn update(
    store: &mut Store,
    resource: &'static Resource,
    call: &Call<'_>,
    mut object: Value,
) -> Result<Value, Refusal> {
    let target = call.target;
    let name = target.name.as_str();
    admit_node(call.user, target, name)?;
    let old = store.get(resource, &target.namespace, name)?;
    let given = |field: &str| {
        object["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    if given("name") != name {
        let message = format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            given("name")
        );
        return Err(Refusal::bad_request(&message));
    }
    let (uid, known) = (
        given("uid"),
        old["metadata"]["uid"].as_str().unwrap_or_default(),
    );
    if !uid.is_empty() && uid != known {
        let why = format!(
            "StorageError: invalid object, Code: 4, AdditionalErrorMsg: Precondition failed: \
             UID in precondition: {uid}, UID in object meta: {known}"
        );
        return Err(Refusal::conflict(resource, name, &why));
    }
    let version = &object["metadata"]["resourceVersion"];
    if version.as_str().is_some_and(|it| !it.is_empty())
        && *version != old["metadata"]["resourceVersion"]
    {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        return Err(Refusal::conflict(resource, name, why));
    }
    keep_identity(&old, &mut object);
    if resource == &REQUESTS {
        let part = Part::of(&target.subresource);
        csr::prepare_update(part, &old, &mut object);
        let errors = csr::check_update(part, &old, &object);
        if !errors.is_empty() {
            return Err(Refusal::invalid(resource, name, &errors));
        }
    } else if resource == &NODES && target.subresource == "status" {
        object["spec"] = old["spec"].clone();
    } else if resource.custom {
        custom::prepare_update(resource, &target.subresource, &old, &mut object);
    }
    let stored = store.replace(resource, object);
    if custom::is_released(&stored) {
        store.delete(resource, &target.namespace, name)?;
    }
    Ok((*stored).clone())
}

/// Restores the fields that no update can change. The store sets a new `resourceVersion` if the object differs.
fn keep_identity(old: &Value, object: &mut Value) {
    for field in ["kind", "apiVersion"] {
        object[field] = old[field].clone();
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "resourceVersion",
    ] {
        match &old["metadata"][field] {
            Value::Null => {}
            value => object["metadata"][field] = value.clone(),
        }
    }
}

fn delete(
    store: &mut Store,
    resource: &'static Resource,
    call: &Call<'_>,
) -> Result<Reply, Refusal> {
    let target = call.target;
    let object = store.get(resource, &target.namespace, &target.name)?;
    let options: Value = serde_json::from_slice(call.body).unwrap_or_default();
    for field in ["uid", "resourceVersion"] {
        let wanted = &options["preconditions"][field];
        let found = &object["metadata"][field];
        if !wanted.is_null() && wanted != found {
            let why = format!("Precondition failed: {field} in precondition: {wanted}, {found}");
            return Err(Refusal::conflict(resource, &target.name, &why));
        }
    }
    if custom::is_held(&object) {
        let held = store.replace(resource, custom::marked_for_deletion(&object));
        return Ok(Reply::Json(200, resource.show(&held)));
    }
    store.delete(resource, &target.namespace, &target.name)?;
    let mut details = details(resource.group, resource.plural, &target.name);
    details["uid"] = object["metadata"]["uid"].clone();
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details,
    });
    Ok(Reply::Json(200, body))
}
