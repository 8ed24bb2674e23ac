//! A management cluster whose controller challenges TPMs, with clusters and machines.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::control_plane::Exec;
use kubelet_authenticator_test_support::kubelet::KubeletBuilder;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::controller::reason_of;
use kubelet_authenticator_tests::fleet::{
    Manager, allow_short_certificates, authorize, kubelet_of_tpm, management,
};
use kubelet_authenticator_tests::management::{Machine, Management};
use kubelet_authenticator_tests::scene::{Scene, Site};
use kubelet_authenticator_tests::scrape::Diagnostics;
use kubelet_authenticator_tests::{packaging, program};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The controller's user name in the clusters, from the manifests with its permissions.
const CONTROLLER: &str = "node-attestation-controller";

/// The manifest with the controller's permissions in a workload cluster.
const RIGHTS: &str = "rbac/workload-cluster.yaml";

/// The addresses of the shared site's metrics and probes.
pub static DIAGNOSTICS: LazyLock<Diagnostics> = LazyLock::new(Diagnostics::default);

/// The site that all tests share, because every test has a separate Cluster, or separate machines in a Cluster.
pub static SITE: LazyLock<(Arc<Site>, ChallengeKeys)> = LazyLock::new(|| {
    let management = management();
    allow_short_certificates(&management);
    let keys = ChallengeKeys::new();
    let [metrics, health] = DIAGNOSTICS.arguments();
    let manager = challenger(&management, keys.path(), &[&metrics, &health]);
    let site = Site {
        management,
        manager,
    };
    (Arc::new(site), keys)
});

/// A Cluster with default settings.
pub static USUAL: LazyLock<Scene> = LazyLock::new(|| cluster("usual", json!({})));

/// Sets up `node-attestation-controller run` with the keys in this directory, and with these options.
pub fn challenger(management: &Management, keys: &Path, more: &[&str]) -> Manager {
    let keys = keys.display().to_string();
    let options = ["--tpm-challenge-keys", &keys, "--allow-insecure"];
    Manager::start(management, CONTROLLER, &[&options[..], more].concat())
}

/// A Cluster for machines with TPMs, in which the controller has only the permissions in its manifest.
pub fn cluster(namespace: &str, settings: Value) -> Scene {
    let (site, _) = &*SITE;
    let cluster = site.management.cluster("prod-1").namespace(namespace);
    let cluster = cluster.create();
    let plane = cluster.control_plane();
    let rights = packaging().join(RIGHTS);
    let words = [Path::new("apply"), Path::new("-f"), &rights];
    plane.kubectl().ok(words);
    let kubeconfig = plane.client_cert_kubeconfig(CONTROLLER, None);
    cluster.write_kubeconfig(&fs::read_to_string(kubeconfig).unwrap());
    let authentication = authorize(&site.management, &cluster, &["tpm"], settings);
    authentication.wait_until_ready(site.management.kubectl());
    Scene {
        site: site.clone(),
        cluster,
        authentication,
    }
}

/// A mounted Secret in the kubelet's format: the files are links to a directory, and each change creates a new
/// directory.
pub struct ChallengeKeys {
    directory: Scratch,
    versions: AtomicU32,
}

