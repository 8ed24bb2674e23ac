//! Clusters whose control plane is Cluster API's KubeadmControlPlane.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::process::poll;
use serde_json::{Value, json};

use super::cluster::{make_namespace, references};
use super::contract::{CLUSTER, KUBEADM_CONTROL_PLANE};
use super::deployment::{MachineDeployment, RUNNING, new};
use super::place::{Metadata, New};
use super::{ClusterBuilder, WorkloadCluster, crds};

impl ClusterBuilder {
    /// Creates the Cluster, its InfraCluster with this endpoint, and a KubeadmControlPlane with one Machine that has
    /// this KubeadmConfigSpec. Cluster API's managers create the Machine.
    #[track_caller]
    pub fn create_with_kubeadm(
        self,
        endpoint: SocketAddr,
        config: Value,
    ) -> (WorkloadCluster, MachineDeployment) {
        let (place, infrastructure) = (self.place, self.infrastructure);
        make_namespace(&place);
        let name = place.cluster.clone();
        let endpoint = json!({ "host": endpoint.ip(), "port": endpoint.port() });
        let reference = |kind| place.contract.reference(kind, &place.namespace, &name);
        let (template, of_machines) = infrastructure.machine_template();
        place.create_without_statuses(&[&new(template, &name, of_machines)]);
        let machines = json!({ "infrastructureRef": reference(template) });
        let control_plane = json!({
            "replicas": 1,
            "version": place.version,
            "machineTemplate": { "spec": machines },
            "kubeadmConfigSpec": config,
        });
        place.create_without_statuses(&[&new(KUBEADM_CONTROL_PLANE, &name, control_plane)]);
        let cluster = json!({
            "controlPlaneEndpoint": endpoint,
            "controlPlaneRef": reference(KUBEADM_CONTROL_PLANE),
            "infrastructureRef": reference(infrastructure.kind()),
        });
        let created = place.create_without_statuses(&[&new(CLUSTER, &name, cluster)]);
        let object = created.into_iter().next().expect("it was created");
        place.create(&New {
            kind: infrastructure.kind(),
            name: &name,
            owner: Some(&object),
            metadata: Metadata {
                annotations: infrastructure.annotations(),
                ..Metadata::default()
            },
            spec: infrastructure.spec(&endpoint),
            status: infrastructure.status(place.contract),
        });
        let control_plane = MachineDeployment::of_control_plane(place.clone(), &name);
        let cluster = WorkloadCluster {
            place,
            workload: None,
            infrastructure,
            object,
        };
        (cluster, control_plane)
    }

    /// Creates the Cluster with this topology, and gives its InfraCluster this endpoint. Cluster API's managers create
    /// the other objects from the ClusterClass. The control plane of this class is a KubeadmControlPlane.
    #[track_caller]
    pub fn create_of_kubeadm_class(
        self,
        endpoint: SocketAddr,
        topology: Value,
    ) -> (WorkloadCluster, MachineDeployment) {
        let (place, infrastructure) = (self.place, self.infrastructure);
        make_namespace(&place);
        let endpoint = json!({ "host": endpoint.ip(), "port": endpoint.port() });
        let cluster = json!({ "controlPlaneEndpoint": endpoint, "topology": topology });
        let created = place.create_without_statuses(&[&new(CLUSTER, &place.cluster, cluster)]);
        let object = created.into_iter().next().expect("it was created");
        let spec = references(&place);
        let name = |reference: &str| spec[reference]["name"].as_str().unwrap();
        let (kind, infra_cluster) = (infrastructure.kind(), name("infrastructureRef"));
        let provided = json!({ "spec": infrastructure.spec(&endpoint) });
        place.patch(kind, infra_cluster, &provided);
        place.patch_status(kind, infra_cluster, &infrastructure.status(place.contract));
        let control_plane =
            MachineDeployment::of_control_plane(place.clone(), name("controlPlaneRef"));
        let cluster = WorkloadCluster {
            place,
            workload: None,
            infrastructure,
            object,
        };
        (cluster, control_plane)
    }
}

impl WorkloadCluster {
    /// Sets the number of control-plane Machines in the Cluster's topology.
    #[track_caller]
    pub fn scale_control_plane(&self, replicas: u32) {
        let control_plane = json!({ "controlPlane": { "replicas": replicas } });
        let patch = json!({ "spec": { "topology": control_plane } });
        self.place.patch(CLUSTER, self.name(), &patch);
    }

    /// Waits until Cluster API has stored the kubeconfig for the cluster, and the API server responds. Then installs
    /// the definitions that the controller needs in the cluster. Returns kubectl with this kubeconfig.
    #[track_caller]
    pub fn wait_for_kubectl(&self) -> Kubectl {
        let place = &self.place;
        let path = format!(
            "/api/v1/namespaces/{}/secrets/{}-kubeconfig",
            place.namespace, place.cluster
        );
        let secret = poll(RUNNING, || place.kubectl().raw(&path).ok());
        let secret = secret.expect("Cluster API writes a kubeconfig");
        let secret: Value = serde_json::from_str(&secret).unwrap();
        let kubeconfig = BASE64_STANDARD
            .decode(secret["data"]["value"].as_str().unwrap())
            .unwrap();
        let directory = place.control_plane.directory("workload");
        let file = directory.join("kubeconfig");
        std::fs::write(&file, kubeconfig).unwrap();
        let kubectl = Kubectl::new(file, directory);
        let answers = || {
            let namespaces = kubectl.raw("/api/v1/namespaces/kube-system");
            namespaces.ok()
        };
        assert!(poll(RUNNING, answers).is_some(), "no API server");
        crds::install_on_workload(&kubectl);
        kubectl
    }
}
