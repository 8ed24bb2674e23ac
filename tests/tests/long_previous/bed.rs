//! A management cluster in which the version of the project changes. For each attestation provider, it has one Cluster
//! with nodes.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Exec, User};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_test_support::settings::option;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::cloud::Cloud;
use kubelet_authenticator_tests::fleet::{Authentication, Manager, authorize};
use kubelet_authenticator_tests::management::{Management, WorkloadCluster, owned};
use kubelet_authenticator_tests::scene::SWEPT;
use kubelet_authenticator_tests::tpm::provider_id;
use kubelet_authenticator_tests::versions::Version;
use node_attestation_runtime::hardening::admission::POLICY_NAME;
use serde_json::{Value, json};

const CONTROLLER: &str = "node-attestation-controller";

/// The attestation providers, each of which has its own Cluster in a namespace with this name.
pub const ATTESTORS: [&str; 3] = ["aws", "insecure", "tpm"];

/// A duration of the Lease that makes the kubelet send frequent requests.
const LEASE: u32 = 12;

/// The number of writes with node certificates.
static WRITES: AtomicU32 = AtomicU32::new(0);

/// The fields of a record that each renewal can update.
const RENEWED: [&str; 2] = ["renewedUntil", "lastTpmBoot"];

/// The clusters, and the programs that currently run.
pub struct Bed {
    manager: Option<Manager>,
    management: Management,
    clusters: BTreeMap<&'static str, (WorkloadCluster, Authentication)>,
    cloud: Cloud,
    /// The directory with links to the plugins.
    plugins: Scratch,
    challenge_keys: Scratch,
}

impl Bed {
    /// Starts this version of the project, with one Cluster for each attestation provider. Attestation is enforced in
    /// each Cluster.
    #[track_caller]
    pub fn start(version: &Version) -> Self {
        let management = Management::start_with_manifests(&version.manifests());
        let challenge_keys = Scratch::new("challenge-keys");
        challenge_keys.write("current", "0f".repeat(32));
        let mut bed = Self {
            manager: None,
            management,
            clusters: BTreeMap::new(),
            cloud: Cloud::start(),
            plugins: Scratch::new("plugins"),
            challenge_keys,
        };
        bed.install(version);
        bed.run(version);
        for attestor in ATTESTORS {
            let cluster = bed
                .management
                .cluster("prod-1")
                .namespace(attestor)
                .create();
            // The controller defines the kind itself.
            let definition = "revokednodecredentials.attestation.cluster.x-k8s.io";
            let kubectl = cluster.control_plane().kubectl();
            kubectl.ok(["delete", "customresourcedefinition", definition]);
            let settings = json!({ "autoApproveBindings": "Remove" });
            let authentication = authorize(&bed.management, &cluster, &[attestor], settings);
            authentication.wait_until_ready(bed.management.kubectl());
            bed.clusters.insert(attestor, (cluster, authentication));
        }
        bed.is_enforced();
        bed
    }

    /// Changes the controller to this version, in the order of docs/upgrade.md, and waits until it serves each Cluster.
    #[track_caller]
    pub fn run(&mut self, version: &Version) {
        version.apply(self.management.kubectl());
        if let Some(manager) = self.manager.take() {
            manager.stop();
        }
        let keys = self.challenge_keys.path().display().to_string();
        let arguments = ["--tpm-challenge-keys", &keys, "--allow-insecure"];
        let program = version.program(CONTROLLER);
        let manager = Manager::aws_of(program, &self.management, &self.cloud, &arguments);
        self.manager = Some(manager);
        for (_, authentication) in self.clusters.values() {
            let kubectl = self.management.kubectl();
            authentication.touch(kubectl, "Ready");
            authentication.wait_until_ready(kubectl);
        }
    }

    /// Changes the plugins on all nodes to this version.
    #[track_caller]
    pub fn install(&self, version: &Version) {
        for attestor in ATTESTORS {
            let name = plugin(attestor);
            let new = self.plugins.join("new");
            symlink(version.program(&name), &new).unwrap();
            fs::rename(new, self.plugins.join(&name)).unwrap();
        }
    }

