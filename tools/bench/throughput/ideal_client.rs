//! A client that makes the controller's writes for each request, without making decisions.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{PartialObjectMeta, Request};
use kube::runtime::watcher::{self, Event, watcher};
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::load::{client, place};
use super::{USER, World};

/// The number of concurrent requests.
const AT_ONCE: usize = 64;

/// The media type of a response that contains only the metadata of the object.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// The controller's objects for one request, which are templates for copies.
#[derive(Debug)]
pub struct Copies {
    /// A NodeIdentity.
    pub record: Value,
    /// An Event.
    pub event: Value,
    /// The number of Events for one request, at most 1.
    pub events: f64,
    /// A Machine with the controller's condition as the only field in its status.
    pub machine: Value,
    /// The number of conditions for one request, at most 1.
    pub conditions: f64,
    /// A certificate, as base64.
    pub certificate: String,
}

/// Creates a NodeIdentity, an approval and a certificate for every new request, and an Event and a Machine's condition
/// for some requests. Like the controller, reads only the metadata of the responses, except for a NodeIdentity. Runs
/// until the future is dropped.
pub async fn run(management: &Path, workload: &Path, copies: Copies) {
    let (management, workload) = (client(management).await, client(workload).await);
    let requests: Api<CertificateSigningRequest> = Api::all(workload);
    let certificate = ByteString(BASE64_STANDARD.decode(&copies.certificate).unwrap());
    let count = AtomicUsize::new(0);
    let post = PostParams::default();
    let answer = async |csr: CertificateSigningRequest| {
        let name = csr.metadata.name.clone().unwrap();
        let (records, record) = copy(&management, &copies.record, &format!("ideal-{name}"));
        records.create(&post, &record).await.unwrap();

        let mut request = csr;
        request.status = Some(CertificateSigningRequestStatus {
            certificate: None,
            conditions: Some(vec![approval()]),
        });
        request.metadata = replace(&requests, "approval", &request).await;
        request.status.as_mut().unwrap().certificate = Some(certificate.clone());
        replace(&requests, "status", &request).await;

        let number = count.fetch_add(1, Ordering::Relaxed);
        if is_due(number, copies.events) {
            let (events, event) = copy(&management, &copies.event, &format!("ideal-{name}"));
            let object = serde_json::to_vec(&event).unwrap();
            let call = Request::new(events.resource_url()).create(&post, object);
            let mut call = call.unwrap();
            for_metadata(call.headers_mut());
            let answer = management.request::<PartialObjectMeta>(call).await;
            answer.unwrap();
        }
        if is_due(number, copies.conditions) {
            apply_condition(&management, &copies.machine, number).await;
        }
    };
    let events = watcher(requests.clone(), watcher::Config::default());
    let new = events.try_filter_map(async |event| {
        let Event::Apply(csr) = event else {
            return Ok(None);
        };
        let status = csr.status.as_ref();
        let is_new = status.is_none_or(|status| status.conditions.is_none());
        Ok(is_new.then_some(csr))
    });
    new.map(Result::unwrap)
        .for_each_concurrent(AT_ONCE, answer)
        .await;
}

/// Whether the request with this number gets a write, if this many requests of one get it.
fn is_due(number: usize, of_one: f64) -> bool {
    let before = |end: usize| (end as f64 * of_one).floor();
    before(number) < before(number + 1)
}

/// Replaces this part of a request, and returns the new metadata.
async fn replace(
    requests: &Api<CertificateSigningRequest>,
    part: &str,
    request: &CertificateSigningRequest,
) -> ObjectMeta {
    let name = request.metadata.name.as_deref().unwrap();
    let object = serde_json::to_vec(request).unwrap();
    let calls = Request::new(requests.resource_url());
    let call = calls.replace_subresource(part, name, &PostParams::default(), object);
    let mut call = call.unwrap();
    for_metadata(call.headers_mut());
    let client = requests.clone().into_client();
    let answer = client.request::<PartialObjectMeta>(call).await;
    answer.unwrap().metadata
}

/// Writes the condition of the Machine with this number, with the current time.
async fn apply_condition(management: &kube::Client, copied: &Value, number: usize) {
    let mut machine = copied.clone();
    let (name, ..) = World::machine(number);
    machine["metadata"]["name"] = json!(name);
    machine["status"]["conditions"][0]["lastTransitionTime"] = json!(Time(Timestamp::now()));
    let (api, _) = place(management, &machine);
    let parameters = PatchParams::apply(USER).force();
    let patch = Patch::Apply(&machine);
    let calls = Request::new(api.resource_url());
    let call = calls.patch_subresource("status", &name, &parameters, &patch);
    let mut call = call.unwrap();
    for_metadata(call.headers_mut());
    let answer = management.request::<PartialObjectMeta>(call).await;
    answer.unwrap();
}

/// Requests only the metadata of the written object.
fn for_metadata(headers: &mut HeaderMap) {
    headers.insert(ACCEPT, HeaderValue::from_static(METADATA));
}

fn approval() -> CertificateSigningRequestCondition {
    let now = Time(Timestamp::now());
    CertificateSigningRequestCondition {
        type_: "Approved".to_owned(),
        status: "True".to_owned(),
        reason: Some("Ideal".to_owned()),
        message: Some("This client approves every request.".to_owned()),
        last_transition_time: Some(now.clone()),
        last_update_time: Some(now),
    }
}

/// A copy of this object with this name, and the client for its kind and namespace.
fn copy(
    management: &kube::Client,
    copied: &Value,
    name: &str,
) -> (Api<DynamicObject>, DynamicObject) {
    let mut object = copied.clone();
    let namespace = &copied["metadata"]["namespace"];
    let labels = &copied["metadata"]["labels"];
    object["metadata"] = json!({"name": name, "namespace": namespace, "labels": labels});
    place(management, &object)
}
