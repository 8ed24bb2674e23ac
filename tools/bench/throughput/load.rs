//! Concurrent requests from many machines, and their outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Config};
use serde_json::Value;

/// The number of concurrent calls.
const AT_ONCE: usize = 32;

/// The time after which a request counts as lost.
const DEADLINE: Duration = Duration::from_mins(5);

const GROUPS: [&str; 3] = [
    "system:bootstrappers",
    "system:bootstrappers:kubeadm:default-node-token",
    "system:authenticated",
];

/// A request from the holder of a bootstrap token.
pub struct Request {
    token: String,
    name: String,
    object: Vec<u8>,
}

impl Request {
    /// Creates the request `object` from the holder of the token that has this ID.
    pub fn new(token: &str, object: Value) -> Self {
        Self {
            token: token.to_owned(),
            name: object["metadata"]["name"].as_str().unwrap().to_owned(),
            object: object.to_string().into_bytes(),
        }
    }
}

/// The states of a request that a watch observed.
#[derive(Debug)]
struct Seen {
    created: Instant,
    issued: Option<Instant>,
    /// The number of observed states: created, approved, issued.
    states: usize,
}

/// The states of all requests that a watch observed.
#[derive(Debug, Default)]
pub struct Certificates(BTreeMap<String, Seen>);

impl Certificates {
    fn see(&mut self, csr: &CertificateSigningRequest) {
        let name = csr.metadata.name.clone().unwrap();
        let status = csr.status.as_ref();
        let now = Instant::now();
        let seen = self.0.entry(name).or_insert(Seen {
            created: now,
            issued: None,
            states: 0,
        });
        seen.states += 1;
        if seen.issued.is_none() && status.is_some_and(|status| status.certificate.is_some()) {
            seen.issued = Some(now);
        }
    }

    /// The number of requests without a certificate, or with more changes than one approval and one certificate.
    pub fn wrong(&self, requests: &[Request]) -> usize {
        let is_right = |request: &&Request| {
            self.0
                .get(&request.name)
                .is_some_and(|seen| seen.issued.is_some() && seen.states == 3)
        };
        requests.len() - requests.iter().filter(is_right).count()
    }

    /// The times from creation to issue, sorted.
    pub fn times(&self) -> Vec<Duration> {
        let seen = self.0.values();
        let mut times: Vec<Duration> = seen
            .filter_map(|seen| Some(seen.issued? - seen.created))
            .collect();
        times.sort_unstable();
        times
    }

    /// The number of certificates per second, from the first request to the last certificate.
    pub fn rate(&self) -> f64 {
        let first = self.0.values().map(|seen| seen.created).min().unwrap();
        let last = self
            .0
            .values()
            .filter_map(|seen| seen.issued)
            .max()
            .unwrap();
        self.0.len() as f64 / (last - first).as_secs_f64()
    }
}

pub async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.unwrap()).unwrap()
}

/// Creates the objects, and then writes their statuses.
pub async fn create(kubeconfig: &Path, objects: &[([Value; 3], [Value; 3])]) {
    let client = client(kubeconfig).await;
    let create = async |(objects, statuses): &([Value; 3], [Value; 3])| {
        for (object, status) in objects.iter().zip(statuses) {
            let (api, object) = place(&client, object);
            let created = api.create(&PostParams::default(), &object).await.unwrap();
            let (_, mut status) = place(&client, status);
            status.metadata.resource_version = created.metadata.resource_version;
            let name = status.metadata.name.clone().unwrap();
            let post = PostParams::default();
            let written = api.replace_status(&name, &post, &status);
            written.await.unwrap();
        }
    };
    futures::stream::iter(objects)
        .for_each_concurrent(AT_ONCE, create)
        .await;
}