    /// Waits until attestation is enforced in each Cluster.
    #[track_caller]
    pub fn is_enforced(&self) {
        for (cluster, authentication) in self.clusters.values() {
            let kubectl = self.management.kubectl();
            authentication.wait_for(kubectl, "AutoApprovePathsClosed", "True", "Closed");
            let words = ["get", "validatingadmissionpolicybindings", POLICY_NAME];
            let binding = cluster.control_plane().kubectl().json(words);
            let actions = &binding["spec"]["validationActions"];
            assert_eq!(*actions, json!(["Deny"]), "{binding:#}");
        }
    }

    /// Runs a command `identities revoke` or `identities reset` of this version.
    #[track_caller]
    pub fn identities(&self, version: &Version, what: &str, node: &Node) {
        let output = Command::new(version.program(CONTROLLER))
            .args(["identities", what, "prod-1", &node.name])
            .args(["--namespace", node.attestor])
            .arg("--kubeconfig")
            .arg(self.management.admin_kubeconfig())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// The spec of the node's record, without the fields that each renewal can update.
    #[track_caller]
    pub fn record(&self, node: &Node) -> Value {
        let name = format!("prod-1.{}", node.name);
        let words = ["get", "nodeidentities", &name, "-n", node.attestor];
        let mut spec = self.management.kubectl().json(words)["spec"].take();
        let fields = spec.as_object_mut().unwrap();
        fields.retain(|name, _| !RENEWED.contains(&name.as_str()));
        spec
    }

    fn plane(&self, attestor: &str) -> &Arc<ControlPlane> {
        self.clusters[attestor].0.control_plane()
    }
}

/// The name of the plugin for this attestation provider.
fn plugin(attestor: &str) -> String {
    format!("kubelet-authenticator-{attestor}")
}

/// A node with a real kubelet.
pub struct Node {
    pub kubelet: Kubelet,
    pub name: String,
    attestor: &'static str,
    plane: Arc<ControlPlane>,
    plugin: PathBuf,
    settings: Vec<(&'static str, String)>,
    /// The instance, or the TPM.
    _evidence: Box<dyn Any>,
}

impl Node {
    /// Joins a new machine with evidence for this attestation provider, and waits until its Node is ready.
    #[track_caller]
    pub fn join(bed: &Bed, attestor: &'static str, name: &str) -> Self {
        let (cluster, _) = &bed.clusters[attestor];
        let builder = cluster.machine(name);
        let mut evidence: Box<dyn Any> = Box::new(());
        let mut settings = Vec::new();
        let machine = match attestor {
            "aws" => {
                let instance = bed.cloud.launch(&[(&owned("prod-1"), "owned")]);
                let builder = builder.provider_id(&instance.provider_id());
                let machine = builder.node_name(instance.node_name()).create();
                settings.extend(instance.services(&bed.cloud));
                evidence = Box::new(instance);
                machine
            }
            "tpm" => {
                let tpm = TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P384);
                let machine = builder.provider_id(&provider_id(&tpm)).create();
                settings.push(("tpm.tcti", tpm.tpm().tcti()));
                settings.push(("providerID", machine.provider_id().to_owned()));
                evidence = Box::new(tpm);
                machine
            }
            _ => {
                let machine = builder.create();
                settings.push(("providerID", machine.provider_id().to_owned()));
                machine
            }
        };
        let bootstrap = machine.bootstrap_kubeconfig().display().to_string();
        settings.push(("bootstrapKubeconfig", bootstrap));
        settings.push(("nodeName", machine.node_name().to_owned()));
        let plugin = bed.plugins.join(&plugin(attestor));
        let exec = Exec::new(&plugin).provide_cluster_info();
        let exec = settings
            .iter()
            .fold(exec, |exec, (key, value)| exec.setting(key, value));
        let plane = bed.plane(attestor).clone();
        let kubeconfig = plane.kubeconfig(User::Exec(exec));
        let kubelet = plane.kubelet(machine.node_name()).kubeconfig(kubeconfig);
        let kubelet = kubelet.lease_duration(LEASE).start();
        kubelet.wait_until_ready();
        Self {
            kubelet,
            name: machine.node_name().to_owned(),
            attestor,
            plane,
            plugin,
            settings,
            _evidence: evidence,
        }
    }

