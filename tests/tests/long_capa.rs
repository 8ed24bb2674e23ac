//! Tests in which the manager of Cluster API Provider AWS creates instances, and the instances join as nodes. The build
//! of the manager's dependencies takes 10 minutes, so this test runs only in `make test-long`.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kubelet_attestation::names::{Audience, BUILT_IN_SERVING_SIGNER, Provider};
use kubelet_authenticator_test_support::control_plane::{ControlPlane, User};
use kubelet_authenticator_test_support::moto::Network;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::absence::assert_refused;
use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, Instance, REGION};
use kubelet_authenticator_tests::controller::{Application, is_issued, reason_of};
use kubelet_authenticator_tests::fleet::{Manager, authorize, grant, kubelet_of_instance};
use kubelet_authenticator_tests::image;
use kubelet_authenticator_tests::management::{
    Capa, InfraCluster, Instances, MachineDeployment, Maker, Management, WorkloadCluster, network,
    owned,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

/// The deadline for operations that take Cluster API a minute. The deadline is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// The default lifetime of a Cluster API bootstrap token.
const TOKEN_TTL: Duration = Duration::from_secs(15 * 60);

/// The drop-in of the kubelet's unit in the bootstrap data.
const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

/// The name of every Cluster in this suite.
const CLUSTER: &str = "prod-1";

/// An AWS account, and a management cluster with the infrastructure providers and the controller.
struct Site {
    cloud: Arc<Cloud>,
    network: Network,
    management: Management,
    capa: Capa,
    _manager: Manager,
}

static SITE: LazyLock<Site> = LazyLock::new(|| {
    let cloud = Arc::new(Cloud::start());
    let management = Management::managed(TOKEN_TTL);
    let capa = management.start_capa(&cloud);
    grant(&management);
    Site {
        network: network(&cloud),
        _manager: Manager::aws(&management, &cloud, &[]),
        cloud,
        management,
        capa,
    }
});

/// A tenant's Cluster whose machines are instances with the plugin.
struct Tenant {
    cluster: WorkloadCluster,
    deployment: MachineDeployment,
    instances: Instances,
}

/// The place that contains the bootstrap data of an instance.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BootstrapData {
    /// The bootstrap data is in the user data.
    UserData,
    /// The bootstrap data is in Secrets Manager, which is the provider's default.
    SecretsManager,
}

impl Tenant {
    fn start(namespace: &str, replicas: u32) -> Self {
        Self::with(BootstrapData::UserData, namespace, replicas)
    }

    fn with(bootstrap: BootstrapData, namespace: &str, replicas: u32) -> Self {
        let cluster = SITE.management.cluster(CLUSTER).namespace(namespace);
        let cluster = cluster.apiserver_arg("--anonymous-auth=true");
        let cluster = cluster.infrastructure(InfraCluster::Aws(SITE.network.clone()));
        let cluster = cluster.create();
        cluster.control_plane().prepare_for_joins();
        let authentication = authorize(&SITE.management, &cluster, &["aws"], json!({}));
        authentication.wait_until_ready(SITE.management.kubectl());
        let instances = if bootstrap == BootstrapData::SecretsManager {
            let boot = image::instance_with_secrets(&cluster, Provider::AWS, &SITE.cloud);
            Instances::start(&cluster, &SITE.cloud, Maker::Capa, boot)
        } else {
            let boot = image::instance(&cluster, Provider::AWS, &SITE.cloud);
            Instances::start(&cluster, &SITE.cloud, Maker::Capa, boot)
        };
        let mut config = image::rendered(&Provider::AWS, &image::TOLD_BY_EC2);
        let arguments = &mut config["joinConfiguration"]["nodeRegistration"]["kubeletExtraArgs"];
        let arguments = arguments.as_array_mut().unwrap();
        // These are the same arguments as in the templates of Cluster API Provider AWS. These arguments make a cloud
        // provider in the cluster report the node's addresses.
        for (name, value) in [
            ("cloud-provider", "external"),
            ("node-ip", "{{ ds.meta_data.local_ipv4 }}"),
        ] {
            arguments.push(json!({ "name": name, "value": value }));
        }
        let deployment = match bootstrap {
            BootstrapData::UserData => cluster.machine_deployment_of("workers", replicas, config),
            BootstrapData::SecretsManager => {
                cluster.machine_deployment_with_secrets_of("workers", replicas, config)
            }
        };
        Self {
            deployment,
            cluster,
            instances,
        }
    }

    fn plane(&self) -> &ControlPlane {
        self.cluster.control_plane()
    }

