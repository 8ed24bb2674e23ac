//! A management cluster with many Clusters and Machines.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use data_encoding::BASE64;
use hyper::Method;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api_server::{Answer, ApiServer, Call, Network};

/// The path for listing all node identities.
const IDENTITIES: &str = "/apis/attestation.cluster.x-k8s.io/v1alpha1/nodeidentities";

/// The path for listing all Machines.
const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/machines";

/// CA certificates and their keys, in base64.
pub(crate) type Cas = Vec<(String, String)>;

/// The management cluster's objects, and the writes to them.
pub(crate) struct Management {
    pub(crate) server: Arc<ApiServer>,
    clusters: usize,
    machines: usize,
    cas: Arc<Cas>,
    statuses: Mutex<HashMap<usize, Value>>,
    lease: Mutex<Lease>,
    /// The node identities in each namespace.
    identities: Arc<Mutex<BTreeMap<String, Value>>>,
    /// The patches of Machines and of other node identities, keyed by namespace and name. Without them, the controller
    /// would repeat its writes, because the objects would not contain them.
    patches: Patches,
}

type Patches = Arc<Mutex<HashMap<(String, String), Value>>>;

/// The Lease, and the times of its renewals.
#[derive(Debug, Default)]
struct Lease {
    object: Option<Value>,
    version: u64,
    written: Option<Instant>,
    longest_gap: Duration,
    holders: Vec<String>,
}

/// Creates CAs for this number of clusters.
pub(crate) fn cas(count: usize) -> Arc<Cas> {
    let ca = |_| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        let text = |text: String| BASE64.encode(text.as_bytes());
        (text(certificate), text(key.serialize_pem()))
    };
    Arc::new((0..count).map(ca).collect())
}

impl Management {
    pub(crate) fn new(clusters: usize, machines: usize, cas: Arc<Cas>, network: Network) -> Self {
        Self {
            server: Arc::new(ApiServer::new(network)),
            clusters,
            machines,
            cas,
            statuses: Mutex::default(),
            lease: Mutex::default(),
            identities: Arc::default(),
            patches: Arc::default(),
        }
    }

    /// The longest time between two writes of a Lease.
    pub(crate) fn longest_lease_gap(&self) -> Duration {
        self.lease.lock().unwrap().longest_gap
    }

    /// The holders of the Lease, in order.
    pub(crate) fn leaders(&self) -> Vec<String> {
        self.lease.lock().unwrap().holders.clone()
    }

    /// Changes the Machine with this number.
    pub(crate) fn machine_changes(&self, number: usize) {
        self.server
            .send(MACHINES, "MODIFIED", &self.machine(number));
    }

