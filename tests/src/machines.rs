//! A management cluster with Cluster API and the controller, the clusters in it, and their machines.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, MutexGuard, Once};
use std::time::Duration;

use crate::cloud::{Cloud, Instance};
use crate::fleet::{
    self, Authentication, Manager, authorize, authorize_with_defaults, condition_of, grant,
};
use crate::image;
use crate::management::{
    ClusterBuilder, InfraCluster, Instances, Maker, Management, Order, Provider, WorkloadCluster,
    network,
};
use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, User};
use kubelet_authenticator_test_support::imds;
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::moto::Network;
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_test_support::settings;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use serde_json::{Map, Value, json};

pub mod health;
pub mod objects;

use self::objects::{client_requests, reads_well, record, renewals, rows};

/// The lifetime of a Cluster API bootstrap token in the tests. It is short enough to wait for a rotation.
pub const TOKEN_TTL: Duration = Duration::from_secs(60);

/// The deadline for operations that take Cluster API a minute. The deadline is long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(900);

const SETTINGS: &str = "/etc/kubernetes/kubelet-authenticator/config.yaml";
/// The credential that a machine has stored.
pub const CREDENTIAL: &str = "/var/lib/kubelet-authenticator/kubelet-client.pem";

/// The cloud for the machines that are instances.
pub static CLOUD: LazyLock<Arc<Cloud>> = LazyLock::new(|| Arc::new(Cloud::start()));

/// The network for all instances. No two machines have the same address.
pub static NETWORK: LazyLock<Network> = LazyLock::new(|| network(&CLOUD));

/// A management cluster with Cluster API and the controller.
#[derive(Debug)]
pub struct Site {
    /// The management cluster.
    pub management: Management,
    /// The controller.
    pub manager: Manager,
    allows_short_certificates: Once,
    _challenge_keys: Scratch,
}

impl Site {
    /// Starts a site without Clusters.
    pub fn start() -> Self {
        let management = Management::managed(TOKEN_TTL);
        management.define_aws();
        grant(&management);
        let challenge_keys = Scratch::new("challenge-keys");
        challenge_keys.write("current", "0f".repeat(32));
        let keys = challenge_keys.path().display().to_string();
        let arguments = ["--allow-insecure", "--tpm-challenge-keys", &keys];
        let manager = Manager::aws(&management, &CLOUD, &arguments);
        Self {
            management,
            manager,
            allows_short_certificates: Once::new(),
            _challenge_keys: challenge_keys,
        }
    }

    /// Allows lifetimes of seconds in a KubeletAuthentication.
    pub fn allow_short_certificates(&self) {
        let allow = || fleet::allow_short_certificates(&self.management);
        self.allows_short_certificates.call_once(allow);
    }
}

/// The site of all tests. Each test has a separate namespace.
pub static SITE: LazyLock<Site> = LazyLock::new(Site::start);

/// Creates a builder for a Cluster that machines can join with `kubeadm join`.
pub fn joinable(namespace: &str) -> ClusterBuilder {
    let cluster = SITE.management.cluster("prod-1").namespace(namespace);
    cluster.apiserver_arg("--anonymous-auth=true")
}

/// The machines of a Cluster.
#[derive(Debug)]
pub enum Machines {
    /// Machines without evidence. The infrastructure passes the provider ID to the machines. However, machines whose
    /// Node is created first derive the provider ID from their host name.
    Insecure(Order),
    /// Machines with TPMs, on this number of hosts. A host's name consists of the namespace and a number.
    Tpm(usize),
    /// Like `Tpm`, but the provider ID is set after the Node is created, as with Metal3.
    TpmNodeFirst(usize),
    /// EC2 instances with evidence for this attestor.
    Ec2(Attestor),
    /// EC2 instances from an image with these layers.
    Ec2OfImage(Attestor, String),
    /// EC2 instances in a VPC whose DHCP options have this domain.
    Ec2InDomain(Attestor, &'static str),
    /// EC2 instances whose metadata services are unavailable at boot.
    Ec2WithoutMetadata(Attestor),
}

/// The infrastructure provider and its running machines.
#[derive(Debug)]
pub enum Infrastructure {
    /// The provider that the tests implement.
    Generic(Provider),
    /// Instances of EC2.
    Ec2(Instances),
}

/// Creates hosts with these provider IDs, or with these prefixes of provider IDs. Lists the endorsement keys of the
/// hosts in the namespace.
fn listed(
    namespace: &str,
    ids: impl Iterator<Item = String>,
) -> (Vec<String>, BTreeMap<String, Arc<Swtpm>>) {
    let hosts = image::hosts_with_tpms(ids);
    let kubectl = SITE.management.kubectl();
    image::list(kubectl, namespace, &hosts);
    // A list in the KubeletAuthentication itself can have only 512 entries.
    let elsewhere = (0..1000).map(|n| {
        (
            format!("{n:064x}"),
            json!(format!("metal:///elsewhere/{n}")),
        )
    });
    let data: Map<_, _> = elsewhere.collect();
    let list = ["configmap", image::HOSTS, "-n", namespace];
    kubectl.patch(&list, &json!({ "data": data }));
    let ids = hosts.keys().cloned().collect();
    let tpms = hosts.into_iter().map(|(id, (_, tpm))| (id, tpm));
    (ids, tpms.collect())
}

/// A Cluster, its machines and its settings.
#[derive(Debug)]
pub struct Scene {
    /// The Cluster.
    pub cluster: WorkloadCluster,
    /// The KubeletAuthentication of the Cluster.
    pub authentication: Authentication,
    /// The provider of the Cluster's machines.
    pub infrastructure: Infrastructure,
    attestor: Attestor,
    /// The TPM settings in the KubeletAuthentication.
    tpm: Option<Value>,
    config: Value,
}

impl Scene {
    /// Creates a Cluster that the controller manages.
    pub fn attended(namespace: &str, machines: Machines) -> Self {
        let scene = Self::unattended(joinable(namespace), machines);
        scene.attend(&json!({}));
        scene
    }