impl ChallengeKeys {
    fn new() -> Self {
        let keys = Self {
            directory: Scratch::new("challenge-keys"),
            versions: AtomicU32::new(0),
        };
        for name in ["current", "former"] {
            symlink(Path::new("..data").join(name), keys.path().join(name)).unwrap();
        }
        keys.write(&[("current", key(1))]);
        keys
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Replaces all files in one step.
    pub fn write(&self, files: &[(&str, String)]) {
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        let version = format!("..{version}");
        let content = self.directory.directory(&version);
        for (name, key) in files {
            fs::write(content.join(name), key).unwrap();
        }
        let new = self.path().join("..data_tmp");
        symlink(&version, &new).unwrap();
        fs::rename(new, self.path().join("..data")).unwrap();
    }
}

/// A key in the format of `openssl rand -hex 32`, but not random.
pub fn key(number: u8) -> String {
    format!("{}\n", format!("{number:02x}").repeat(32))
}

/// Creates a new TPM.
pub fn tpm() -> Arc<Swtpm> {
    Arc::new(Swtpm::start())
}

/// The digest of the TPM's endorsement key, as reported by tpm2-tools.
pub fn endorsement_key(tpm: &Arc<Swtpm>) -> String {
    let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P384);
    hex(&Sha256::digest(machine.ek_spki()))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A Machine whose provider ID is derived from this TPM.
pub fn machine(scene: &Scene, name: &str, tpm: &Arc<Swtpm>) -> Machine {
    let provider_id = format!("tpm://{}", endorsement_key(tpm));
    scene
        .cluster
        .machine(name)
        .provider_id(&provider_id)
        .create()
}

/// Starts a kubelet on this Machine, whose TPM has this address.
pub fn kubelet(scene: &Scene, machine: &Machine, tcti: &str) -> KubeletBuilder {
    kubelet_of_tpm(&scene.cluster, machine, tcti)
}

/// The plugin. kubectl runs the plugin in the same way as the kubelet does. The caller has a TPM and all data of the
/// Machine: its names and its bootstrap token.
pub struct Plugin<'a> {
    scene: &'a Scene,
    kubeconfig: PathBuf,
    machine: Machine,
}

impl<'a> Plugin<'a> {
    pub fn of(scene: &'a Scene, machine: &Machine, tcti: &str) -> Self {
        let plane = scene.cluster.control_plane();
        let state = plane.directory("state").display().to_string();
        let bootstrap = machine.bootstrap_kubeconfig().display().to_string();
        let settings = [
            ("bootstrapKubeconfig", &*bootstrap),
            ("stateDirectory", &state),
            ("nodeName", machine.node_name()),
            ("providerID", machine.provider_id()),
            ("tpm.tcti", tcti),
        ];
        let exec = Exec::new(program("kubelet-authenticator-tpm")).provide_cluster_info();
        let exec = settings
            .into_iter()
            .fold(exec, |exec, (key, value)| exec.setting(key, value));
        Self {
            scene,
            kubeconfig: plane.exec_kubeconfig(exec),
            machine: machine.clone(),
        }
    }

    /// Queries the user's own identity from the API server. The query requires a certificate.
    fn ask(&self) -> Output {
        let plane = self.scene.cluster.control_plane();
        plane.kubectl_with(&self.kubeconfig).run(["auth", "whoami"])
    }

    /// Asserts that the caller becomes the node.
    #[track_caller]
    pub fn joins(&self) {
        let output = self.ask();
        let told = String::from_utf8_lossy(&output.stdout);
        let is_node = told.contains(&node_user(&self.machine));
        assert!(is_node, "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Asserts that the caller is denied for this reason.
    #[track_caller]
    pub fn is_denied(&self, reason: &str) {
        let output = self.ask();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(told.contains("exit code 12"), "{told}");
        assert!(told.contains(reason), "{told}");
        let requests = requests(self.scene, &requester(&self.machine));
        let denied = requests.iter().filter_map(|csr| reason_of(csr, "Denied"));
        assert!(denied.eq([reason]), "{requests:#?}");
    }
}

/// The user name of the Machine's bootstrap token.
pub fn requester(machine: &Machine) -> String {
    let bearer = machine.token().bearer();
    let (id, _) = bearer.split_once('.').unwrap();
    format!("system:bootstrap:{id}")
}

/// The user name in the Machine's certificate.
pub fn node_user(machine: &Machine) -> String {
    format!("system:node:{}", machine.node_name())
}

/// The requests from this user to the client signer of the provider `tpm`, oldest first.
pub fn requests(scene: &Scene, user: &str) -> Vec<Value> {
    let mut requests = scene.cluster.control_plane().csrs();
    let signer = Provider::TPM.client_signer();
    requests.retain(|csr| csr["spec"]["username"] == user && csr["spec"]["signerName"] == signer);
    requests.sort_by_key(|csr| {
        let version = csr["metadata"]["resourceVersion"].as_str().unwrap();
        version.parse::<u64>().unwrap()
    });
    requests
}
