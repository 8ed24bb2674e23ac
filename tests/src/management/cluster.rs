use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::binaries::KUBERNETES_VERSION;
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, ControlPlaneBuilder, Controllers, DEADLINE, KubeadmBinding,
};
use kubelet_authenticator_test_support::pki::traditional_key;
use serde_json::{Value, json};

use super::clusterctl::control_plane_status;
use super::contract::{CLUSTER, Contract, GENERIC_CONTROL_PLANE, InfraCluster};
use super::place::{Metadata, New, Place};
use super::secrets::{ca_data, workload_kubeconfig};
use super::{MachineBuilder, PoolBuilder, crds};

/// A builder for a Cluster.
#[derive(Debug)]
#[must_use = "nothing is created before `create`"]
pub struct ClusterBuilder {
    pub(super) place: Place,
    workload: Option<Arc<ControlPlane>>,
    controllers: Controllers,
    apiserver_args: Vec<String>,
    controller_manager_args: Vec<String>,
    pub(super) infrastructure: InfraCluster,
    metadata: Metadata,
    managed: bool,
    topology: Option<Value>,
}

impl ClusterBuilder {
    pub(super) fn new(management: Arc<ControlPlane>, contract: Contract, name: &str) -> Self {
        Self {
            place: Place {
                control_plane: management,
                contract,
                namespace: "default".to_owned(),
                cluster: name.to_owned(),
                version: KUBERNETES_VERSION.clone(),
            },
            workload: None,
            controllers: Controllers::Certificates,
            apiserver_args: Vec::new(),
            controller_manager_args: Vec::new(),
            infrastructure: InfraCluster::default(),
            metadata: Metadata::default(),
            managed: false,
            topology: None,
        }
    }

    /// Does not write the fields that Cluster API's managers write.
    pub(super) fn managed(mut self) -> Self {
        self.managed = true;
        self
    }