    fn state(&self) -> PathBuf {
        self.kubelet.var_lib().join("kubelet-authenticator")
    }

    /// Deletes the node's key and certificate, as a reinstallation of the node does.
    pub fn lose_state(&self) {
        fs::remove_dir_all(self.state()).unwrap();
    }

    /// Runs `renew --force` on the node.
    pub fn renew(&self) -> Output {
        self.renew_with(&self.state(), &[])
    }

    /// Like [`renew`](Self::renew), but with this state directory, and with other values for these settings.
    fn renew_with(&self, state: &Path, others: &[(&str, String)]) -> Output {
        let settings = self.settings.iter().map(|(key, value)| {
            let other = others.iter().find(|(other, _)| other == key);
            option(key, other.map_or(value, |(_, value)| value))
        });
        Command::new(&self.plugin)
            .args(settings)
            .arg(option("stateDirectory", state))
            .args(["renew", "--force"])
            .output()
            .unwrap()
    }

    /// Asserts that a machine is denied if it has a different TPM, and otherwise the same data as this node.
    #[track_caller]
    pub fn refuses_another_tpm(&self) {
        let tpm = Swtpm::start();
        let state = Scratch::new("another");
        let output = self.renew_with(&state.join("state"), &[("tpm.tcti", tpm.tcti())]);
        assert_eq!(output.status.code(), Some(12), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("EndorsementKeyOfAnotherMachine"), "{error}");
    }

    /// Asserts that the node cannot renew, and waits until the plugin reports the reason: the node is revoked. During a
    /// back-off, the plugin does not send a request.
    #[track_caller]
    pub fn cannot_renew(&self) {
        let mut last = String::new();
        let refused = poll(SWEPT, || {
            let output = self.renew();
            assert!(!output.status.success(), "{}: {output:?}", self.name);
            last = String::from_utf8_lossy(&output.stderr).into_owned();
            // The reason of a denial, or the message of the admission policy.
            ["IdentityRevoked", "is revoked"]
                .iter()
                .any(|reason| last.contains(reason))
                .then_some(())
        });
        assert!(refused.is_some(), "{}: {last}", self.name);
    }

    /// A kubeconfig that contains the node's current certificate.
    #[track_caller]
    pub fn certificate(&self) -> PathBuf {
        let pem = fs::read_to_string(self.state().join("kubelet-client.pem")).unwrap();
        self.plane.kubeconfig(User::Certificate(KeyAndCertificate {
            certificate_pem: pem.clone(),
            key_pem: pem,
        }))
    }

    /// Writes with this certificate. Returns kubectl's output.
    fn write(&self, certificate: &Path) -> Output {
        // A new value is used each time, because kubectl does not send a patch without changes.
        let value = WRITES.fetch_add(1, Ordering::Relaxed);
        let label = format!("a.example/written={value}");
        let kubectl = self.plane.kubectl_with(certificate);
        kubectl.run(["label", "node", &self.name, "--overwrite", &label])
    }

    /// Asserts that the node still works: its record is still equal to `record`, the node renews with evidence, and its
    /// kubelet can write.
    #[track_caller]
    pub fn holds(&self, bed: &Bed, record: &Value) {
        assert_eq!(bed.record(self), *record, "{}", self.name);
        if self.attestor != "insecure" {
            let output = self.renew();
            assert!(output.status.success(), "{}: {output:?}", self.name);
            assert_eq!(bed.record(self), *record, "{}", self.name);
        }
        let output = self.write(&self.certificate());
        assert!(output.status.success(), "{}: {output:?}", self.name);
        self.kubelet.wait_for_lease_renewal();
    }

    /// Waits until the API server rejects writes with this certificate, because it is revoked.
    #[track_caller]
    pub fn is_refused(&self, certificate: &Path) {
        let mut last = String::new();
        let refused = poll(SWEPT, || {
            let output = self.write(certificate);
            last = String::from_utf8_lossy(&output.stderr).into_owned();
            last.contains("revoked").then_some(())
        });
        assert!(refused.is_some(), "{}: {last}", self.name);
    }
}
