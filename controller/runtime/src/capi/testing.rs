//! Cluster API objects as the API server returns them, in both contracts.

use std::convert::Infallible;
use std::future::pending;
use std::sync::LazyLock;

use data_encoding::BASE64URL_NOPAD;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::client::Body;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tower::Service;

use super::cache::Objects;
use super::objects::{
    AnyControlPlane, BootstrapConfig, Cluster, ControlPlaneOf, InfraMachine, InfraMachinePool,
    Kept, KubeadmControlPlane, Machine, MachineDeployment, MachinePool, MachineTemplate, ObjectKey,
    PoolConfig, Raw, Watched as _,
};
use super::selection::Selection;
use super::store::Stored;
use crate::metrics::Metrics;
use crate::watch::Skipped;

/// The contract version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contract {
    V1Beta1,
    V1Beta2,
}

pub(super) const BOTH: [Contract; 2] = [Contract::V1Beta1, Contract::V1Beta2];

pub(super) const NAMESPACE: &str = "tenant-a";

impl Contract {
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
        }
    }

    fn object(self, group: &str, kind: &str, name: &str) -> Value {
        json!({
            "apiVersion": format!("{group}/{}", self.version()),
            "kind": kind,
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": format!("{kind}-{name}"),
                "resourceVersion": "7", "generation": 1,
                "labels": {"cluster.x-k8s.io/cluster-name": "prod-1"},
            },
        })
    }

    pub(super) fn reference(self, group: &str, kind: &str, name: &str) -> Value {
        match self {
            Self::V1Beta1 => json!({
                "apiVersion": format!("{group}/v1beta1"), "kind": kind,
                "namespace": NAMESPACE, "name": name,
            }),
            Self::V1Beta2 => json!({"apiGroup": group, "kind": kind, "name": name}),
        }
    }

    fn bootstrapped(self) -> Value {
        match self {
            Self::V1Beta1 => json!({
                "bootstrapReady": true, "infrastructureReady": true,
                "conditions": [{"type": "BootstrapReady", "status": "True"}],
            }),
            Self::V1Beta2 => json!({
                "initialization": {
                    "bootstrapDataSecretCreated": true, "infrastructureProvisioned": true,
                },
                "conditions": [{"type": "BootstrapConfigReady", "status": "True"}],
            }),
        }
    }

    /// Cluster `prod-1`.
    pub(super) fn cluster(self) -> Value {
        let mut cluster = self.object("cluster.x-k8s.io", "Cluster", "prod-1");
        cluster["spec"] = json!({
            "controlPlaneEndpoint": {"host": "203.0.113.7", "port": 6443},
            "clusterNetwork": {
                "services": {"cidrBlocks": ["10.96.0.0/12", "fd00:1::/108"]},
                "pods": {"cidrBlocks": ["10.244.0.0/16"]},
            },
            "infrastructureRef":
                self.reference("infrastructure.cluster.x-k8s.io", "GenericCluster", "prod-1"),
        });
        cluster["status"] = json!({"phase": "Provisioned"});
        cluster
    }

    /// A Machine of the cluster, with `InfraMachine` `<name>-infra` and `KubeadmConfig` `<name>-config`.
    pub(super) fn machine(self, name: &str) -> Value {
        let mut machine = self.object("cluster.x-k8s.io", "Machine", name);
        let infrastructure = "infrastructure.cluster.x-k8s.io";
        let bootstrap = "bootstrap.cluster.x-k8s.io";
        machine["spec"] = json!({
            "clusterName": "prod-1",
            "providerID": format!("generic:///rack/{name}"),
            "bootstrap": {
                "configRef":
                    self.reference(bootstrap, "KubeadmConfig", &format!("{name}-config")),
                "dataSecretName": format!("{name}-config"),
            },
            "infrastructureRef":
                self.reference(infrastructure, "GenericMachine", &format!("{name}-infra")),
        });
        machine["status"] = self.bootstrapped();
        machine["status"]["addresses"] = json!([
            {"type": "Hostname", "address": format!("{name}.Example.com")},
            {"type": "InternalIP", "address": "10.0.0.7"},
            {"type": "InternalIP", "address": "2001:db8::7"},
            {"type": "InternalDNS", "address": format!("{name}.example.com")},
            {"type": "ExternalIP", "address": "198.51.100.7"},
        ]);
        machine
    }

    /// A `MachinePool` of the cluster with `KubeadmConfig` `<name>-config` and these members.
    pub(super) fn pool(self, name: &str, provider_ids: &[&str]) -> Value {
        let mut pool = self.object("cluster.x-k8s.io", "MachinePool", name);
        let bootstrap = "bootstrap.cluster.x-k8s.io";
        pool["spec"] = json!({
            "clusterName": "prod-1",
            "replicas": provider_ids.len(),
            "providerIDList": provider_ids,
            "template": {"spec": {
                "clusterName": "prod-1",
                "bootstrap": {
                    "configRef":
                        self.reference(bootstrap, "KubeadmConfig", &format!("{name}-config")),
                },
            }},
        });
        pool["status"] = self.bootstrapped();
        pool
    }

    /// The `KubeadmConfig` of this Machine or pool, with a token with this ID.
    pub(super) fn config(self, of: &str, token: &str) -> Value {
        let name = format!("{of}-config");
        let mut config = self.object("bootstrap.cluster.x-k8s.io", "KubeadmConfig", &name);
        config["spec"] = json!({
            "files": [{"path": "/etc/secret", "content": "hidden-in-a-file"}],
            "joinConfiguration": {
                "discovery": {"bootstrapToken": {
                    "apiServerEndpoint": "203.0.113.7:6443",
                    "caCertHashes": ["sha256:00"],
                    "token": format!("{token}.secretsecretsecr"),
                }},
                "nodeRegistration": {"kubeletExtraArgs": {"cloud-provider": "external"}},
            },
        });
        config["status"] = json!({"dataSecretName": name});
        config
    }
}

