//! The previous minor version of Cluster API, as clusterctl installs it and upgrades it to the current version.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kubelet_authenticator_test_support::binaries;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers, Kubectl};
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, free_port};
use serde_json::{Value, json};

use super::super::clusterctl::{CLUSTER_API_VERSION, clusterctl, define_inventory, register};
use super::super::{Contract, Management, crds};
use super::{
    BUILT, CORE, KUBEADM_BOOTSTRAP, Managers, Webhooks, account_of, flags, let_read_control_planes,
    start, wait_until_established, with_webhooks_on,
};

/// The directory of the build script for the previous minor version.
const OLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster-api/older");

/// The managers of the previous minor version.
static OLDER_BUILT: LazyLock<PathBuf> =
    LazyLock::new(|| binaries::build(&Path::new(OLDER).join("build")));

/// A Cluster API provider, described in clusterctl's terms.
struct Provider {
    /// The name of the provider's program.
    manager: &'static str,
    name: &'static str,
    kind: &'static str,
    label: &'static str,
    /// The option that specifies the provider's version.
    option: &'static str,
    components: &'static str,
}

const PROVIDERS: [Provider; 2] = [
    Provider {
        manager: CORE,
        name: "cluster-api",
        kind: "CoreProvider",
        label: "cluster-api",
        option: "--core",
        components: "core-components.yaml",
    },
    Provider {
        manager: KUBEADM_BOOTSTRAP,
        name: "kubeadm",
        kind: "BootstrapProvider",
        label: "bootstrap-kubeadm",
        option: "--bootstrap",
        components: "bootstrap-components.yaml",
    },
];

/// A release in clusterctl's repositories.
#[derive(Debug)]
struct Release {
    version: String,
    /// The directory of the release's programs and manifests.
    built: &'static Path,
    /// The ports for the webhooks of the release's managers.
    ports: [u16; PROVIDERS.len()],
}

/// The data for an upgrade of Cluster API in a management cluster.
#[derive(Debug)]
pub struct OlderClusterApi {
    /// clusterctl's configuration and repositories.
    home: Scratch,
    newer: Release,
    token_ttl: Duration,
}

impl Release {
    fn new(version: String, built: &'static Path) -> Self {
        Self {
            version,
            built,
            ports: [(); PROVIDERS.len()].map(|()| free_port()),
        }
    }

    fn objects(&self, provider: usize, webhooks: &Webhooks) -> Vec<Value> {
        let manifests = format!("{}.json", PROVIDERS[provider].manager);
        with_webhooks_on(self.ports[provider], &self.built.join(manifests), webhooks)
    }

    /// Writes the release to clusterctl's repositories.
    #[track_caller]
    fn write(&self, home: &Scratch, webhooks: &Webhooks) {
        for (number, provider) in PROVIDERS.iter().enumerate() {
            let folder = home.directory(&format!("{}/{}", provider.label, self.version));
            let objects = self.objects(number, webhooks);
            let objects: Vec<_> = objects.iter().map(Value::to_string).collect();
            fs::write(folder.join(provider.components), objects.join("\n---\n")).unwrap();
            let series =
                [13, 14].map(|minor| json!({ "major": 1, "minor": minor, "contract": "v1beta2" }));
            let metadata = json!({
                "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Metadata",
                "releaseSeries": series,
            });
            fs::write(folder.join("metadata.yaml"), metadata.to_string()).unwrap();
        }
    }

    /// Starts the managers, and waits until they are ready.
    #[track_caller]
    fn start(
        &self,
        plane: &ControlPlane,
        webhooks: &Webhooks,
        token_ttl: Duration,
    ) -> Vec<Process> {
        let started = PROVIDERS.iter().enumerate().map(|(number, provider)| {
            let name = provider.manager;
            let account = account_of(&self.objects(number, webhooks));
            let program = Launch::new(name, self.built.join(name)).args(flags(name, token_ttl));
            start(plane, program, &account, self.ports[number], webhooks)
        });
        // Start all managers before you wait for the first one.
        let started: Vec<_> = started.collect();
        let processes = started.into_iter().map(super::Manager::wait_until_ready);
        processes.collect()
    }
}