    /// The record for this node name.
    fn record(&self, node_name: &str) -> Value {
        let name = format!("{CLUSTER}.{node_name}");
        let words = [
            "get",
            "nodeidentities",
            &name,
            "-n",
            self.cluster.namespace(),
        ];
        SITE.management.kubectl().json(words)
    }

    fn nodes(&self) -> BTreeSet<String> {
        let nodes = self.plane().kubectl().json(["get", "nodes"]);
        let nodes = nodes["items"].as_array().unwrap().iter();
        nodes.map(name_of).collect()
    }

    /// Sends a request, without the plugin, that claims the identity of the Machine `joined` with evidence from
    /// `instance`. Returns the reason for the denial.
    fn claim(&self, joined: &Joined, instance: &Instance) -> String {
        let machine = &joined.instance;
        let ca = self.plane().ca().certificate_pem().as_bytes();
        let audience = Audience::of_ca(&CertificateDer::from_pem_slice(ca).unwrap());
        let id = machine.provider_id();
        let mut parts = instance.parts(&audience, &id, SITE.cloud.sts().now());
        parts.node_name = machine.node_name();
        let evidence = |spki: &[u8]| Some(SITE.cloud.evidence(&parts, spki));
        let application = Application::proving(parts.node_name, &id, Provider::AWS, evidence);
        let bearer = self.plane().kubeconfig(User::Token(joined.token.clone()));
        let kubectl = self.plane().kubectl_with(bearer);
        kubectl.create_object(&application.to_json());
        let csr = self.plane().wait_for_csr("denied", |csr| {
            name_of(csr) == application.name() && reason_of(csr, "Denied").is_some()
        });
        let reason = reason_of(&csr, "Denied").unwrap();
        assert_refused(&csr, ("Denied", reason));
        reason.to_owned()
    }

    /// Starts a kubelet with the plugin on `instance`, with the token of the Machine `joined`. Returns the reason for
    /// the denial.
    fn joins(&self, joined: &Joined, instance: &Instance) -> String {
        let before: BTreeSet<_> = self.plane().csrs().iter().map(name_of).collect();
        let token = &joined.token;
        let _kubelet = kubelet_of_instance(self.plane(), token, &SITE.cloud, instance).start();
        let user = format!("system:bootstrap:{}", token.split_once('.').unwrap().0);
        let csr = self.plane().wait_for_csr("of the instance", |csr| {
            csr["spec"]["username"] == *user
                && !before.contains(&name_of(csr))
                && reason_of(csr, "Denied").is_some()
        });
        let reason = reason_of(&csr, "Denied").unwrap();
        assert_refused(&csr, ("Denied", reason));
        reason.to_owned()
    }

    /// The only Machine, after it has reached the phase Running.
    fn joined(&self) -> Joined {
        let machine = self.deployment.wait_until_running(1).remove(0);
        let ec2 = SITE.cloud.moto().ec2(ACCOUNT, REGION);
        Joined {
            instance: SITE.cloud.boot(ec2.instance(instance_id(&machine))),
            token: self.deployment.bootstrap_token(&name_of(&machine)),
        }
    }
}

/// A Machine that has a Node.
struct Joined {
    /// The bootstrap token of the Machine.
    token: String,
    /// The instance that was created for the Machine.
    instance: Instance,
}

impl Drop for Tenant {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", SITE.capa.log());
        }
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// The ID of the instance that was created for this Machine.
fn instance_id(machine: &Value) -> &str {
    let provider_id = machine["spec"]["providerID"].as_str().unwrap();
    provider_id.rsplit_once('/').unwrap().1
}