    /// Creates a Cluster without a KubeletAuthentication.
    pub fn unattended(cluster: ClusterBuilder, machines: Machines) -> Self {
        let cluster = match &machines {
            Machines::Ec2(_)
            | Machines::Ec2OfImage(..)
            | Machines::Ec2InDomain(..)
            | Machines::Ec2WithoutMetadata(_) => {
                cluster.infrastructure(InfraCluster::Aws(NETWORK.clone()))
            }
            _ => cluster,
        };
        let cluster = cluster.create();
        cluster.control_plane().prepare_for_joins();
        let namespace = cluster.namespace();
        let (attestor, order, tpms) = match machines {
            Machines::Insecure(order) => (Attestor::INSECURE, order, BTreeMap::new()),
            Machines::Tpm(hosts) => {
                let ids = (0..hosts).map(|n| format!("metal:///rack-1/{namespace}-{n}"));
                let (ids, tpms) = listed(namespace, ids);
                (Attestor::TPM, Order::Hosts(ids), tpms)
            }
            Machines::TpmNodeFirst(hosts) => {
                let ids = (0..hosts).map(|n| format!("metal3://metal/{namespace}-{n}/"));
                let (ids, tpms) = listed(namespace, ids);
                (Attestor::TPM, Order::HostsNodeFirst(ids), tpms)
            }
            Machines::Ec2(attestor) => {
                let boot = image::instance(&cluster, attestor.clone(), &CLOUD);
                return Self::on_ec2(cluster, attestor, boot);
            }
            Machines::Ec2OfImage(attestor, layers) => {
                let boot = image::instance_of(&cluster, attestor.clone(), &CLOUD, Some(layers));
                return Self::on_ec2(cluster, attestor, boot);
            }
            Machines::Ec2InDomain(attestor, domain) => {
                let boot = image::instance(&cluster, attestor.clone(), &CLOUD);
                return Self::on_ec2(cluster, attestor, move |instance: &Instance, data: &str| {
                    let network = imds::Network::Domain(domain);
                    let join = |metadata: &mut imds::Instance| metadata.join_network(network);
                    instance.imds.update(join);
                    boot(instance, data)
                });
            }
            Machines::Ec2WithoutMetadata(attestor) => {
                let boot = image::instance(&cluster, attestor.clone(), &CLOUD);
                return Self::on_ec2(cluster, attestor, move |instance: &Instance, data: &str| {
                    instance.imds.go_down();
                    boot(instance, data)
                });
            }
        };
        let config = if order == Order::NodeFirst {
            told_by_host_name(image::rendered(&attestor, &[]))
        } else {
            image::rendered(&attestor, &image::TOLD_BY_METADATA)
        };
        let boot = image::machine(&cluster, attestor.clone(), tpms);
        let tpm = match order {
            _ if attestor != Attestor::TPM => None,
            Order::HostsNodeFirst(_) => Some(json!({
                "endorsementKeys": { "configMaps": [image::HOSTS] },
                "lateProviderIDs": "Allow",
            })),
            _ => Some(json!({ "endorsementKeys": { "configMaps": [image::HOSTS] } })),
        };
        Self {
            infrastructure: Infrastructure::Generic(Provider::start(&cluster, order, boot)),
            authentication: authentication_of(&cluster),
            cluster,
            attestor,
            tpm,
            config,
        }
    }