    pub(crate) fn answer(&self, call: &Call) -> Answer {
        let parts: Vec<&str> = call.path.split('/').skip(1).collect();
        match (&call.method, parts.as_slice()) {
            (&Method::GET, ["apis"]) => groups(),
            (&Method::GET, ["apis", group, version]) => resources(group, version),
            (_, [.., "namespaces", _, "leases"]) if call.method == Method::POST => {
                self.put_lease(call)
            }
            (_, [.., "leases", _]) => match call.method {
                Method::GET => self.lease(),
                _ => self.put_lease(call),
            },
            (&Method::PUT, [.., "kubeletauthentications", name, "status"]) => {
                let number = name.trim_start_matches('c').parse().unwrap();
                let status = call.body["status"].clone();
                self.statuses.lock().unwrap().insert(number, status);
                self.server.send(
                    "/apis/attestation.cluster.x-k8s.io/v1alpha1/kubeletauthentications",
                    "MODIFIED",
                    &self.authentication(number),
                );
                Answer::Object(self.authentication(number))
            }
            (&Method::POST, [.., "namespaces", namespace, "nodeidentities"]) => {
                let mut object = written(call);
                object["metadata"]["namespace"] = json!(namespace);
                let mut identities = self.identities.lock().unwrap();
                identities.insert((*namespace).to_owned(), object.clone());
                drop(identities);
                for path in [&call.path, IDENTITIES] {
                    self.server.send(path, "ADDED", &object);
                }
                Answer::Object(object)
            }
            (&Method::PATCH, [.., "namespaces", namespace, "machines", name, "status"]) => {
                self.patch(namespace, name, call);
                if let Some(number) = self.machine_number(namespace, name) {
                    self.machine_changes(number);
                }
                Answer::Object(written(call))
            }
            (&Method::PATCH, [.., "namespaces", namespace, "nodeidentities", name]) => {
                let mut identities = self.identities.lock().unwrap();
                let joined = identities.get_mut(*namespace);
                let Some(object) = joined.filter(|one| one["metadata"]["name"] == **name) else {
                    self.patch(namespace, name, call);
                    return Answer::Object(written(call));
                };
                json_patch::merge(object, &call.body);
                let version = object["metadata"]["resourceVersion"].as_str().unwrap();
                let version: u64 = version.parse().unwrap();
                object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
                self.server.send(IDENTITIES, "MODIFIED", object);
                Answer::Object(object.clone())
            }
            (&Method::POST | &Method::PATCH, _) => Answer::Object(written(call)),
            (&Method::GET, _) if call.is_watch() => Answer::Watch,
            (&Method::GET, [.., "namespaces", namespace, "kubeadmconfigs", name]) => self
                .machine_number(namespace, name)
                .map_or(Answer::Status(404), |number| {
                    Answer::Object(self.config(number))
                }),
            (&Method::GET, [.., "namespaces", _, "secrets", name]) => self
                .secret(name)
                .map_or(Answer::Status(404), Answer::Object),
            (&Method::GET, [.., "namespaces", namespace, "nodeidentities", _]) => {
                let identities = self.identities.lock().unwrap();
                let found = identities.get(*namespace).cloned();
                found.map_or(Answer::Status(404), Answer::Object)
            }
            (&Method::GET, [.., kind]) => self.list(kind, call),
            _ => Answer::Status(404),
        }
    }

    fn list(&self, kind: &str, call: &Call) -> Answer {
        let (clusters, machines) = (self.clusters, self.machines);
        let copy = Arc::new(self.copy());
        let of = move |count: usize, item: fn(&Self, usize) -> Value| {
            Answer::Items(count, Box::new(move |number| item(&copy, number)))
        };
        match kind {
            "kubeletauthentications" => of(clusters, Self::authentication),
            "nodeidentities" => {
                let namespace = call.path.split('/').rev().nth(1);
                let only = (call.path != IDENTITIES).then(|| namespace.unwrap_or_default());
                let identities = self.identities.lock().unwrap();
                let joined = identities
                    .iter()
                    .filter(|(one, _)| only.is_none_or(|only| only == *one));
                let joined: Vec<Value> = joined.map(|(_, object)| object.clone()).collect();
                drop(identities);
                let is_listed = |number: &usize| {
                    only.is_none_or(|only| only == format!("t{}", number % clusters))
                };
                // Every Machine has a record, except the first Machine of each cluster.
                let rest: Vec<usize> = (clusters..machines).filter(is_listed).collect();
                let count = joined.len() + rest.len();
                let patches = self.patches.clone();
                let item = move |number: usize| match number.checked_sub(joined.len()) {
                    None => joined[number].clone(),
                    Some(number) => patched(record(clusters, rest[number]), &patches),
                };
                Answer::Items(count, Box::new(item))
            }
            "clusters" => of(clusters, |_, number| cluster(number)),
            "machines" => of(machines, Self::machine),
            "secrets" => {
                let fields = call.query.get("fieldSelector").map(String::as_str);
                let name = fields.and_then(|fields| fields.strip_prefix("metadata.name="));
                match name.and_then(|name| self.secret(name)) {
                    Some(secret) => Answer::Items(1, Box::new(move |_| secret.clone())),
                    None => of(0, Self::machine),
                }
            }
            _ => of(0, Self::machine),
        }
    }

    /// Creates a copy that shares the API server, the CAs and the node identities, for the closures that create list
    /// items.
    fn copy(&self) -> Self {
        Self {
            server: self.server.clone(),
            clusters: self.clusters,
            machines: self.machines,
            cas: self.cas.clone(),
            statuses: Mutex::new(self.statuses.lock().unwrap().clone()),
            lease: Mutex::default(),
            identities: self.identities.clone(),
            patches: self.patches.clone(),
        }
    }