#[test]
fn capa_instances_join_with_their_ec2_names_and_serve() {
    let tenant = Tenant::start("joined", 2);
    let ec2 = SITE.cloud.moto().ec2(ACCOUNT, REGION);

    let before = tenant.deployment.wait_until_running(2);

    for machine in &before {
        let instance = ec2.instance(instance_id(machine));
        let name = instance.private_dns_name.as_str();
        assert_eq!(machine["status"]["nodeRef"]["name"], name, "{machine:#}");
        tenant.plane().wait_for_node_ready(name);
        let record = tenant.record(name);
        assert_eq!(record["spec"]["attestor"], "aws", "{record:#}");
        assert_eq!(record["spec"]["providerID"], machine["spec"]["providerID"]);
        let user = format!("system:node:{name}");
        let serving = tenant.plane().wait_for_csr("for serving", |csr| {
            csr["spec"]["username"] == *user
                && csr["spec"]["signerName"] == BUILT_IN_SERVING_SIGNER
                && is_issued(csr)
        });
        let reason = reason_of(&serving, "Approved");
        assert_eq!(reason, Some("ServingNamesCorroborated"), "{serving:#}");
        let path = format!("/api/v1/nodes/{name}/proxy/healthz");
        let answer = poll(PATIENCE, || tenant.plane().kubectl().raw(&path).ok());
        assert_eq!(answer.as_deref(), Some("ok"));
    }

    tenant.deployment.scale(1);

    let after = tenant.deployment.wait_until_running(1);
    let left = instance_id(&after[0]);
    let gone = before.iter().map(instance_id).find(|id| *id != left);
    let gone = ec2.instance(gone.unwrap());
    assert_eq!(gone.state, "terminated");
    let retired = poll(PATIENCE, || {
        let record = tenant.record(&gone.private_dns_name);
        (!record["spec"]["tombstone"].is_null()).then_some(())
    });
    assert!(
        retired.is_some(),
        "{:#}",
        tenant.record(&gone.private_dns_name)
    );
    let record = tenant.record(&ec2.instance(left).private_dns_name);
    assert!(record["spec"]["tombstone"].is_null(), "{record:#}");
}

#[test]
fn an_instance_joins_with_bootstrap_data_in_secrets_manager() {
    let tenant = Tenant::with(BootstrapData::SecretsManager, "secrets", 1);
    let ec2 = SITE.cloud.moto().ec2(ACCOUNT, REGION);

    let machine = tenant.deployment.wait_until_running(1).remove(0);

    let instance = ec2.instance(instance_id(&machine));
    let name = instance.private_dns_name.as_str();
    assert_eq!(machine["status"]["nodeRef"]["name"], name, "{machine:#}");
    tenant.plane().wait_for_node_ready(name);
    let record = tenant.record(name);
    assert_eq!(record["spec"]["attestor"], "aws", "{record:#}");
    // The instance's user data only reads the secret.
    let data = ec2.user_data(&instance.id);
    assert!(data.contains("text/cloud-boothook"), "{data}");
    let token = tenant.deployment.bootstrap_token(&name_of(&machine));
    for absent in [&*token, "kubeadm", "kubelet-authenticator"] {
        assert!(!data.contains(absent), "{absent}: {data}");
    }
    let drop_in = tenant.instances.on(name, |machine| machine.read(DROP_IN));
    let expected = image::render(&Provider::AWS, &["kubelet-drop-in"]);
    assert_eq!(drop_in, Some(expected.into_bytes()));
    // The instance has deleted the secret from Secrets Manager.
    for operation in ["CreateSecret", "GetSecretValue", "DeleteSecret"] {
        assert!(SITE.cloud.moto().count(operation) > 0, "{operation}");
    }
}

#[test]
fn an_instance_without_a_machine_in_the_cluster_is_denied() {
    let tenant = Tenant::start("alone", 1);
    let joined = tenant.joined();

    // A user who is allowed to start instances in the account can also set any tags.
    let other = SITE.cloud.launch(&[(&owned(CLUSTER), "owned")]);

    let reason = tenant.joins(&joined, &other);
    assert_eq!(reason, "ProviderIdOfAnotherMachine");
    assert_eq!(tenant.claim(&joined, &other), "AnotherMachine");
    let own = BTreeSet::from([joined.instance.node_name().to_owned()]);
    assert_eq!(tenant.nodes(), own);
}

#[test]
fn instances_cannot_join_another_cluster_with_the_same_name() {
    let tenants = ["tenant-a", "tenant-b"].map(|namespace| Tenant::start(namespace, 1));
    let joined = tenants.each_ref().map(Tenant::joined);
    let ec2 = SITE.cloud.moto().ec2(ACCOUNT, REGION);
    for one in &joined {
        // The tag does not contain the namespace, so both Clusters have the same tag.
        let id = [("InstanceId.1".to_owned(), one.instance.ec2.id.as_str())];
        let described = ec2.call("DescribeInstances", &id);
        assert!(described.contains(&owned(CLUSTER)), "{described}");
    }

    for (own, other) in [(0, 1), (1, 0)] {
        let instance = &joined[own].instance;
        let reason = tenants[other].joins(&joined[other], instance);
        assert_eq!(reason, "ProviderIdOfAnotherMachine");
        let reason = tenants[other].claim(&joined[other], instance);
        assert_eq!(reason, "AnotherMachine");
    }

    for (tenant, one) in tenants.iter().zip(&joined) {
        let own = BTreeSet::from([one.instance.node_name().to_owned()]);
        assert_eq!(tenant.nodes(), own);
    }
}
