//! The demo with a Cluster API cluster: kubectl applies the objects, and machines with TPMs start.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::binaries::KUBERNETES_VERSION;
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Kubectl, User, has_condition,
};
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_test_support::settings;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::fleet::{Manager, condition_of, grant};
use kubelet_authenticator_tests::management::{Management, Order, Provider, WorkloadCluster};
use kubelet_authenticator_tests::{image, program, tpm};
use serde_json::{Value, json};

use crate::attacker::{Attacker, BUILT_IN, Verdict, Wish};

/// The deadline for machines to boot and join.
const PATIENCE: Duration = Duration::from_secs(480);

/// A lifetime that is longer than the demo.
const TOKEN_TTL: Duration = Duration::from_secs(15 * 60);

const NAMESPACE: &str = "tenant-a";

/// The number of characters of a request's name that the demo prints. They distinguish the request from other requests.
const NAME: usize = 30;

/// The hosts. A rollout requires one host more than the number of Machines.
const HOSTS: [&str; 3] = ["worker-1", "worker-2", "worker-3"];

const AUTHENTICATION: &str = "\
apiVersion: attestation.cluster.x-k8s.io/v1alpha1
kind: KubeletAuthentication
metadata: {name: prod-1, namespace: tenant-a}
spec:
  clusterName: prod-1
  authorizedAttestors: [tpm]
  autoApproveBindings: Remove
  tpm: {endorsementKeys: {configMaps: [hosts]}}
";

const DEPLOYMENT: &str = "\
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {name: workers, namespace: tenant-a}
spec:
  clusterName: prod-1
  replicas: 2
  template:
    spec:
      clusterName: prod-1
      version: v1.36.3
      bootstrap: {configRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: KubeadmConfigTemplate, name: workers}}
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: GenericMachineTemplate, name: workers}
";

/// Runs the demo. Returns `false` if a step has an unexpected result.
pub fn story() -> bool {
    println!(
        "Real Cluster API, kubeadm, cloud-init, systemd and kubelets; each machine is a set of namespaces with a TPM."
    );
    let management = Management::managed(TOKEN_TTL);
    grant(&management);
    let keys = Scratch::new("challenge-keys");
    keys.write("current", "0f".repeat(32));
    let keys = keys.path().display().to_string();
    let arguments = ["--tpm-challenge-keys", &keys];
    let _manager = Manager::start(&management, "node-attestation-controller", &arguments);
    let cluster = management.cluster("prod-1").namespace(NAMESPACE);
    let (manifests, cluster) = cluster.apiserver_arg("--anonymous-auth=true").manifests();
    cluster.control_plane().prepare_for_joins();
    println!("\n== A Cluster of Cluster API, with an external control plane ==");
    let manifests: Vec<_> = manifests.iter().map(Value::to_string).collect();
    apply(
        management.kubectl(),
        "cluster.yaml",
        &manifests.join("\n---\n"),
    );
    let cluster = cluster.wait();
    let hosts = image::hosts_with_tpms(HOSTS.map(|host| format!("metal:///rack-1/{host}")));
    image::list(management.kubectl(), NAMESPACE, &hosts);
    let order = Order::Hosts(hosts.keys().cloned().collect());
    let tpms = hosts
        .iter()
        .map(|(id, (_, tpm))| (id.clone(), Arc::clone(tpm)));
    let boot = image::machine(&cluster, Attestor::TPM, tpms.collect());
    let _provider = Provider::start(&cluster, order, boot);
    let mut story = Story {
        management: management.kubectl(),
        cluster: &cluster,
        start: Instant::now(),
        told: BTreeSet::new(),
    };

    println!("\n== Three hosts, identified by the SHA-256 of their TPMs' endorsement keys ==");
    for (provider_id, (digest, _)) in &hosts {
        println!("  {provider_id}  {digest:.16}...");
    }
    let joined = story.two_machines_join();
    let answered = joined && story.logs_are_answered();
    let refused = joined && story.attacks_are_refused();
    joined && answered && refused && story.the_machines_are_rolled()
}

/// The clusters, and the changes that have been printed.
struct Story<'a> {
    management: &'a Kubectl,
    cluster: &'a WorkloadCluster,
    start: Instant,
    told: BTreeSet<String>,
}

/// Applies a manifest, and prints kubectl's output.
fn apply(kubectl: &Kubectl, file: &str, manifest: &str) {
    println!("$ kubectl apply -f {file}");
    let output = kubectl.run_with_input(["apply", "-f", "-"], manifest);
    print!("{}{}", text(&output.stdout), text(&output.stderr));
}

