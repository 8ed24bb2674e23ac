//! The demo with five tenants that have separate AWS accounts: four tenants use identities that permit them, and one
//! tenant refers to another tenant's identity.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::moto::{Network, access_key};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::Trust;
use kubelet_authenticator_tests::cloud::{ACCOUNT, CONTROLLER, Cloud, Instance, REGION};
use kubelet_authenticator_tests::fleet::{Manager, authorize, condition_of, grant};
use kubelet_authenticator_tests::management::{
    Boot, InfraCluster, Instances, Maker, Management, Order, Provider, WorkloadCluster, networks,
    owned,
};
use kubelet_authenticator_tests::{image, program};
use serde_json::json;

/// The deadline for machines to boot and join.
const PATIENCE: Duration = Duration::from_secs(480);

/// A lifetime that is longer than the demo.
const TOKEN_TTL: Duration = Duration::from_secs(15 * 60);

/// The permissions that the controller needs in addition to those in every management cluster.
const RBAC: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/rbac/ack.yaml"),
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../packaging/rbac/service-account-identities.yaml"
    ),
];

/// The controller options for identities.
const OPTIONS: [&str; 2] = ["--ack", "carm"];

/// The tenants, with their accounts. The cluster, the namespace and the tenant have the same name.
const TENANTS: [(&str, &str); 5] = [
    ("by-key", "200000000001"),
    ("by-role", "200000000002"),
    ("by-token", "200000000003"),
    ("by-team", "200000000004"),
    ("stranger", "200000000005"),
];

const BY_TEAM: usize = 3;

/// The tenant whose requests are refused.
const STRANGER: &str = "stranger";

/// Runs the demo. Returns `false` if a step has an unexpected result.
pub fn story() -> bool {
    println!(
        "Real Cluster API, the definitions of Cluster API Provider AWS, kubeadm, cloud-init, systemd and kubelets; EC2 \
         is moto, and STS checks signatures, trust policies, external IDs and tokens."
    );
    let cloud = Arc::new(Cloud::start());
    let management = Management::managed(TOKEN_TTL);
    management.define_aws();
    grant(&management);
    for namespace in ["capa-system", "ack-system"] {
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace},
        });
        management.kubectl().apply_object(&object);
    }
    for file in RBAC {
        management.kubectl().ok(["apply", "-f", file]);
    }
    let _manager = Manager::aws_without_fallback(&management, &cloud, &OPTIONS);
    let accounts = TENANTS.map(|(_, account)| account);
    let networks = networks(&cloud, &accounts);
    let tenants = TENANTS.iter().zip(networks);
    let tenants = tenants.map(|((name, account), network)| {
        let of_provider = *name != TENANTS[BY_TEAM].0;
        Tenant::start(&management, &cloud, (name, account), network, of_provider)
    });
    let mut story = Story {
        management: &management,
        cloud: &cloud,
        tenants: tenants.collect(),
        start: Instant::now(),
        told: BTreeSet::new(),
    };
    story.identities();
    let joined = story.nodes_join();
    let explained = story.identities_are_explained();
    let refused = story.the_stranger_is_refused();
    joined && explained && refused
}

/// A workload cluster, and its machines.
struct Tenant {
    name: &'static str,
    cluster: WorkloadCluster,
    _machines: Machines,
}

/// The machines of a cluster. The variants differ in the component that creates the machines.
enum Machines {
    /// A provider that works like Cluster API Provider AWS.
    Provider { _instances: Instances },
    /// A provider that creates the instances before the Machines.
    Others { _provider: Provider },
}