    fn patch(&self, namespace: &str, name: &str, call: &Call) {
        let key = (namespace.to_owned(), name.to_owned());
        let mut patches = self.patches.lock().unwrap();
        json_patch::merge(patches.entry(key).or_default(), &call.body);
    }

    fn lease(&self) -> Answer {
        let lease = self.lease.lock().unwrap().object.clone();
        lease.map_or(Answer::Status(404), Answer::Object)
    }

    fn put_lease(&self, call: &Call) -> Answer {
        let mut lease = self.lease.lock().unwrap();
        let read = call.body["metadata"]["resourceVersion"].as_str();
        let known = lease.object.as_ref().map(|_| lease.version.to_string());
        if read != known.as_deref() {
            return Answer::Status(409);
        }
        lease.version += 1;
        let now = Instant::now();
        let holder = call.body["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default();
        if lease.holders.last().is_some_and(|last| last == holder)
            && let Some(written) = lease.written
        {
            lease.longest_gap = lease.longest_gap.max(now - written);
        } else {
            lease.holders.push(holder.to_owned());
        }
        lease.written = Some(now);
        let mut object = call.body.clone();
        object["metadata"]["resourceVersion"] = json!(lease.version.to_string());
        lease.object = Some(object.clone());
        Answer::Object(object)
    }

    fn authentication(&self, number: usize) -> Value {
        let mut object = json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
            "metadata": metadata(number, &format!("c{number}")),
            "spec": {
                "clusterName": format!("c{number}"), "authorizedAttestors": ["null"],
                "autoApproveBindings": "Remove",
            },
        });
        if let Some(status) = self.statuses.lock().unwrap().get(&number) {
            object["status"] = status.clone();
        }
        object
    }

    /// The Machine with this number. The first Machine of each cluster is joining.
    fn machine(&self, number: usize) -> Value {
        let (cluster, member) = (number % self.clusters, number / self.clusters);
        let name = format!("m{member}");
        let mut machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": metadata(cluster, &name),
            "spec": {
                "clusterName": format!("c{cluster}"),
                "providerID": format!("metal:///rack/m{}", member + 1),
                "bootstrap": {
                    "configRef": {
                        "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name,
                    },
                    "dataSecretName": name,
                },
                "infrastructureRef": {
                    "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "MetalMachine", "name": name,
                },
            },
            "status": {
                "addresses": [
                    {"type": "Hostname", "address": format!("n{}", member + 1)},
                    {"type": "InternalIP", "address": "10.0.0.7"},
                ],
                "initialization": {"bootstrapDataSecretCreated": true, "infrastructureProvisioned": true},
                "phase": "Running",
            },
        });
        if member == 0 {
            // This Machine joins.
            machine["status"]["phase"] = json!("Provisioned");
        } else {
            machine["status"]["nodeRef"] = json!({"name": format!("n{}", member + 1)});
        }
        // The filler is as long as the fields that Cluster API writes, including managed fields.
        machine["metadata"]["annotations"] = json!({"filler": "x".repeat(3000)});
        patched(machine, &self.patches)
    }

    fn config(&self, number: usize) -> Value {
        let (cluster, member) = (number % self.clusters, number / self.clusters);
        let token = if member == 0 {
            "abcdef".to_owned()
        } else {
            format!("{member:06}")
        };
        json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig",
            "metadata": metadata(cluster, &format!("m{member}")),
            "spec": {
                "files": [{"path": "/etc/a", "content": "x".repeat(3000)}],
                "joinConfiguration": {"discovery": {"bootstrapToken": {
                    "token": format!("{token}.secretsecretsecr"),
                }}},
            },
            "status": {"dataSecretName": format!("m{member}")},
        })
    }

    fn machine_number(&self, namespace: &str, name: &str) -> Option<usize> {
        let cluster: usize = namespace.strip_prefix('t')?.parse().ok()?;
        let member: usize = name.strip_prefix('m')?.parse().ok()?;
        Some(member * self.clusters + cluster)
    }

    fn secret(&self, name: &str) -> Option<Value> {
        let (cluster, kind) = name.split_once('-')?;
        let number: usize = cluster.strip_prefix('c')?.parse().ok()?;
        let (certificate, key) = self.cas.get(number)?;
        let data = match kind {
            "ca" => json!({"tls.crt": certificate, "tls.key": key}),
            "kubeconfig" => json!({"value": BASE64.encode(kubeconfig(certificate).as_bytes())}),
            _ => return None,
        };
        Some(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata(number, name), "data": data,
        }))
    }
}