    /// Stores the Cluster's objects in this namespace, which is created if necessary.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.place.namespace = namespace.to_owned();
        self
    }

    /// Creates Machines with this Kubernetes version. The default is the version of the tests' own control planes.
    pub fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.place.version);
        self
    }

    /// Selects the controllers that kube-controller-manager runs in the workload cluster. The default is the
    /// controllers for certificates.
    pub fn controllers(mut self, controllers: Controllers) -> Self {
        self.controllers = controllers;
        self
    }

    /// Adds a flag for the workload cluster's kube-apiserver.
    pub fn apiserver_arg(mut self, argument: impl Into<String>) -> Self {
        self.apiserver_args.push(argument.into());
        self
    }

    /// Adds a flag for the workload cluster's kube-controller-manager.
    pub fn controller_manager_arg(mut self, argument: impl Into<String>) -> Self {
        self.controller_manager_args.push(argument.into());
        self
    }

    /// Uses this workload cluster instead of a new workload cluster.
    pub fn workload(mut self, workload: Arc<ControlPlane>) -> Self {
        self.workload = Some(workload);
        self
    }

    /// Uses the management cluster as its own workload cluster.
    pub fn self_hosted(self) -> Self {
        let management = self.place.control_plane.clone();
        self.workload(management)
    }

    /// Chooses the infrastructure provider.
    pub fn infrastructure(mut self, infrastructure: InfraCluster) -> Self {
        self.infrastructure = infrastructure;
        self
    }

    /// Adds a label to the Cluster.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.metadata.labels.insert(key.to_owned(), json!(value));
        self
    }

    /// The topology from which Cluster API's topology controller creates the InfraCluster and the control plane.
    pub fn topology(mut self, topology: Value) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Starts the workload cluster, in which bootstrap tokens can create requests, and creates the Cluster, its
    /// InfraCluster and its Secrets.
    #[track_caller]
    pub fn create(mut self) -> WorkloadCluster {
        let workload = self.workload_cluster();
        make_namespace(&self.place);
        let endpoint = endpoint(&workload);
        let cluster = New {
            kind: CLUSTER,
            name: &self.place.cluster,
            owner: None,
            metadata: Metadata {
                finalizer: Some("cluster.cluster.x-k8s.io"),
                ..self.metadata.clone()
            },
            spec: self.spec(&endpoint),
            status: self.place.contract.cluster_status(),
        };
        let object = if self.managed {
            self.place.create_without_statuses(&[&cluster]).remove(0)
        } else {
            self.place.create(&cluster)
        };
        let cluster = self.created(workload, object);
        if self.topology.is_some() {
            let references = references(&self.place);
            provide(&self.place, &self.infrastructure, &endpoint, &references);
        } else {
            let mut parts = self.parts(&endpoint);
            for part in &mut parts {
                part.owner = Some(&cluster.object);
            }
            // Create the parts first, because Cluster API searches for a missing object again only after 30
            // seconds.
            let parts: Vec<_> = parts.iter().collect();
            self.place.create_without_statuses(&parts);
            self.place.write_statuses(&parts);
        }
        cluster
    }

    /// Starts the workload cluster, and returns the manifests of its namespace and its Cluster. The caller creates
    /// these objects.
    #[track_caller]
    pub fn manifests(mut self) -> (Vec<Value>, AwaitedCluster) {
        let workload = self.workload_cluster();
        let endpoint = endpoint(&workload);
        let parts = self.parts(&endpoint);
        let mut manifests = vec![namespace(&self.place)];
        manifests.extend(parts.iter().map(|part| self.place.object(part)));
        manifests.push(self.place.object(&New {
            kind: CLUSTER,
            name: &self.place.cluster,
            owner: None,
            metadata: self.metadata.clone(),
            spec: self.spec(&endpoint),
            status: Value::Null,
        }));
        let awaited = AwaitedCluster {
            builder: self,
            workload,
        };
        (manifests, awaited)
    }

    #[track_caller]
    fn workload_cluster(&mut self) -> Arc<ControlPlane> {
        if let Some(workload) = self.workload.take() {
            return workload;
        }
        let arguments = std::mem::take(&mut self.apiserver_args).into_iter();
        let builder = arguments.fold(
            ControlPlane::builder().controllers(self.controllers),
            ControlPlaneBuilder::apiserver_arg,
        );
        let arguments = std::mem::take(&mut self.controller_manager_args).into_iter();
        let builder = arguments.fold(builder, ControlPlaneBuilder::controller_manager_arg);
        let workload = builder.start();
        workload.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
        crds::install_on_workload(workload.kubectl());
        Arc::new(workload)
    }

    /// The Cluster's spec.
    fn spec(&self, endpoint: &Value) -> Value {
        let place = &self.place;
        let mut spec = json!({
            "controlPlaneEndpoint": endpoint,
            "clusterNetwork": { "services": { "cidrBlocks": ["10.96.0.0/24"] } },
        });
        let reference = |kind| {
            place
                .contract
                .reference(kind, &place.namespace, &place.cluster)
        };
        match &self.topology {
            Some(topology) => spec["topology"] = topology.clone(),
            None => spec["infrastructureRef"] = reference(self.infrastructure.kind()),
        }
        if self.managed && self.topology.is_none() {
            spec["controlPlaneRef"] = reference(GENERIC_CONTROL_PLANE);
        }
        spec
    }

    /// The objects to which the Cluster refers.
    fn parts(&self, endpoint: &Value) -> Vec<New<'_>> {
        let mut parts = vec![New {
            kind: self.infrastructure.kind(),
            name: &self.place.cluster,
            owner: None,
            metadata: Metadata {
                annotations: self.infrastructure.annotations(),
                ..Metadata::default()
            },
            spec: self.infrastructure.spec(endpoint),
            status: self.infrastructure.status(self.place.contract),
        }];
        if self.managed {
            parts.push(New {
                kind: GENERIC_CONTROL_PLANE,
                name: &self.place.cluster,
                owner: None,
                metadata: Metadata::default(),
                spec: json!({ "version": self.place.version }),
                status: control_plane_status(),
            });
        }
        parts
    }

    /// Creates the Secrets of an existing Cluster, and returns the Cluster.
    ///
    /// Create the Secrets before the status of the InfraCluster, because Cluster API connects to a Cluster as soon
    /// as its infrastructure is ready, and retries only after 30 seconds.
    #[track_caller]
    fn created(&self, workload: Arc<ControlPlane>, object: Value) -> WorkloadCluster {
        let cluster = WorkloadCluster {
            place: self.place.clone(),
            workload: Some(workload),
            infrastructure: self.infrastructure.clone(),
            object,
        };
        let kubeconfig = workload_kubeconfig(cluster.name(), cluster.control_plane());
        cluster.write_kubeconfig(&kubeconfig);
        let ca = cluster.control_plane().ca().pair();
        let key = traditional_key(&ca.key_pem);
        cluster.write_ca(&ca.certificate_pem, Some(&key));
        cluster
    }
}

/// A workload cluster whose Cluster the caller creates.
#[derive(Debug)]
#[must_use = "nobody provides for the Cluster before `wait`"]
pub struct AwaitedCluster {
    builder: ClusterBuilder,
    workload: Arc<ControlPlane>,
}

impl AwaitedCluster {
    /// The control plane of the workload cluster.
    pub fn control_plane(&self) -> &Arc<ControlPlane> {
        &self.workload
    }

    /// Waits until the Cluster's objects exist, and writes the data that their providers would write.
    #[track_caller]
    pub fn wait(self) -> WorkloadCluster {
        let Self { builder, workload } = self;
        let place = &builder.place;
        let endpoint = endpoint(&workload);
        let references = references(place);
        let cluster = builder.created(workload, place.get(CLUSTER, &place.cluster));
        provide(place, &builder.infrastructure, &endpoint, &references);
        cluster
    }
}

