//! Tests of nodes that change from another provider to their TPMs.

use std::fs;
use std::process::{Command, Output};
use std::sync::Arc;

use kubelet_authenticator_test_support::control_plane::Exec;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::settings::option;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_tests::fleet::authorize;
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::Scene;
use serde_json::json;

use crate::bed::{cluster, machine, node_user, tpm};

const INSECURE: &str = "kubelet-authenticator-insecure";
const TPM: &str = "kubelet-authenticator-tpm";

/// A machine with the files that `setup` reads and writes.
struct Host {
    machine: Machine,
    tpm: Arc<Swtpm>,
    files: Scratch,
}

impl Host {
    fn new(scene: &Scene, name: &str) -> Self {
        let tpm = tpm();
        let files = Scratch::new(name);
        files.write("kubeadm-flags.env", "");
        Self {
            machine: machine(scene, name, &tpm),
            tpm,
            files,
        }
    }

    fn path(&self, file: &str) -> String {
        self.files.join(file).display().to_string()
    }

    /// The settings for this plugin.
    fn settings(&self, plugin: &str) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("bootstrapKubeconfig", self.path("bootstrap.kubeconfig")),
            ("stateDirectory", self.path("state")),
            ("providerID", self.machine.provider_id().to_owned()),
            ("nodeName", self.machine.node_name().to_owned()),
        ];
        if plugin == TPM {
            settings.push(("tpm.tcti", self.tpm.tcti()));
        }
        settings
    }

    /// Runs this plugin's `setup`.
    fn setup(&self, plugin: &str, words: &[&str]) -> Output {
        let settings = self.settings(plugin).into_iter();
        Command::new(program(plugin))
            .arg("setup")
            .args(words)
            .args(["--kubelet-kubeconfig", &self.path("kubelet.conf")])
            .args(["--environment-file", &self.path("kubelet.env")])
            .args(["--kubeadm-flags", &self.path("kubeadm-flags.env")])
            .args(settings.map(|(key, value)| option(key, value)))
            .output()
            .unwrap()
    }

    /// Asserts that the kubelet's next start runs this plugin, and that the API server accepts the plugin's
    /// certificate.
    #[track_caller]
    fn runs(&self, scene: &Scene, plugin: &str) {
        let conf = fs::read_to_string(self.path("kubelet.conf")).unwrap();
        let command = program(plugin).display().to_string();
        assert!(conf.contains(&command), "{conf}");
        assert!(self.files.join("kubelet.env").exists());

        let exec = Exec::new(program(plugin)).provide_cluster_info();
        let settings = self.settings(plugin).into_iter();
        let exec = settings.fold(exec, |exec, (key, value)| exec.setting(key, value));
        let plane = scene.cluster.control_plane();
        let kubeconfig = plane.exec_kubeconfig(exec);
        let output = plane.kubectl_with(&kubeconfig).run(["auth", "whoami"]);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains(&node_user(&self.machine)), "{output:?}");
    }
}

/// Changes the KubeletAuthentication as an administrator does.
fn authorize_only(scene: &Scene, attestor: &str) {
    let management = &scene.site.management;
    authorize(management, &scene.cluster, &[attestor], json!({}));
    scene.authentication.touch(management.kubectl(), "Ready");
}

#[test]
fn nodes_change_from_insecure_to_tpm_one_by_one() {
    let scene = cluster("changes", json!({}));
    authorize_only(&scene, "insecure");
    let hosts = ["changes-1", "changes-2"].map(|name| Host::new(&scene, name));
    let attestor = |host: &Host| {
        let record = scene.record(host.machine.node_name());
        record["spec"]["attestor"].clone()
    };
    for host in &hosts {
        let from = host.machine.bootstrap_kubeconfig().display().to_string();
        let joined = host.setup(INSECURE, &["--from", &from]);
        assert!(joined.status.success(), "{joined:?}");
        assert_eq!(attestor(host), "insecure");
        host.runs(&scene, INSECURE);
    }

    authorize_only(&scene, "tpm");

    for (changed, host) in hosts.iter().enumerate() {
        // The other nodes keep their certificates.
        for other in &hosts[changed..] {
            other.runs(&scene, INSECURE);
        }
        // With only the new drop-in, each start prints the command.
        let refused = host.setup(TPM, &[]);
        assert_eq!(refused.status.code(), Some(3), "{refused:?}");
        let printed = format!("run: {} setup --replace", program(TPM).display());
        let words = String::from_utf8_lossy(&refused.stderr);
        assert!(words.contains(&printed), "{words}");
        host.runs(&scene, INSECURE);

        let replaced = host.setup(TPM, &["--replace"]);

        assert!(replaced.status.success(), "{replaced:?}");
        assert_eq!(attestor(host), "tpm");
        host.runs(&scene, TPM);
        let again = host.setup(TPM, &[]);
        assert!(again.status.success(), "{again:?}");
    }
}