fn cluster(number: usize) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": metadata(number, &format!("c{number}")),
        "spec": {
            "controlPlaneEndpoint": {"host": "203.0.113.7", "port": 6443},
            "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/12"]}},
        },
        "status": {"phase": "Provisioned"},
    })
}

fn kubeconfig(ca: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {
            "server": "https://203.0.113.7:6443", "certificate-authority-data": ca,
        }}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {"token": "secret"}}],
    })
    .to_string()
}

/// The object with its patches.
fn patched(mut object: Value, patches: &Patches) -> Value {
    let [namespace, name] = ["namespace", "name"].map(|key| {
        let text = object["metadata"][key].as_str();
        text.unwrap_or_default().to_owned()
    });
    if let Some(patch) = patches.lock().unwrap().get(&(namespace, name)) {
        json_patch::merge(&mut object, patch);
    }
    object
}

/// The record of a Machine that has joined.
fn record(clusters: usize, machine: usize) -> Value {
    let (cluster, member) = (machine % clusters, machine / clusters);
    let node = format!("n{}", member + 1);
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
        "metadata": metadata(cluster, &format!("c{cluster}.{node}")),
        "spec": {
            "clusterName": format!("c{cluster}"), "nodeName": node,
            "uid": "00112233445566778899aabbccddeeff",
            "providerID": format!("metal:///rack/m{}", member + 1),
            "attestor": "null", "machineName": format!("m{member}"),
            "generation": 1, "notAfter": "2100-01-01T00:00:00Z",
            "opened": {
                "keySHA256": "0123456789abcdef".repeat(4),
                "requestName": format!("kubelet-authenticator-{}", "a".repeat(52)),
                "requestUID": "00010203-0405-0607-0809-0a0b0c0d0e0f",
                "time": "2026-11-01T00:00:00Z",
            },
        },
    })
}

fn metadata(cluster: usize, name: &str) -> Value {
    json!({
        "name": name, "namespace": format!("t{cluster}"), "uid": format!("{cluster}-{name}"),
        "resourceVersion": "1", "generation": 1,
        "labels": {"cluster.x-k8s.io/cluster-name": format!("c{cluster}")},
    })
}

/// Returns the sent object as the API server stores it.
pub(crate) fn written(call: &Call) -> Value {
    let mut object = call.body.clone();
    object["metadata"]["resourceVersion"] = json!("2");
    if object["metadata"]["uid"].is_null() {
        object["metadata"]["uid"] = json!("00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
    object
}

fn groups() -> Answer {
    let group = |name: &str| {
        let version = json!({"groupVersion": format!("{name}/v1beta2"), "version": "v1beta2"});
        json!({"name": name, "versions": [version], "preferredVersion": version})
    };
    let names = ["cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io"];
    Answer::Object(json!({
        "apiVersion": "v1", "kind": "APIGroupList",
        "groups": names.map(group),
    }))
}

fn resources(group: &str, version: &str) -> Answer {
    let kinds: &[(&str, &str)] = match (group, version) {
        ("cluster.x-k8s.io", "v1beta2") => &[
            ("clusters", "Cluster"),
            ("machines", "Machine"),
            ("machinepools", "MachinePool"),
        ],
        ("bootstrap.cluster.x-k8s.io", "v1beta2") => &[("kubeadmconfigs", "KubeadmConfig")],
        _ => return Answer::Status(404),
    };
    let resource = |(name, kind): &(&str, &str)| json!({"name": name, "kind": kind, "namespaced": true, "singularName": "", "verbs": ["list"]});
    Answer::Object(json!({
        "apiVersion": "v1", "kind": "APIResourceList", "groupVersion": format!("{group}/{version}"),
        "resources": kinds.iter().map(resource).collect::<Vec<_>>(),
    }))
}