/// The object with this value at `pointer`. The last segment can be missing in the object.
pub(super) fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[field] = value;
    object
}

/// The runtime for the clients' tasks.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).build().unwrap()
});

/// The kept fields of the object.
pub(super) fn kept<K: Kept>(object: Value) -> Option<K> {
    raw::<K>(object).kept().unwrap()
}

/// The length of the kept fields, serialized as text, for an object of the kind in this row of the table of hostile
/// values. An unreadable object has no kept fields. `None` if no kind has this row.
pub(crate) fn kept_len(row: &str, object: &Value) -> Option<usize> {
    let len: fn(&Value) -> usize = match row {
        "Cluster" => len_of::<Cluster>,
        "Cluster with its control plane" => len_of::<ControlPlaneOf>,
        "control plane of any kind" => len_of::<AnyControlPlane>,
        "InfraMachine" => len_of::<InfraMachine>,
        "InfraMachinePool" => len_of::<InfraMachinePool>,
        "KubeadmConfig" => len_of::<BootstrapConfig>,
        "KubeadmConfig of a pool" => len_of::<PoolConfig>,
        "KubeadmConfigTemplate" => len_of::<MachineTemplate>,
        "KubeadmControlPlane" => len_of::<KubeadmControlPlane>,
        "Machine" => len_of::<Machine>,
        "MachineDeployment" => len_of::<MachineDeployment>,
        "MachinePool" => len_of::<MachinePool>,
        _ => return None,
    };
    Some(len(object))
}

fn len_of<K: Kept>(object: &Value) -> usize {
    let kept = raw::<K>(object.clone()).kept();
    kept.ok()
        .flatten()
        .map_or(0, |kept| format!("{kept:?}").len())
}

fn raw<K: Kept>(object: Value) -> Raw<K> {
    serde_json::from_value(object).unwrap()
}

/// A cache without watches. The test adds the objects.
pub(super) fn objects() -> Objects {
    answered_by(|url| panic!("{url} is asked for"))
}

