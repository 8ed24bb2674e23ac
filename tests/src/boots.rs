//! Clusters whose machines are virtual machines with firmware, Secure Boot and a TPM that the kernel drives.

mod debian;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::binaries::control_plane_binary;
use kubelet_authenticator_test_support::control_plane::{Exec, Kubeconfig, User};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_test_support::virtual_machine::{
    Boot, Image, SERVER, SecureBoot, VirtualMachine,
};
use serde_json::{Value, json};

pub use self::debian::{NODE_STARTS, RENEW, confined};
use crate::fleet::{Manager, management};
use crate::management::Machine;
use crate::program;
use crate::scene::{Scene, Site};
use crate::tpm::{PLUGIN, provider_id};

/// The registers of a unified kernel image, from docs/tpm.md.
pub const OF_UNIFIED: [u8; 5] = [4, 7, 11, 12, 13];

/// The registers of shim and GRUB, from docs/tpm.md.
pub const OF_GRUB: [u8; 5] = [4, 7, 8, 9, 14];

/// The directory of the plugin and its TPM helper in a machine. Packages install only the helper there.
const PROGRAMS: &str = "/usr/lib/kubelet-authenticator";

/// The path of the TPM helper in a machine.
pub const HELPER: &str = "/usr/lib/kubelet-authenticator/kubelet-authenticator-tpm-device";

/// The default path of the bootstrap kubeconfig.
const BOOTSTRAP: &str = "/etc/kubernetes/kubelet-authenticator/bootstrap.kubeconfig";

/// The default state directory of the plugin.
const STATE: &str = "/var/lib/kubelet-authenticator";

/// A shell script that runs the plugin as the kubelet does: up to twenty times, until a run succeeds or the request is
/// denied. During a back-off (status 17), a run ends at once, so the script waits for a second.
const RUN: &str = r#"
info='{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false}}'
for run in $(seq 20); do
  KUBERNETES_EXEC_INFO=$info /usr/lib/kubelet-authenticator/kubelet-authenticator-tpm $arguments && exit
  status=$?
  [ "$status" != 12 ] || break
  [ "$status" != 17 ] || sleep 1
done
exit "$status"
"#;

/// A shell script that runs a kubelet, and a stand-in for the container runtime, until the Node is ready, or until the
/// kubelet has registered an existing Node.
const KUBELET: &str = r#"
mount -t cgroup2 cgroup /sys/fs/cgroup
ln -s /usr/bin/kubelet /run/fakecri
/run/fakecri --socket /run/cri.sock >/report/runtime 2>&1 &
until [ -S /run/cri.sock ]; do sleep 0.1; done
/usr/bin/kubelet --config /etc/kubelet.json --kubeconfig /etc/kubelet.conf --hostname-override "$(hostname)" -v=2 \
  >/report/kubelet 2>&1 &
for try in $(seq 3000); do
  if grep -oE 'just became ready|previously registered' /report/kubelet; then exit; fi
  kill -0 $! || break
  sleep 0.1
done
tail -n 20 /report/kubelet >&2
exit 1
"#;

/// The site that all tests share, because every test has a separate Cluster, or separate machines in a Cluster.
pub static SITE: LazyLock<Arc<Site>> = LazyLock::new(|| {
    let management = management();
    let keys = KEYS.path().display().to_string();
    let options = ["--tpm-challenge-keys", &keys];
    let manager = Manager::start(&management, "node-attestation-controller", &options);
    Arc::new(Site {
        management,
        manager,
    })
});

/// The directory with the controller's key.
static KEYS: LazyLock<Scratch> = LazyLock::new(|| {
    let keys = Scratch::new("challenge-keys");
    keys.write("current", "01".repeat(32));
    keys
});

/// A Cluster for machines with TPMs, without a policy for their boot states.
#[track_caller]
pub fn cluster(namespace: &str) -> Scene {
    let cluster = Scene::unattended(&SITE, namespace);
    Scene::attend_by(&SITE, cluster, "tpm", json!({}))
}

/// Allows only the boot state that these registers had after this boot.
#[track_caller]
pub fn allow_only(scene: &Scene, boot: &Boot, registers: &[u8]) {
    allow(scene, &json!([state(boot, registers)]));
}

/// Allows only these boot states.
#[track_caller]
pub fn allow(scene: &Scene, states: &Value) {
    scene.change(&json!({ "tpm": { "pcrPolicy": { "allowed": states } } }));
    scene.wait_for_condition("Ready", "True", "Ready", &[]);
}