impl Tenant {
    fn start(
        management: &Management,
        cloud: &Arc<Cloud>,
        (name, account): (&'static str, &str),
        network: Network,
        of_provider: bool,
    ) -> Self {
        let cluster = management.cluster(name).namespace(name);
        let cluster = cluster.apiserver_arg("--anonymous-auth=true");
        let cluster = if of_provider {
            cluster.infrastructure(InfraCluster::Aws(network.clone()))
        } else {
            cluster
        };
        let cluster = cluster.create();
        cluster.control_plane().prepare_for_joins();
        let boot = image::instance(&cluster, Attestor::AWS, cloud);
        let machines = if of_provider {
            Machines::Provider {
                _instances: Instances::start(&cluster, cloud, Maker::Test, boot),
            }
        } else {
            let ec2 = cloud.moto().ec2(account, REGION);
            let instance = cloud.boot(ec2.run_in(&network, &[(&owned(name), "owned")]));
            let hosts = BTreeMap::from([(instance.provider_id(), instance)]);
            let order = Order::Hosts(hosts.keys().cloned().collect());
            let boot = move |asked: &Boot| {
                let instance: &Instance = &hosts[&asked.provider_id];
                boot(instance, &asked.data)
            };
            Machines::Others {
                _provider: Provider::start(&cluster, order, boot),
            }
        };
        Self {
            name,
            cluster,
            _machines: machines,
        }
    }
}

/// The tenants, and the changes that have been printed.
struct Story<'a> {
    management: &'a Management,
    cloud: &'a Cloud,
    tenants: Vec<Tenant>,
    start: Instant,
    told: BTreeSet<String>,
}

fn role(account: &str, name: &str) -> String {
    format!("arn:aws:iam::{account}:role/{name}")
}