/// The client for the kind and namespace of an object.
pub fn place(client: &Client, object: &Value) -> (Api<DynamicObject>, DynamicObject) {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let types = object.types.clone().unwrap();
    let (group, version) = types
        .api_version
        .split_once('/')
        .unwrap_or(("", &types.api_version));
    let kind = GroupVersionKind::gvk(group, version, &types.kind);
    let mut resource = ApiResource::from_gvk(&kind);
    if types.kind == "NodeIdentity" {
        resource.plural = "nodeidentities".to_owned();
    }
    let namespace = object.metadata.namespace.clone().unwrap();
    let api = Api::namespaced_with(client.clone(), &namespace, &resource);
    (api, object)
}

/// Creates the requests as the users of their tokens, with `pause` between them, and waits for their certificates.
pub async fn run(kubeconfig: &Path, requests: &[Request], pause: Duration) -> Certificates {
    let client = client(kubeconfig).await;
    let certificates = Arc::new(Mutex::new(Certificates::default()));
    let names: BTreeSet<String> = requests
        .iter()
        .map(|request| request.name.clone())
        .collect();
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let watch = tokio::spawn({
        let (certificates, client) = (certificates.clone(), client.clone());
        let mut waiting = names.clone();
        async move {
            let api: Api<CertificateSigningRequest> = Api::all(client);
            let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
            let mut ready = Some(ready);
            while let Some(event) = events.try_next().await.unwrap() {
                match event {
                    Event::InitDone => drop(ready.take().map(|ready| ready.send(()))),
                    Event::Apply(csr) if names.contains(csr.metadata.name.as_ref().unwrap()) => {
                        let mut certificates =
                            certificates.lock().unwrap_or_else(PoisonError::into_inner);
                        certificates.see(&csr);
                        if csr
                            .status
                            .is_some_and(|status| status.certificate.is_some())
                        {
                            waiting.remove(csr.metadata.name.as_ref().unwrap());
                        }
                    }
                    _ => {}
                }
                if waiting.is_empty() {
                    return;
                }
            }
        }
    });
    is_ready.await.unwrap();
    let file = async |(number, request): (u32, &Request)| {
        tokio::time::sleep(pause * number).await;
        let mut call =
            kube::core::Request::new("/apis/certificates.k8s.io/v1/certificatesigningrequests")
                .create(&PostParams::default(), request.object.clone())
                .unwrap();
        let user = format!("system:bootstrap:{}", request.token);
        let headers = call.headers_mut();
        headers.insert("Impersonate-User", user.parse().unwrap());
        for group in GROUPS {
            headers.append("Impersonate-Group", group.parse().unwrap());
        }
        client
            .request::<CertificateSigningRequest>(call)
            .await
            .unwrap();
    };
    let at_once = if pause.is_zero() {
        AT_ONCE
    } else {
        requests.len()
    };
    futures::stream::iter((0..).zip(requests))
        .for_each_concurrent(at_once, file)
        .await;
    // After a timeout, the requests without a certificate are counted as lost.
    drop(tokio::time::timeout(DEADLINE, watch).await);
    let mut certificates = certificates.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut certificates)
}

/// The calls in an API server's metrics, except watches.
pub fn calls(place: &str, metrics: &str) -> Vec<(String, f64)> {
    let mut calls = BTreeMap::new();
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix("apiserver_request_total{") else {
            continue;
        };
        let (labels, count) = rest.rsplit_once("} ").unwrap();
        let label = |name: &str| {
            let begin = format!("{name}=\"");
            let labels = labels.split(',');
            let mut values = labels.filter_map(|label| label.strip_prefix(&begin));
            values.next().unwrap_or_default().trim_end_matches('"')
        };
        let (verb, code) = (label("verb"), label("code"));
        let (resource, part) = (label("resource"), label("subresource"));
        if matches!(verb, "WATCH" | "CONNECT") {
            continue;
        }
        let what = format!("{place}: {verb} {resource}/{part} {code}");
        *calls.entry(what).or_default() += count.parse::<f64>().unwrap();
    }
    calls.into_iter().collect()
}