impl Story<'_> {
    fn plane(&self) -> &ControlPlane {
        self.cluster.control_plane()
    }

    /// Applies a manifest, and prints it and kubectl's output.
    fn apply(&self, file: &str, manifest: &str) {
        println!("$ cat {file}");
        print!("{manifest}");
        apply(self.management, file, manifest);
    }

    /// Prints kubectl's output, and returns the output.
    fn show(&self, kubectl: &Kubectl, words: &[&str]) -> Output {
        println!("$ kubectl {}", words.join(" "));
        let output = kubectl.run(words);
        print!("{}{}", text(&output.stdout), text(&output.stderr));
        output
    }

    /// Prints each change, until `is_so` returns true.
    fn tell_until(&mut self, is_so: impl Fn(&Self) -> bool) -> bool {
        let found = poll(PATIENCE, || {
            self.tell_changes();
            is_so(self).then_some(())
        });
        self.tell_changes();
        if found.is_none() {
            println!("  this did not happen within {} s", PATIENCE.as_secs());
        }
        found.is_some()
    }

    fn tell_changes(&mut self) {
        for machine in self.machines() {
            let phase = machine["status"]["phase"].as_str().unwrap_or("Pending");
            self.tell("Machine", name(&machine), &phase.to_lowercase());
        }
        let mut requests = self.plane().csrs();
        // If two requests were created within the same second, the request with the challenge is the first.
        requests.sort_by_key(|csr| {
            let created = csr["metadata"]["creationTimestamp"].as_str();
            (created.map(str::to_owned), !has_condition(csr, "Failed"))
        });
        for csr in requests {
            let words = |field: &str| csr["spec"][field].as_str().unwrap_or_default().to_owned();
            let name: String = name(&csr).chars().take(NAME).collect();
            let asked = format!("of {} to {}", words("username"), words("signerName"));
            self.tell("request", &name, &asked);
            for condition in csr["status"]["conditions"].as_array().into_iter().flatten() {
                let text = |field: &str| condition[field].as_str().unwrap_or_default();
                let kind = text("type").to_lowercase();
                self.tell("request", &name, &format!("{kind}: {}", text("reason")));
            }
        }
        for node in items(self.plane().kubectl(), &["get", "nodes"]) {
            if condition_of(&node, "Ready")["status"] == "True" {
                self.tell("Node", name(&node), "ready");
            }
        }
    }

    fn tell(&mut self, kind: &str, name: &str, what: &str) {
        let line = format!("{kind:<8} {name:<NAME$} {what}");
        if self.told.insert(line.clone()) {
            println!("  {:>6.1} s  {line}", self.start.elapsed().as_secs_f64());
        }
    }

    fn machines(&self) -> Vec<Value> {
        items(self.management, &["get", "machines", "-n", NAMESPACE])
    }

    /// Whether two Machines whose names differ from these names are running.
    fn two_run_besides(&self, former: &[String]) -> bool {
        let machines = self.machines();
        machines.len() == 2
            && machines.iter().all(|machine| {
                machine["status"]["phase"] == "Running"
                    && !former.iter().any(|former| former == name(machine))
            })
    }

    /// The names of the Machines' Nodes.
    fn nodes(&self) -> Vec<String> {
        let of = |machine: &Value| {
            machine["status"]["nodeRef"]["name"]
                .as_str()
                .map(str::to_owned)
        };
        self.machines().iter().filter_map(of).collect()
    }

    fn two_machines_join(&mut self) -> bool {
        println!("\n== Authorized hosts, and a MachineDeployment of two Machines ==");
        self.show(
            self.management,
            &[
                "get",
                "clusters.cluster.x-k8s.io,configmaps",
                "-n",
                NAMESPACE,
            ],
        );
        self.apply("authentication.yaml", AUTHENTICATION);
        let options = image::TOLD_BY_METADATA;
        println!(
            "$ kubelet-authenticator-tpm render kubeadm-config --name workers ... > workers.yaml"
        );
        let config = json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
            "kind": "KubeadmConfigTemplate",
            "metadata": { "name": "workers", "namespace": NAMESPACE },
            "spec": { "template": { "spec": image::rendered(&Attestor::TPM, &options) } },
        });
        let template = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
            "kind": "GenericMachineTemplate",
            "metadata": { "name": "workers", "namespace": NAMESPACE },
            "spec": { "template": { "spec": {} } },
        });
        let templates = json!({ "apiVersion": "v1", "kind": "List", "items": [config, template] });
        apply(self.management, "workers.yaml", &templates.to_string());
        let deployment = DEPLOYMENT.replace("v1.36.3", &KUBERNETES_VERSION);
        self.apply("deployment.yaml", &deployment);
        self.start = Instant::now();
        let joined = self.tell_until(|story| {
            let words = ["get", "kubeletauthentication", "prod-1", "-n", NAMESPACE];
            let authentication = story.management.json(words);
            let serves = |csr: &Value| {
                csr["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
                    && csr["status"]["certificate"].is_string()
            };
            let nodes = items(story.plane().kubectl(), &["get", "nodes"]);
            let ready = |node: &&Value| condition_of(node, "Ready")["status"] == "True";
            story.two_run_besides(&[])
                && nodes.iter().filter(ready).count() == 2
                && condition_of(&authentication, "AutoApprovePathsClosed")["status"] == "True"
                && story
                    .plane()
                    .csrs()
                    .iter()
                    .filter(|csr| serves(csr))
                    .count()
                    >= 2
        });
        self.tables();
        joined
    }

    /// Prints the tables that operators use.
    fn tables(&self) {
        let kinds = "kubeletauthentications,machines,nodeidentities";
        self.show(self.management, &["get", kinds, "-n", NAMESPACE]);
        self.show(self.plane().kubectl(), &["get", "nodes"]);
    }

    fn logs_are_answered(&self) -> bool {
        println!("\n== The API server reaches a kubelet over its serving certificate ==");
        let nodes = self.nodes();
        let Some(node) = nodes.first() else {
            return false;
        };
        let kubectl = self.plane().kubectl();
        kubectl.apply_object(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "greets", "namespace": "default" },
            "spec": {
                "nodeName": node, "hostNetwork": true,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": "every-image-is-there",
                    "command": ["sh", "-c", "echo it runs on $(uname -n); exec sleep 3600"],
                }],
            },
        }));
        let answered = poll(PATIENCE, || {
            let output = kubectl.run(["logs", "greets"]);
            (!output.stdout.is_empty()).then_some(())
        });
        let output = self.show(kubectl, &["logs", "greets"]);
        answered.is_some() && text(&output.stdout) == format!("it runs on {node}\n")
    }

    fn attacks_are_refused(&self) -> bool {
        println!(
            "\n== Attacks: an attacker has a Machine's bootstrap token and a different TPM =="
        );
        let machines = self.machines();
        let nodes = self.nodes();
        let (Some(machine), Some(victim)) = (machines.first(), nodes.first()) else {
            return false;
        };
        let words = ["get", "kubeadmconfig", name(machine), "-n", NAMESPACE];
        let config = self.management.json(words);
        let discovery = &config["spec"]["joinConfiguration"]["discovery"];
        let token = discovery["bootstrapToken"]["token"]
            .as_str()
            .unwrap_or_default();
        println!("  The attacker requests a node's certificate from Kubernetes' own signer:");
        let plane = self.plane();
        let attacker = Attacker::new(plane.server(), plane.ca().certificate_pem(), token);
        let verdict = attacker.ask(&Wish::node("worker-2", BUILT_IN));
        let forbidden = match &verdict {
            Verdict::Refused { kind, message, .. } => {
                println!("      {kind}: {message}");
                kind == "HTTP 403" || kind == "HTTP 422"
            }
            Verdict::Issued(_) | Verdict::Undecided => {
                println!("      NOT REFUSED: {}", verdict.summary());
                false
            }
        };
        println!("  The attacker runs the plugin as {victim}, the owner of the token:");
        let own = Arc::new(Swtpm::start());
        let digest = tpm::endorsement_key(&TpmMachine::new(Arc::clone(&own), EndorsementKey::P384));
        println!("      endorsement key of the attacker's TPM: {digest:.16}...");
        let run = self.plugin(victim, token, &own.tcti());
        println!("$ kubelet-authenticator-tpm renew; echo $?");
        let code = run.status.code();
        print!("{}{}", text(&run.stdout), text(&run.stderr));
        println!("{}", code.map_or_else(String::new, |code| code.to_string()));
        forbidden && code == Some(12)
    }

    /// Runs the plugin outside the machines of the cluster.
    fn plugin(&self, node_name: &str, token: &str, tcti: &str) -> Output {
        let state = Scratch::new("attacker");
        let plane = self.plane();
        let settings = [
            ("nodeName", node_name.to_owned()),
            ("providerID", format!("metal:///rack-1/{node_name}")),
            ("tpm.tcti", tcti.to_owned()),
            ("stateDirectory", state.join("state").display().to_string()),
            (
                "bootstrapKubeconfig",
                plane
                    .kubeconfig(User::Token(token.to_owned()))
                    .display()
                    .to_string(),
            ),
        ];
        let settings = settings.into_iter();
        Command::new(program("kubelet-authenticator-tpm"))
            .args(settings.map(|(key, value)| settings::option(key, value)))
            .arg("renew")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output()
            .expect("the plugin can be started")
    }

    fn the_machines_are_rolled(&mut self) -> bool {
        println!("\n== The rollout replaces each Machine, and its node identity ==");
        let former: Vec<String> = self
            .machines()
            .iter()
            .map(|one| name(one).to_owned())
            .collect();
        let after = humantime::format_rfc3339_seconds(now());
        let patch = format!(r#"{{"spec": {{"rollout": {{"after": "{after}"}}}}}}"#);
        let target = ["patch", "machinedeployment", "workers", "-n", NAMESPACE];
        let words = [&target[..], &["--type", "merge", "-p", &patch]].concat();
        let kubectl = self.management;
        self.show(kubectl, &words);
        self.start = Instant::now();
        let rolled = self.tell_until(|story| {
            let words = ["get", "nodeidentities", "-n", NAMESPACE];
            let live = |record: &Value| record["spec"]["tombstone"].is_null();
            let records = items(story.management, &words);
            story.two_run_besides(&former) && records.iter().filter(|one| live(one)).count() == 2
        });
        self.tables();
        rolled
    }
}

fn items(kubectl: &Kubectl, words: &[&str]) -> Vec<Value> {
    let list = kubectl.json(words);
    list["items"].as_array().cloned().unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