impl Story<'_> {
    /// Applies a manifest, and prints it and kubectl's output.
    fn apply(&self, file: &str, manifest: &str) {
        println!("$ cat {file}");
        print!("{manifest}");
        println!("$ kubectl apply -f {file}");
        self.apply_quietly(manifest);
    }

    fn apply_quietly(&self, manifest: &str) {
        let kubectl = self.management.kubectl();
        let output = kubectl.run_with_input(["apply", "-f", "-"], manifest);
        print!("{}{}", text(&output.stdout), text(&output.stderr));
    }

    /// Prints kubectl's output, and returns the output.
    fn show(&self, words: &[&str]) -> String {
        println!("$ kubectl {}", words.join(" "));
        let output = self.management.kubectl().run(words);
        print!("{}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Prints the objects of a tenant's workload cluster.
    fn show_in(&self, name: &str, kind: &str) {
        println!("$ kubectl --context {name} get {kind}");
        for tenant in self.tenants.iter().filter(|one| one.name == name) {
            let kubectl = tenant.cluster.control_plane().kubectl();
            let output = kubectl.run(["get", kind]);
            print!("{}{}", text(&output.stdout), text(&output.stderr));
        }
    }

    fn identities(&self) {
        let sts = self.cloud.sts();
        let [
            (_, key_account),
            (_, role_account),
            (_, token_account),
            (_, team_account),
            _,
        ] = TENANTS;
        let controller = format!("arn:aws:iam::{ACCOUNT}:user/{CONTROLLER}");

        println!("\n== by-key: an access key of account {key_account} ==");
        self.cloud.learn(key_account, "nodes");
        let (id, secret) = access_key(key_account);
        println!(
            "$ kubectl create secret generic by-key -n capa-system --from-literal=AccessKeyID=... ..."
        );
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "by-key", "namespace": "capa-system"},
            "stringData": {"AccessKeyID": id, "SecretAccessKey": secret},
        });
        self.apply_quietly(&secret.to_string());
        self.apply("by-key.yaml", BY_KEY);
        self.name("by-key", "AWSClusterStaticIdentity", "by-key");

        println!(
            "\n== by-role: a role of account {role_account} through a jump role, with an external ID =="
        );
        sts.role(&role(ACCOUNT, "jump"), Trust::of(&controller));
        let trust = Trust::of(&role(ACCOUNT, "jump")).external_id("7a5b816a");
        sts.role(&role(role_account, "nodes"), trust);
        let manifest = BY_ROLE.replace("NODES", &role(role_account, "nodes"));
        let manifest = manifest.replace("JUMP", &role(ACCOUNT, "jump"));
        self.apply("by-role.yaml", &manifest);
        self.name("by-role", "AWSClusterRoleIdentity", "by-role");

        println!(
            "\n== by-token: a role of account {token_account} that a service account assumes =="
        );
        let trust = Trust::of_service_account("by-token", "nodes");
        sts.role(&role(token_account, "nodes"), trust);
        let manifest = BY_TOKEN.replace("NODES", &role(token_account, "nodes"));
        self.apply("by-token.yaml", &manifest);

        println!(
            "\n== by-team: a role of account {team_account}, from a config map of AWS Controllers for Kubernetes =="
        );
        sts.role(&role(team_account, "nodes"), Trust::of(&controller));
        let manifest = BY_TEAM_MAP.replace("NODES", &role(team_account, "nodes"));
        self.apply("by-team.yaml", &manifest);
        self.show(&[
            "annotate",
            "namespace",
            "by-team",
            "services.k8s.aws/team-id=team-a",
        ]);

        println!(
            "\n== stranger: refers to the identity of by-role, which does not permit the namespace of stranger =="
        );
        self.name(STRANGER, "AWSClusterRoleIdentity", "by-role");
    }

    /// Makes an AWSCluster refer to an identity.
    fn name(&self, tenant: &str, kind: &str, identity: &str) {
        let patch = json!({"spec": {"identityRef": {"kind": kind, "name": identity}}}).to_string();
        let target = ["patch", "awscluster", tenant, "-n", tenant];
        self.show(&[&target[..], &["--type", "merge", "-p", &patch]].concat());
    }

    fn nodes_join(&mut self) -> bool {
        println!(
            "\n== A MachineDeployment with one instance for each Cluster, in the tenant's account =="
        );
        for tenant in &self.tenants {
            let spec = if tenant.name == "by-token" {
                json!({"aws": {"serviceAccountIdentity": "nodes"}})
            } else {
                json!({})
            };
            authorize(self.management, &tenant.cluster, &["aws"], spec);
            let config = image::rendered(&Attestor::AWS, &image::TOLD_BY_EC2);
            tenant.cluster.machine_deployment_of("workers", 1, config);
        }
        self.start = Instant::now();
        let found = poll(PATIENCE, || {
            self.tell_changes();
            let mut permitted = self.tenants.iter().filter(|one| one.name != STRANGER);
            let is_ready = |tenant: &Tenant| nodes(tenant).iter().any(|(_, is_ready)| *is_ready);
            (permitted.all(is_ready) && self.stranger_has_asked()).then_some(())
        });
        self.tell_changes();
        if found.is_none() {
            println!("  this did not happen within {} s", PATIENCE.as_secs());
        }
        for (name, _) in TENANTS {
            self.show_in(name, "nodes");
        }
        found.is_some()
    }

    fn tell_changes(&mut self) {
        let mut lines = Vec::new();
        for tenant in &self.tenants {
            let name = tenant.name;
            for csr in tenant.cluster.control_plane().csrs() {
                let signer = csr["spec"]["signerName"].as_str().unwrap_or_default();
                lines.push(format!("{name:<9} request to {signer}"));
                for condition in csr["status"]["conditions"].as_array().into_iter().flatten() {
                    let text = |field: &str| condition[field].as_str().unwrap_or_default();
                    let kind = text("type").to_lowercase();
                    lines.push(format!("{name:<9} {kind}: {}", text("reason")));
                }
            }
            let ready = nodes(tenant).into_iter().filter(|(_, is_ready)| *is_ready);
            lines.extend(ready.map(|(node, _)| format!("{name:<9} Node {node} is ready")));
        }
        for line in lines {
            if self.told.insert(line.clone()) {
                println!("  {:>6.1} s  {line}", self.start.elapsed().as_secs_f64());
            }
        }
    }

    fn stranger_has_asked(&self) -> bool {
        let mut tenants = self.tenants.iter();
        let stranger = tenants.find(|one| one.name == STRANGER);
        stranger.is_some_and(|one| !one.cluster.control_plane().csrs().is_empty())
    }

    fn explain(&self, tenant: &str) -> String {
        let words = ["tenancy", "explain", tenant, "-n", tenant];
        let words = [&words[..], &OPTIONS].concat();
        println!("$ node-attestation-controller {}", words.join(" "));
        let output = Command::new(program("node-attestation-controller"))
            .args(words)
            .arg("--kubeconfig")
            .arg(self.management.control_plane().admin_kubeconfig())
            .output()
            .expect("the controller can be started");
        print!("{}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    fn identities_are_explained(&self) -> bool {
        println!("\n== The identities of EC2 calls ==");
        let permitted = TENANTS.iter().filter(|(name, _)| *name != STRANGER);
        let explained = permitted.map(|(name, account)| {
            let text = self.explain(name);
            println!();
            let has = |label: &str, value: &str| {
                let mut lines = text.lines().filter_map(|line| line.split_once(':'));
                lines.any(|(name, found)| name == label && found.trim() == value)
            };
            has("Account", account) && has("Result", "Resolved")
        });
        // Explain all requests, even after an unexpected result.
        explained.filter(|one| !one).count() == 0
    }

    fn the_stranger_is_refused(&self) -> bool {
        println!("== The stranger's node waits, and the condition shows the reason ==");
        self.show_in(STRANGER, "csr");
        let words = ["get", "kubeletauthentication", STRANGER, "-n", STRANGER];
        let found = self.management.kubectl().json(words);
        let condition = condition_of(&found, "AWSIdentityResolved");
        let path = "jsonpath={.status.conditions[?(@.type=='AWSIdentityResolved')]}{'\\n'}";
        self.show(&[&words[..], &["-o", path]].concat());
        let of = format!("regarding.name={STRANGER},reason=UsageUnauthorized");
        let columns = "custom-columns=TYPE:.type,REASON:.reason,NOTE:.note";
        let kind = "events.events.k8s.io";
        let events = self.show(&[
            "get",
            kind,
            "-n",
            STRANGER,
            "--field-selector",
            &of,
            "-o",
            columns,
        ]);
        let told = self.explain(STRANGER);
        condition["status"] == "False"
            && condition["reason"] == "UsageUnauthorized"
            && [&*condition["message"].to_string(), &events, &told]
                .iter()
                .all(|text| text.contains("AWSClusterRoleIdentity/by-role"))
            && self
                .tenants
                .iter()
                .all(|one| (one.name == STRANGER) == nodes(one).is_empty())
    }
}

