//! Simulates many clusters of one controller. The API servers of the management cluster and of the workload clusters
//! run in this process, with real connections. The controller runs in another process, so that it is measured
//! separately.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::{ApiServer, Definition, Kubeconfig};
use kubelet_authenticator_test_support::pki::traditional_key;
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, poll};
use kubelet_authenticator_tests::program;
use node_attestation_core::crd::object_name;
use serde_json::{Value, json};

use crate::cluster_api::{self, CLUSTER_API, INFRASTRUCTURE, NewMachine, reference};

/// The definitions of the project's own kinds.
const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/crds");

/// The API version and the name of the project's own kinds.
pub const KUBELET_AUTHENTICATION: (&str, &str) = (
    "attestation.cluster.x-k8s.io/v1alpha1",
    "KubeletAuthentication",
);
pub const NODE_IDENTITY: (&str, &str) = ("attestation.cluster.x-k8s.io/v1alpha1", "NodeIdentity");

/// The deadline for the first watch in one cluster.
const DEADLINE: Duration = Duration::from_secs(300);

/// The total size of the managed fields, conditions and owner references of a Machine, in bytes.
const FILLER: usize = 3000;

/// A management cluster.
pub struct Simulation {
    /// The API server of the management cluster, which is shared with the threads of hostile tenants.
    pub management: Arc<ApiServer>,
    kubeconfig: PathBuf,
    files: Scratch,
}