/// The API server's address in the format that Cluster API objects use.
fn endpoint(workload: &ControlPlane) -> Value {
    let authority = workload.server().trim_start_matches("https://");
    let (host, port) = authority.split_once(':').expect("it has a port");
    let port: u16 = port.parse().expect("a port");
    json!({ "host": host, "port": port })
}

/// Waits until the Cluster refers to its InfraCluster and its control plane. Returns its spec.
#[track_caller]
pub(super) fn references(place: &Place) -> Value {
    let clusters = [&CLUSTER.resource(), "-n", &place.namespace];
    let cluster = place
        .kubectl()
        .wait_for(&clusters, "with its references", DEADLINE, |cluster| {
            let spec = &cluster["spec"];
            cluster["metadata"]["name"] == *place.cluster
                && spec["infrastructureRef"].is_object()
                && spec["controlPlaneRef"].is_object()
        });
    cluster["spec"].clone()
}

/// Writes the data that providers would write into the InfraCluster and the control plane. A Cluster's spec refers to
/// both, and other components have created them.
#[track_caller]
fn provide(
    place: &Place,
    infrastructure: &InfraCluster,
    endpoint: &Value,
    spec_of_cluster: &Value,
) {
    let name = |reference: &str| spec_of_cluster[reference]["name"].as_str().unwrap();
    let (kind, infra_cluster) = (infrastructure.kind(), name("infrastructureRef"));
    let spec = infrastructure.spec(endpoint);
    place.patch(kind, infra_cluster, &json!({ "spec": spec }));
    place.patch_status(kind, infra_cluster, &infrastructure.status(place.contract));
    let control_plane = name("controlPlaneRef");
    place.patch_status(
        GENERIC_CONTROL_PLANE,
        control_plane,
        &control_plane_status(),
    );
}

#[track_caller]
pub(super) fn make_namespace(place: &Place) {
    place.kubectl().apply_object(&namespace(place));
}

fn namespace(place: &Place) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": place.namespace },
    })
}

/// A workload cluster, and the Cluster that represents it in the management cluster.
#[derive(Debug)]
pub struct WorkloadCluster {
    pub(super) place: Place,
    /// `None` if the control plane runs on machines.
    pub(super) workload: Option<Arc<ControlPlane>>,
    pub(super) infrastructure: InfraCluster,
    /// The Cluster, as it was created.
    pub(super) object: Value,
}

impl WorkloadCluster {
    /// The Cluster's name.
    pub fn name(&self) -> &str {
        &self.place.cluster
    }

    /// The namespace of the Cluster's objects in the management cluster.
    pub fn namespace(&self) -> &str {
        &self.place.namespace
    }

    /// The control plane of the workload cluster.
    ///
    /// # Panics
    ///
    /// Panics if the cluster's control plane runs on machines.
    #[track_caller]
    pub fn control_plane(&self) -> &Arc<ControlPlane> {
        let workload = self.workload.as_ref();
        workload.expect("its control plane is not on machines")
    }

    /// The current Cluster.
    #[track_caller]
    pub fn get(&self) -> Value {
        self.place.get(CLUSTER, self.name())
    }

    /// The current InfraCluster.
    #[track_caller]
    pub fn infra_cluster(&self) -> Value {
        self.place.get(self.infrastructure.kind(), self.name())
    }

    /// Creates a builder for a Machine with this name.
    pub fn machine(&self, name: &str) -> MachineBuilder {
        MachineBuilder::new(
            self.place.clone(),
            self.control_plane().clone(),
            &self.object,
            name,
        )
    }

    /// Creates a builder for a MachinePool with this name.
    pub fn pool(&self, name: &str) -> PoolBuilder {
        PoolBuilder::new(
            self.place.clone(),
            self.control_plane().clone(),
            &self.object,
            name,
        )
    }

    /// Sets `spec.paused`.
    #[track_caller]
    pub fn set_paused(&self, paused: bool) {
        let patch = json!({ "spec": { "paused": paused } });
        self.place.patch(CLUSTER, self.name(), &patch);
    }

    /// Writes `<cluster>-kubeconfig`.
    #[track_caller]
    pub fn write_kubeconfig(&self, text: &str) {
        let data = json!({ "value": BASE64_STANDARD.encode(text) });
        self.place.write_secret("kubeconfig", &self.object, &data);
    }

    /// Writes `<cluster>-ca` as PEM, with or without its key.
    #[track_caller]
    pub fn write_ca(&self, certificate: &str, key: Option<&String>) {
        let data = ca_data(certificate, key.map(String::as_str));
        self.place.write_secret("ca", &self.object, &data);
    }

    /// Deletes `<cluster>-<purpose>`: `kubeconfig`, `ca`.
    #[track_caller]
    pub fn delete_secret(&self, purpose: &str) {
        let name = format!("{}-{purpose}", self.name());
        let words = ["delete", "secret", &name, "-n", self.namespace()];
        self.place.kubectl().ok(words);
    }
}