/// The Nodes, and whether each Node is ready.
fn nodes(tenant: &Tenant) -> Vec<(String, bool)> {
    let list = tenant
        .cluster
        .control_plane()
        .kubectl()
        .json(["get", "nodes"]);
    let nodes = list["items"].as_array().into_iter().flatten();
    nodes
        .map(|node| {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            (
                name.to_owned(),
                condition_of(node, "Ready")["status"] == "True",
            )
        })
        .collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const BY_KEY: &str = "\
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSClusterStaticIdentity
metadata: {name: by-key}
spec:
  secretRef: by-key
  allowedNamespaces: {selector: {matchLabels: {kubernetes.io/metadata.name: by-key}}}
";

const BY_ROLE: &str = "\
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSClusterRoleIdentity
metadata: {name: jump}
spec:
  roleARN: JUMP
  allowedNamespaces: {}
  sourceIdentityRef: {kind: AWSClusterControllerIdentity, name: default}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSClusterRoleIdentity
metadata: {name: by-role}
spec:
  roleARN: NODES
  externalID: 7a5b816a
  allowedNamespaces: {list: [by-role]}
  sourceIdentityRef: {kind: AWSClusterRoleIdentity, name: jump}
";

const BY_TOKEN: &str = "\
apiVersion: v1
kind: ServiceAccount
metadata: {name: nodes, namespace: by-token}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: AWSServiceAccountIdentity
metadata: {name: nodes, namespace: by-token}
spec:
  roleARN: NODES
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: node-attestation-controller-tokens, namespace: by-token}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: node-attestation-controller-tokens}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: node-attestation-controller}
";

const BY_TEAM_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: ack-role-team-map, namespace: ack-system}
data:
  team-a: NODES
";