/// The version of Cluster API in the Go module for the previous minor version.
fn older_version() -> String {
    let text = fs::read_to_string(Path::new(OLDER).join("go.mod")).unwrap();
    let mut versions = text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("sigs.k8s.io/cluster-api ")?;
        rest.split_whitespace().next()
    });
    versions.next().expect("it is required").to_owned()
}

/// Installs a provider as `clusterctl init` does, but without a Deployment.
#[track_caller]
fn install(kubectl: &Kubectl, home: &Scratch, release: &Release, number: usize, account: &Value) {
    let provider = &PROVIDERS[number];
    let version = format!("{}:{}", provider.name, release.version);
    let words = ["generate", "provider", provider.option, &version];
    let manifests = clusterctl(home.path(), &words);
    let apply = ["apply", "--server-side", "-f", "-"];
    let output = kubectl.run_with_input(apply, &manifests);
    assert!(output.status.success(), "{output:?}");
    wait_until_established(kubectl);
    let namespace = account["namespace"].as_str().unwrap();
    let row = [provider.name, provider.kind, provider.label];
    register(kubectl, row, namespace, &release.version);
}

impl Management {
    /// Starts a management cluster with the managers of the previous minor version of Cluster API. clusterctl can
    /// upgrade these managers. Their bootstrap tokens have this lifetime.
    #[track_caller]
    pub fn managed_by_older(token_ttl: Duration) -> (Self, OlderClusterApi) {
        let control_plane = ControlPlane::builder().controllers(Controllers::Default);
        let control_plane = control_plane.start();
        let kubectl = control_plane.kubectl();
        let (home, webhooks) = (Scratch::new("clusterctl"), Webhooks::new());
        let older = Release::new(older_version(), &OLDER_BUILT);
        let newer = Release::new(CLUSTER_API_VERSION.to_owned(), &BUILT);
        for release in [&older, &newer] {
            release.write(&home, &webhooks);
        }
        let providers = PROVIDERS.iter().map(|provider| {
            let folder = home.join(provider.label).join(&older.version);
            json!({
                "name": provider.name, "type": provider.kind,
                "url": folder.join(provider.components),
            })
        });
        let providers: Vec<_> = providers.collect();
        let configuration = json!({ "providers": providers });
        home.write("clusterctl.yaml", configuration.to_string());
        define_inventory(kubectl);
        for (number, provider) in PROVIDERS.iter().enumerate() {
            let account = account_of(&older.objects(number, &webhooks));
            install(kubectl, &home, &older, number, &account);
            if provider.manager == KUBEADM_BOOTSTRAP {
                let_read_control_planes(kubectl, &account);
            }
        }
        let processes = older.start(&control_plane, &webhooks, token_ttl);
        crds::install_beside(kubectl);
        let management = Self {
            managers: Some(Managers {
                processes,
                webhooks,
            }),
            control_plane: Arc::new(control_plane),
            contract: Contract::V1Beta2,
        };
        let api = OlderClusterApi {
            home,
            newer,
            token_ttl,
        };
        (management, api)
    }
}

impl OlderClusterApi {
    /// Upgrades Cluster API with `clusterctl upgrade apply`, and replaces its managers.
    #[track_caller]
    pub fn upgrade(&self, management: &mut Management) {
        let plane = management.control_plane.clone();
        let managers = management.managers.as_mut().expect("it has managers");
        managers.processes.clear();
        let kubeconfig = plane.admin_kubeconfig().display().to_string();
        let versions = PROVIDERS.map(|provider| {
            let version = format!("{}:{}", provider.name, self.newer.version);
            [provider.option.to_owned(), version]
        });
        let mut words = vec!["upgrade", "apply", "--kubeconfig", &kubeconfig];
        words.extend(versions.iter().flatten().map(String::as_str));
        clusterctl(self.home.path(), &words);
        wait_until_established(plane.kubectl());
        managers.processes = self.newer.start(&plane, &managers.webhooks, self.token_ttl);
    }

    /// The versions of the providers in clusterctl's inventory.
    #[track_caller]
    pub fn versions(&self, management: &Management) -> Vec<String> {
        let words = ["get", "providers.clusterctl.cluster.x-k8s.io", "-A"];
        let list = management.kubectl().json(words);
        let providers = list["items"].as_array().unwrap().iter();
        providers
            .map(|provider| provider["version"].as_str().unwrap().to_owned())
            .collect()
    }
}