impl Simulation {
    /// Starts a management cluster without clusters.
    pub fn new() -> Self {
        let management = Arc::new(ApiServer::start());
        for file in std::fs::read_dir(CRDS).unwrap() {
            let path = file.unwrap().path();
            if path.ends_with("kustomization.yaml") {
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            let crd: Value = serde_saphyr::from_str(&text).unwrap();
            Definition::of_crd(&crd)
                .into_iter()
                .for_each(|kind| management.define(kind));
        }
        for (group, kind, plural) in [
            ("cluster.x-k8s.io", "Cluster", "clusters"),
            ("cluster.x-k8s.io", "Machine", "machines"),
            ("cluster.x-k8s.io", "MachinePool", "machinepools"),
            (
                "bootstrap.cluster.x-k8s.io",
                "KubeadmConfig",
                "kubeadmconfigs",
            ),
            (INFRASTRUCTURE, "GenericCluster", "genericclusters"),
            (INFRASTRUCTURE, "GenericMachine", "genericmachines"),
        ] {
            management.define(Definition::new(group, "v1beta2", kind, plural).with_status());
        }
        let files = Scratch::new("simulation");
        let kubeconfig = management.write_admin_kubeconfig(files.path());
        Self {
            management,
            kubeconfig,
            files,
        }
    }

    /// Starts a program that serves all clusters. `wrapper` is a command that executes its last arguments.
    pub fn start(&self, name: &str, arguments: &[&str], wrapper: &[&str]) -> Process {
        let program = program(name);
        let mut command = wrapper.iter().map(OsStr::new).chain([program.as_os_str()]);
        let launch = Launch::new("manager", command.next().expect("the program"))
            .args(command)
            .arg("run")
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--insecure-allow-loopback", "--log-format", "json"])
            .args(arguments);
        launch.spawn(&self.log())
    }

    /// The program's log.
    pub fn log(&self) -> PathBuf {
        self.files.join("manager.log")
    }

    /// A directory for the program's files.
    pub fn folder(&self) -> &Path {
        self.files.path()
    }

    /// Sets the address of a cluster's API server.
    pub fn put_kubeconfig(&self, cluster: &str, kubeconfig: &Kubeconfig) {
        let data = json!({"value": STANDARD.encode(kubeconfig.to_yaml())});
        self.put_secret(cluster, "kubeconfig", data);
    }

    fn put_secret(&self, cluster: &str, purpose: &str, data: Value) {
        let fields = json!({"type": "cluster.x-k8s.io/secret", "data": data});
        let name = format!("{cluster}-{purpose}");
        self.put(("v1", "Secret"), (cluster, &name), fields);
    }

    fn put(&self, kind: (&str, &str), (cluster, name): (&str, &str), fields: Value) {
        self.management
            .put(cluster_api::object(kind, (cluster, cluster, name), fields));
    }

    /// Creates a Cluster and its KubeletAuthentication, both in a namespace with the name of the Cluster.
    pub fn put_cluster(&self, cluster: &Tenant, attestor: &str) {
        let Tenant { name, server } = cluster;
        let address = server.address();
        let endpoint = json!({"host": address.ip().to_string(), "port": address.port()});
        let fields = json!({
            "spec": {
                "controlPlaneEndpoint": endpoint,
                "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/24"]}},
                "infrastructureRef": reference(INFRASTRUCTURE, "GenericCluster", name),
            },
            "status": {"initialization": {
                "infrastructureProvisioned": true, "controlPlaneInitialized": true,
            }},
        });
        self.put((CLUSTER_API, "Cluster"), (name, name), fields);
        let infrastructure = format!("{INFRASTRUCTURE}/v1beta2");
        let fields = json!({"spec": {"controlPlaneEndpoint": endpoint}});
        self.put((&infrastructure, "GenericCluster"), (name, name), fields);
        self.put_kubeconfig(name, &cluster.kubeconfig());
        let ca = server.client_ca();
        let data = json!({
            "tls.crt": STANDARD.encode(&ca.certificate_pem),
            "tls.key": STANDARD.encode(traditional_key(&ca.key_pem)),
        });
        self.put_secret(name, "ca", data);
        let spec = json!({"spec": {"clusterName": name, "authorizedAttestors": [attestor]}});
        self.put(KUBELET_AUTHENTICATION, (name, name), spec);
    }

    /// Creates a Machine that is allowed to join.
    pub fn put_machine(&self, cluster: &Tenant, name: &str, token: &str) {
        let machine = NewMachine {
            cluster: &cluster.name,
            name,
            provider_id: &provider_id(name),
            token,
            server: &cluster.server.address().to_string(),
        };
        let (created, written) = machine.objects(&cluster.name);
        for (mut object, status) in created.into_iter().zip(written) {
            object["status"] = status["status"].clone();
            object["metadata"]["annotations"] = json!({"filler": "x".repeat(FILLER)});
            self.management.put(object);
        }
    }

    /// Creates the record of a Machine that has joined.
    pub fn put_record(&self, cluster: &Tenant, name: &str) {
        let cluster = cluster.name.as_str();
        let fields = json!({"spec": {
            "clusterName": cluster, "nodeName": name, "uid": "00112233445566778899aabbccddeeff",
            "providerID": provider_id(name), "attestor": "insecure", "machineName": name,
            "generation": 1, "notAfter": "2100-01-01T00:00:00Z",
            "opened": {
                "keySHA256": "0123456789abcdef".repeat(4),
                "requestName": format!("kubelet-authenticator-{}", "a".repeat(52)),
                "requestUID": "00010203-0405-0607-0809-0a0b0c0d0e0f",
                "time": "2026-11-01T00:00:00Z",
            },
        }});
        let key = (cluster, cluster, &*object_name(cluster, name));
        let mut record = cluster_api::object(NODE_IDENTITY, key, fields);
        let owner = self.management.object("clusters", cluster, cluster);
        let owner = owner.expect("the Cluster of the record");
        record["metadata"]["ownerReferences"] = json!([{
            "apiVersion": CLUSTER_API, "kind": "Cluster", "name": cluster,
            "uid": owner["metadata"]["uid"],
        }]);
        self.management.put(record);
    }

    /// Waits until the number of watches for requests in each of these clusters exceeds `before`.
    pub fn wait_until_watched(&self, clusters: &[Tenant], before: &[usize]) {
        for (cluster, before) in clusters.iter().zip(before) {
            let is_watched = || (cluster.server.watches() > *before).then_some(());
            assert!(
                poll(DEADLINE, is_watched).is_some(),
                "{} is not watched",
                cluster.name
            );
        }
    }
}

/// The provider ID of the machine with this name.
pub fn provider_id(machine: &str) -> String {
    format!("generic:///{machine}")
}

/// A workload cluster.
pub struct Tenant {
    pub name: String,
    pub server: ApiServer,
}

impl Tenant {
    /// Starts the cluster with this number.
    pub fn new(number: usize) -> Self {
        let server = ApiServer::start();
        let namespaces = json!({"spec": {
            "group": "", "scope": "Cluster", "names": {"kind": "Namespace", "plural": "namespaces"},
            "versions": [{"name": "v1", "served": true}],
        }});
        let definitions = Definition::of_crd(&namespaces);
        definitions.into_iter().for_each(|kind| server.define(kind));
        // This object contains the identity of the cluster.
        server.put(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"},
        }));
        Self {
            name: format!("tenant-{number}"),
            server,
        }
    }

    /// A kubeconfig for the cluster's administrator.
    pub fn kubeconfig(&self) -> Kubeconfig {
        let admin = self.server.admin_certificate();
        self.server.kubeconfig().client_certificate(&admin)
    }
}