/// The values of these registers after this boot, in the format of a policy.
#[track_caller]
pub fn state(boot: &Boot, registers: &[u8]) -> Value {
    let all = boot.registers();
    let values = registers
        .iter()
        .map(|register| (register.to_string(), hex(&all[register])));
    json!(values.collect::<BTreeMap<_, _>>())
}

/// The bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A new TPM, and the provider ID that the plugin derives from it.
#[track_caller]
pub fn new_tpm() -> (Arc<Swtpm>, String) {
    let tpm = Arc::new(Swtpm::start());
    let identity = TpmMachine::new(tpm.clone(), EndorsementKey::P384);
    let provider_id = provider_id(&identity);
    (tpm, provider_id)
}

/// The state of a join, on the disk of a machine that is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The machine has neither a certificate nor a request.
    Begun,
    /// The machine has an open request, and no certificate.
    Requested,
    /// The machine has a certificate.
    Joined,
}

/// A Machine of Cluster API, and its hardware.
#[derive(Debug)]
pub struct Host<'a> {
    scene: &'a Scene,
    /// The Machine.
    pub machine: Machine,
    /// The machine's hardware.
    pub hardware: VirtualMachine,
}

impl<'a> Host<'a> {
    /// Creates a Machine whose disk has the plugin, the TPM helper, and the bootstrap kubeconfig.
    #[track_caller]
    pub fn new(scene: &'a Scene, name: &str) -> Self {
        let (tpm, provider_id) = new_tpm();
        let plane = scene.cluster.control_plane();
        let hardware = VirtualMachine::new(name, plane, &tpm);
        hardware.program(&format!("{PROGRAMS}/{PLUGIN}"), &program(PLUGIN));
        Self::of(scene, name, hardware, &provider_id, BOOTSTRAP)
    }

    /// Creates a Machine with this hardware, and adds the TPM helper and the bootstrap kubeconfig to the disk.
    #[track_caller]
    fn of(
        scene: &'a Scene,
        name: &str,
        hardware: VirtualMachine,
        provider_id: &str,
        bootstrap: &str,
    ) -> Self {
        hardware.program(HELPER, &program("kubelet-authenticator-tpm-device"));
        let machine = scene.cluster.machine(name).provider_id(provider_id);
        let machine = machine.create();
        let token = User::Token(machine.token().bearer());
        let host = Self {
            scene,
            machine,
            hardware,
        };
        host.hardware.file(bootstrap, 0o600, host.kubeconfig(token));
        host
    }

    /// Boots, and runs the plugin as the kubelet does, until it prints a credential.
    #[track_caller]
    pub fn join(&self, image: Image, secure_boot: SecureBoot) -> Boot {
        credential(&self.hardware, image, secure_boot)
    }

    /// Boots, and renews the certificate although it is not due.
    #[track_caller]
    pub fn renew(&self, image: Image, secure_boot: SecureBoot) -> Boot {
        let commands = format!("arguments='renew --force'\n{RUN}");
        self.hardware.boot(image, secure_boot, &commands)
    }

    /// Boots, joins, and returns the time that the join took. The clock of the machine starts with the kernel.
    #[track_caller]
    pub fn join_time(&self, image: Image, secure_boot: SecureBoot) -> Duration {
        let uptime = "cut -d ' ' -f 1 /proc/uptime >&2";
        let commands = format!("{uptime}\n({RUN}) >/dev/null || exit\n{uptime}\n");
        let boot = self.hardware.boot(image, secure_boot, &commands);
        let errors = boot.errors();
        assert_eq!(boot.status(), 0, "{errors}");
        let times = errors.lines().filter_map(|line| line.parse().ok());
        let times: Vec<f64> = times.collect();
        let [started, ended] = times.try_into().unwrap();
        Duration::from_secs_f64(ended - started)
    }

    /// Boots, and runs `renew --force` repeatedly, which first joins, until the power fails after this time.
    #[track_caller]
    pub fn lose_power(&self, image: Image, secure_boot: SecureBoot, after: Duration) {
        let plugin = format!("{PROGRAMS}/{PLUGIN}");
        let commands = format!("while {plugin} renew --force || true; do :; done >/dev/null 2>&1");
        self.hardware
            .boot_and_lose_power(image, secure_boot, &commands, after);
    }

    /// The state of the join on the disk.
    #[track_caller]
    pub fn progress(&self) -> Progress {
        let file = |name: &str| self.hardware.read(&format!("{STATE}/{name}"));
        if file("kubelet-client.pem").is_some() {
            return Progress::Joined;
        }
        let Some(pending) = file("pending.json") else {
            return Progress::Begun;
        };
        // The file contains the key before it contains the request.
        let pending: Value = serde_json::from_slice(&pending).unwrap();
        if pending["request"].is_object() {
            Progress::Requested
        } else {
            Progress::Begun
        }
    }