/// Like [`objects`], but an API server answers requests by path.
pub(super) fn answered_by(answer: impl Fn(&str) -> Value + Clone + Send + 'static) -> Objects {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(request.uri().path());
        async move {
            let status = answer["code"].as_u64().unwrap_or(200);
            let response = Response::builder().status(u16::try_from(status).unwrap());
            let body = Full::new(Bytes::from(answer.to_string()));
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    served_by(service)
}

/// Like [`objects`], but the API server never answers.
pub(super) fn unanswered() -> Objects {
    served_by(tower::service_fn(|_: Request<Body>| {
        pending::<Result<Response<Full<Bytes>>, Infallible>>()
    }))
}

fn served_by<S>(service: S) -> Objects
where
    S: Service<Request<Body>, Response = Response<Full<Bytes>>, Error = Infallible>,
    S: Send + 'static,
    S::Future: Send + 'static,
{
    // The client's tasks run on the runtime's thread, while the test's thread waits.
    let _entered = RUNTIME.enter();
    Objects::new(
        Client::new(service, "default"),
        Selection::default(),
        &Metrics::default(),
    )
    .0
}

/// Adds an object in the same way as a watch.
pub(super) fn seen<W: Stored>(objects: &Objects, object: Value) {
    objects.seen(raw::<W>(object), &mut Skipped::new(W::KIND));
}

/// The responses of an API server that serves the kind `KubeadmConfig`, but has no objects of this kind.
pub(super) fn bootstrap_api(path: &str) -> Value {
    const GROUP: &str = "bootstrap.cluster.x-k8s.io";
    let group_version = format!("{GROUP}/v1beta2");
    match path {
        "/apis" => json!({
            "kind": "APIGroupList",
            "groups": [{
                "name": GROUP, "versions": [{"groupVersion": group_version, "version": "v1beta2"}],
            }],
        }),
        "/apis/bootstrap.cluster.x-k8s.io/v1beta2" => json!({
            "kind": "APIResourceList", "groupVersion": group_version,
            "resources": [{
                "name": "kubeadmconfigs", "kind": "KubeadmConfig", "namespaced": true,
                "singularName": "", "verbs": ["get"],
            }],
        }),
        _ => json!({
            "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "",
        }),
    }
}

/// Cluster `prod-1` in namespace `tenant-a`, with a Machine that joins with the token `joins1`, and a Machine that has
/// joined with the token `joined`.
pub(crate) fn objects_with_tokens() -> Objects {
    let objects = objects();
    add_tokens(&objects);
    objects
}

/// Like [`objects_with_tokens`], but with another Machine that joins, whose `KubeadmConfig` cannot be decoded.
pub(crate) fn objects_with_an_unreadable_config() -> Objects {
    let contract = Contract::V1Beta2;
    let objects = answered_by(move |path| {
        if path.ends_with("/kubeadmconfigs/m3-config") {
            with(contract.config("m3", "joins3"), "/spec", json!(7))
        } else {
            bootstrap_api(path)
        }
    });
    add_tokens(&objects);
    seen::<Machine>(&objects, contract.machine("m3"));
    objects
}

fn add_tokens(objects: &Objects) {
    let contract = Contract::V1Beta2;
    let cluster = ObjectKey::new(NAMESPACE, "prod-1");
    seen::<Cluster>(objects, contract.cluster());
    let node = json!({"name": "m2"});
    let joined = with(contract.machine("m2"), "/status/nodeRef", node);
    for (machine, name, token) in [
        (contract.machine("m1"), "m1", "joins1"),
        (joined, "m2", "joined"),
    ] {
        seen::<Machine>(objects, machine);
        let config = Ok(kept(contract.config(name, token)));
        objects.read_config(&cluster, &format!("{name}-config"), config);
    }
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
}

/// The Secret of a CA without its key.
pub(crate) fn ca_secret_without_key() -> Secret {
    let mut secret = ca_secret();
    secret.data.as_mut().unwrap().remove("tls.key");
    secret
}

/// A CA with its key.
pub(crate) fn ca_secret() -> Secret {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let data = [
        ("tls.crt".to_owned(), ByteString(certificate.pem().into())),
        ("tls.key".to_owned(), ByteString(key.serialize_pem().into())),
    ];
    Secret {
        data: Some(data.into()),
        ..Secret::default()
    }
}

/// A service account token that has these claims, and an invalid signature.
pub(crate) fn token_of(claims: &Value) -> String {
    let part = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
    let payload = part(&claims.to_string());
    let header = part("{\"alg\":\"RS256\"}");
    format!("{header}.{payload}.{}", part("signed"))
}