    fn on_ec2(
        cluster: WorkloadCluster,
        attestor: Attestor,
        boot: impl Fn(&Instance, &str) -> Machine + Send + 'static,
    ) -> Self {
        let instances = Instances::start(&cluster, &CLOUD, Maker::Test, boot);
        let is_tpm = attestor == Attestor::TPM;
        Self {
            infrastructure: Infrastructure::Ec2(instances),
            authentication: authentication_of(&cluster),
            cluster,
            config: image::rendered(&attestor, &image::TOLD_BY_EC2),
            attestor,
            tpm: is_tpm.then(|| json!({ "endorsementKeys": { "platform": "aws" } })),
        }
    }

    /// Creates the Cluster's KubeletAuthentication; `spec` is merged into the settings that the machines need.
    pub fn attend(&self, spec: &Value) {
        self.attend_by(spec, authorize);
    }

    /// Like [`attend`](Self::attend), but with only the settings that the Cluster's machines need.
    pub fn attend_with_defaults(&self) {
        self.attend_by(&json!({}), authorize_with_defaults);
    }

    fn attend_by(
        &self,
        spec: &Value,
        authorize: fn(&Management, &WorkloadCluster, &[&str], Value) -> Authentication,
    ) {
        let mut whole = json!({});
        if let Some(tpm) = &self.tpm {
            whole["tpm"] = tpm.clone();
        }
        for (key, value) in spec.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let attestors = [self.attestor.as_str()];
        let authentication = authorize(&SITE.management, &self.cluster, &attestors, whole);
        authentication.wait_until_ready(SITE.management.kubectl());
    }

    /// Calls `act` with the running machine of this node.
    #[track_caller]
    pub fn on<R>(&self, node_name: &str, act: impl FnOnce(&Machine) -> R) -> R {
        match &self.infrastructure {
            Infrastructure::Generic(provider) => provider.on(node_name, act),
            Infrastructure::Ec2(instances) => instances.on(node_name, act),
        }
    }

    /// Pauses the Cluster's infrastructure provider until the result is dropped.
    pub fn paused(&self) -> MutexGuard<'_, ()> {
        match &self.infrastructure {
            Infrastructure::Generic(provider) => provider.paused(),
            Infrastructure::Ec2(instances) => instances.paused(),
        }
    }

    /// Changes the spec of the Cluster's KubeletAuthentication.
    pub fn change(&self, spec: &Value) {
        let Authentication { namespace, name } = &self.authentication;
        let target = ["kubeletauthentication", name, "--namespace", namespace];
        let kubectl = SITE.management.kubectl();
        kubectl.patch(&target, &json!({ "spec": spec }));
    }

    /// Waits until the condition about auto-approval paths has this status and reason. Returns the condition's message.
    #[track_caller]
    pub fn wait_for_paths(&self, status: &str, reason: &str) -> String {
        let condition = "AutoApprovePathsClosed";
        let kubectl = SITE.management.kubectl();
        let object = self
            .authentication
            .wait_for(kubectl, condition, status, reason);
        let message = condition_of(&object, condition);
        message["message"].as_str().unwrap().to_owned()
    }

    /// The KubeadmConfigSpec for the Cluster's machines.
    pub fn config(&self) -> Value {
        self.config.clone()
    }

    /// The KubeadmConfigSpec without the plugin. The kubelet gets its certificate with TLS bootstrapping, and requests
    /// a serving certificate, which is not approved.
    pub fn stock_config(&self) -> Value {
        let mut config = self.config.clone();
        config.as_object_mut().unwrap().remove("files");
        config
    }

    /// Writes the plugin settings for a machine with a TPM by hand.
    pub fn write_settings(&self, node_name: &str) {
        self.on(node_name, |machine| {
            let id = machine.ok(&["cloud-init", "query", "ds.meta_data.provider_id"]);
            let settings = [("providerID", id.trim().to_owned())];
            machine.write(SETTINGS, 0o644, settings::file(settings));
        });
    }

    pub fn plane(&self) -> &ControlPlane {
        self.cluster.control_plane()
    }

    /// The record for this node name.
    pub fn record(&self, node_name: &str) -> Value {
        record(&SITE, &self.cluster, node_name)
    }