    /// Adds a kubelet to the disk. The kubelet's credentials come from the plugin.
    #[track_caller]
    pub fn add_kubelet(&self) {
        // All Kubernetes programs are one file, which selects the program by the name under which it is started.
        let kubelet = control_plane_binary("kubelet");
        self.hardware.program("/usr/bin/kubelet", &kubelet);
        let configuration = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": false },
            },
            "authorization": { "mode": "AlwaysAllow" },
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": false,
            "containerRuntimeEndpoint": "unix:///run/cri.sock",
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": false,
            "makeIPTablesUtilChains": false,
            "resolvConf": "",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        });
        self.hardware
            .file("/etc/kubelet.json", 0o644, configuration.to_string());
        let exec = Exec::new(format!("{PROGRAMS}/{PLUGIN}")).provide_cluster_info();
        let kubeconfig = self.kubeconfig(User::Exec(exec));
        self.hardware.file("/etc/kubelet.conf", 0o600, kubeconfig);
    }

    /// Boots, and runs the kubelet until its Node is ready, or until the kubelet has registered an existing Node. The
    /// output contains the kubelet's log message about this.
    #[track_caller]
    pub fn run_kubelet(&self, image: Image, secure_boot: SecureBoot) -> Boot {
        self.hardware.boot(image, secure_boot, KUBELET)
    }

    /// A kubeconfig with the address at which the machine can connect to the API server.
    #[track_caller]
    fn kubeconfig(&self, user: User) -> Vec<u8> {
        let ca = self.scene.cluster.control_plane().ca();
        let scratch = Scratch::new("kubeconfig");
        let file =
            Kubeconfig::new(SERVER, ca.certificate_pem(), user).write(&scratch.join("kubeconfig"));
        std::fs::read(file).unwrap()
    }

    /// Asserts that the credential in the output of this boot makes the machine its node.
    #[track_caller]
    pub fn is_joined_by(&self, boot: &Boot) {
        let errors = boot.errors();
        assert_eq!(boot.status(), 0, "{errors}");
        let credential: Value = serde_json::from_str(&boot.output()).unwrap();
        let text = |field: &str| credential["status"][field].as_str().unwrap().to_owned();
        let pair = KeyAndCertificate {
            certificate_pem: text("clientCertificateData"),
            key_pem: text("clientKeyData"),
        };
        let plane = self.scene.cluster.control_plane();
        let kubeconfig = plane.kubeconfig(User::Certificate(pair));
        let who = plane.kubectl_with(kubeconfig).json(["auth", "whoami"]);
        assert_eq!(
            who["status"]["userInfo"]["username"],
            self.user(),
            "{who:#}"
        );
    }

    /// Asserts that the plugin in this boot was denied because of these registers. Checks the exit code, and that the
    /// Event contains the registers and the value of the first register.
    #[track_caller]
    pub fn is_denied_for(&self, boot: &Boot, registers: &[u8]) {
        let errors = boot.errors();
        assert_eq!(boot.status(), 12, "{errors}");
        assert!(errors.contains("RegisterNotAllowed"), "{errors}");
        let event = self
            .scene
            .wait_for_event(self.machine.name(), "RegisterNotAllowed");
        let note = event["message"].as_str().unwrap();
        let named: Vec<_> = registers.iter().map(u8::to_string).collect();
        let first = registers[0];
        let told = format!(
            "registers {} are not in an allowed state; register {first} is {}",
            named.join(", "),
            hex(&boot.registers()[&first])
        );
        assert!(note.contains(&told), "{note}\n{told}");
    }

    /// The user name in the node's certificate.
    pub fn user(&self) -> String {
        format!("system:node:{}", self.machine.node_name())
    }

    /// The requests from the node to the client signer, oldest first.
    #[track_caller]
    pub fn renewals(&self) -> Vec<Value> {
        let user = self.user();
        let signer = Provider::TPM.client_signer();
        let mut requests = self.scene.cluster.control_plane().csrs();
        requests
            .retain(|csr| csr["spec"]["username"] == user && csr["spec"]["signerName"] == signer);
        requests.sort_by_key(|csr| {
            let version = csr["metadata"]["resourceVersion"].as_str().unwrap();
            version.parse::<u64>().unwrap()
        });
        requests
    }
}

/// Boots this hardware, and runs the plugin as the kubelet does, until it prints a credential.
#[track_caller]
pub fn credential(hardware: &VirtualMachine, image: Image, secure_boot: SecureBoot) -> Boot {
    hardware.boot(image, secure_boot, &format!("arguments=\n{RUN}"))
}