    /// Waits until the Machine's Node is ready, until it serves with a certificate if it has evidence, and until its
    /// record belongs to the Machine. Returns the Node's name.
    #[track_caller]
    pub fn wait_for_node_of(&self, machine: &Value) -> String {
        let name = machine["status"]["nodeRef"]["name"].as_str().unwrap();
        self.plane().wait_for_node_ready(name);
        let record = self.record(name);
        assert_eq!(
            record["spec"]["providerID"], machine["spec"]["providerID"],
            "{record:#}"
        );
        assert!(record["spec"]["tombstone"].is_null(), "{record:#}");
        if self.serves() {
            let user = format!("system:node:{name}");
            let what = format!("the serving certificate of {name}");
            self.plane().wait_for_csr(&what, |csr| {
                csr["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
                    && csr["spec"]["username"] == *user
                    && csr["status"]["certificate"].is_string()
            });
        }
        name.to_owned()
    }

    /// Whether the nodes get serving certificates. Nodes without evidence do not get serving certificates.
    pub fn serves(&self) -> bool {
        self.attestor != Attestor::INSECURE
    }

    /// The signer for client certificates that belongs to the cluster's attestor.
    pub fn signer(&self) -> String {
        self.attestor.client_signer()
    }

    /// The number of client certificates from this signer that the node requested with its own certificate.
    pub fn renewals(&self, signer: &str, node_name: &str) -> usize {
        renewals(self.plane(), signer, node_name)
    }

    /// Waits until each node has renewed its certificate with this signer, and is ready.
    #[track_caller]
    pub fn wait_for_renewals(&self, signer: &str, nodes: &[String]) {
        // Count the renewals of all nodes first, because nodes with the same lifetime renew in parallel.
        let before = nodes.iter().map(|node| self.renewals(signer, node));
        let before: Vec<_> = before.collect();
        for (node, before) in nodes.iter().zip(before) {
            let renewed = poll(PATIENCE, || {
                (self.renewals(signer, node) > before).then_some(())
            });
            let journal = || self.on(node, Machine::journal);
            assert!(renewed.is_some(), "{node} does not renew: {}", journal());
            self.plane().wait_for_node_ready(node);
        }
    }

    /// Waits until the node identity is retired.
    #[track_caller]
    pub fn wait_for_tombstone(&self, node_name: &str) {
        let retired = poll(PATIENCE, || {
            (!self.record(node_name)["spec"]["tombstone"].is_null()).then_some(())
        });
        assert!(retired.is_some(), "{:#}", self.record(node_name));
    }

    /// A kubeconfig that contains the node's certificate, as if an attacker had copied it from the machine.
    pub fn stolen(&self, node_name: &str) -> PathBuf {
        let pem = self.on(node_name, |machine| machine.read(CREDENTIAL));
        let pem = String::from_utf8(pem.unwrap()).unwrap();
        let key = pem.find("-----BEGIN PRIVATE KEY").unwrap();
        let end = pem[key..].find("-----END PRIVATE KEY-----\n").unwrap();
        let end = key + end + "-----END PRIVATE KEY-----\n".len();
        let pair = KeyAndCertificate {
            key_pem: pem[key..end].to_owned(),
            certificate_pem: [&pem[..key], &pem[end..]].concat(),
        };
        self.plane().kubeconfig(User::Certificate(pair))
    }

    /// Uses this certificate to label the Node. Returns kubectl's output.
    pub fn label(&self, kubeconfig: &PathBuf, node_name: &str, value: &str) -> String {
        let label = format!("a.example/written={value}");
        let kubectl = self.plane().kubectl_with(kubeconfig);
        let output = kubectl.run(["label", "node", node_name, "--overwrite", &label]);
        [output.stdout, output.stderr]
            .map(|said| String::from_utf8_lossy(&said).into_owned())
            .concat()
    }

    /// Like [`reads_well`], for this Cluster.
    #[track_caller]
    pub fn reads_well(&self, nodes: &[String]) {
        reads_well(&SITE, &self.cluster, nodes);
    }

    /// Asserts that an operator can see why no node has this name any longer.
    #[track_caller]
    pub fn reads_as_gone(&self, node_name: &str) {
        let records = ["get", "nodeidentities", "-n", self.cluster.namespace()];
        let records = SITE.management.kubectl().ok(records);
        let records = rows(&records);
        let record = format!("{}.{node_name}", self.cluster.name());
        let record = records.iter().find(|row| row[0] == record).unwrap();
        let reason = &self.record(node_name)["spec"]["tombstone"]["reason"];
        assert!(record.contains(&reason.as_str().unwrap()), "{records:#?}");
    }

    /// The requests for client certificates. Asserts that no request was denied.
    #[track_caller]
    pub fn client_requests(&self) -> Vec<Value> {
        client_requests(&self.cluster, &self.attestor)
    }
}

fn authentication_of(cluster: &WorkloadCluster) -> Authentication {
    Authentication {
        namespace: cluster.namespace().to_owned(),
        name: cluster.name().to_owned(),
    }
}

/// Adds the settings with which a machine of the Docker provider derives its provider ID from its host name.
fn told_by_host_name(mut config: Value) -> Value {
    let header = settings::file([]);
    let lines: Vec<_> = header.lines().map(|line| format!("'{line}'")).collect();
    let lines = lines.join(" ");
    let write = format!(
        "mkdir -p $(dirname {SETTINGS}); \
         printf '%s\\n' {lines} \"providerID: docker:////$(hostname)\" > {SETTINGS}"
    );
    let commands = &mut config["preKubeadmCommands"];
    commands.as_array_mut().unwrap().push(json!(write));
    config
}
