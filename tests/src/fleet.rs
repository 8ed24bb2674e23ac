//! A management cluster, the controller in it, and the settings of a cluster.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cloud::{Cloud, Instance};
use crate::management::{Machine, Management, WorkloadCluster};
use crate::{packaging, program};
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, DEADLINE, Exec, KubeadmBinding, Kubectl, User,
};
use kubelet_authenticator_test_support::kubelet::{Kubelet, KubeletBuilder};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, poll};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The controller's user name in the management cluster.
const USER: &str = "node-attestation-controller";

/// The manifest with the controller's permissions in the cluster.
const RBAC: &str = "rbac/management-cluster.yaml";

/// Starts a management cluster in which the controller has its permissions.
pub fn management() -> Management {
    let management = Management::start();
    grant(&management);
    management
}

/// Grants the controller the permissions in its manifest.
pub fn grant(management: &Management) {
    let manifest = packaging().join(RBAC);
    management
        .kubectl()
        .ok([Path::new("apply"), Path::new("-f"), &manifest]);
}

/// The definition of the kind that sets the lifetime of certificates.
const DEFINITION: &str = "kubeletauthentications.attestation.cluster.x-k8s.io";

/// Permits a certificate lifetime in a KubeletAuthentication that is shorter than Kubernetes' minimum of 10 minutes.
pub fn allow_short_certificates(management: &Management) {
    let target = ["customresourcedefinitions", DEFINITION];
    let kubectl = management.kubectl();
    let definition = kubectl.json(["get"].into_iter().chain(target));
    let mut versions = definition["spec"]["versions"].clone();
    let properties =
        &mut versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let lifetime = &mut properties["certificate"]["properties"]["expirationSeconds"];
    assert_eq!(lifetime["minimum"].as_f64(), Some(600.0));
    lifetime["minimum"] = json!(1);
    kubectl.patch(&target, &json!({"spec": {"versions": versions}}));
}

/// Asserts that this record still has its first generation. The generation number is not compared, because it depends
/// on the time.
#[track_caller]
pub fn assert_first_generation(record: &Value) {
    assert!(record["spec"]["generation"].is_u64(), "{record:#}");
    // This field contains the expiry times of all earlier generations.
    assert!(record["spec"]["formerUntil"].is_null(), "{record:#}");
}

/// Asserts that the record has had an earlier generation.
#[track_caller]
pub fn assert_later_generation(record: &Value) {
    assert!(record["spec"]["formerUntil"].is_string(), "{record:#}");
}

/// A controller of a management cluster.
#[derive(Debug)]
pub struct Manager {
    /// The process.
    pub process: Process,
    /// Whether the controller uses only its own access to workload clusters.
    pub has_own_access: bool,
    _files: Scratch,
}

impl Manager {
    /// Starts `node-attestation-controller run`, which admits machines without evidence.
    pub fn insecure(management: &Management, arguments: &[&str]) -> Self {
        let arguments = [&["--allow-insecure"], arguments].concat();
        Self::start(management, "node-attestation-controller", &arguments)
    }

    /// Like [`insecure`](Self::insecure), but the controller's user is also a member of this group.
    pub fn insecure_in_group(management: &Management, group: &str, arguments: &[&str]) -> Self {
        let arguments = [&["--allow-insecure"], arguments].concat();
        let program = program("node-attestation-controller");
        Self::told(management, Some(group), program, |launch| {
            launch.args(arguments)
        })
    }

    /// Starts `null-attestation-controller`, which accepts the rubber stamp in every cluster.
    pub fn null(management: &Management, arguments: &[&str]) -> Self {
        Self::start(management, "null-attestation-controller", arguments)
    }

    /// Like [`null`](Self::null), but the controller uses only its [own access](crate::access) to workload clusters.
    pub fn null_with_own_access(management: &Management) -> Self {
        let mut manager = Self::null(management, &["--workload-access=own"]);
        manager.has_own_access = true;
        manager
    }

    /// Like [`null`](Self::null), but with the default sync period instead of a short period.
    pub fn null_with_default_period(management: &Management) -> Self {
        let program = program("null-attestation-controller");
        Self::spawned(management, None, program, |launch| launch)
    }

    /// Starts `node-attestation-controller run` with instances in this cloud.
    pub fn aws(management: &Management, cloud: &Cloud, arguments: &[&str]) -> Self {
        let program = program("node-attestation-controller");
        Self::aws_of(program, management, cloud, arguments)
    }

    /// Like [`aws`](Self::aws), but with this program, which can belong to another version of the project.
    pub fn aws_of(
        program: PathBuf,
        management: &Management,
        cloud: &Cloud,
        arguments: &[&str],
    ) -> Self {
        let of_cloud = cloud.manager_arguments();
        Self::in_cloud(program, management, (cloud, of_cloud), arguments)
    }

    /// Like [`aws`](Self::aws), but every Cluster needs an identity.
    pub fn aws_without_fallback(
        management: &Management,
        cloud: &Cloud,
        arguments: &[&str],
    ) -> Self {
        let program = program("node-attestation-controller");
        let of_cloud = cloud.arguments_without_fallback();
        Self::in_cloud(program, management, (cloud, of_cloud), arguments)
    }

    fn in_cloud(
        program: PathBuf,
        management: &Management,
        (cloud, of_cloud): (&Cloud, Vec<OsString>),
        arguments: &[&str],
    ) -> Self {
        Self::told(management, None, program, |launch| {
            let launch = launch.args(of_cloud).args(arguments);
            let environment = cloud.manager_environment().into_iter();
            environment.fold(launch, |launch, (name, value)| launch.env(name, value))
        })
    }

    /// Starts a program as the controller of the management cluster.
    pub fn start(management: &Management, name: &str, arguments: &[&str]) -> Self {
        Self::told(management, None, program(name), |launch| {
            launch.args(arguments)
        })
    }

    fn told(
        management: &Management,
        group: Option<&str>,
        program: PathBuf,
        told: impl FnOnce(Launch) -> Launch,
    ) -> Self {
        // Tests wait for two rounds, so a short period makes them faster.
        let often = |launch: Launch| launch.args(["--sync-period=10s"]);
        Self::spawned(management, group, program, |launch| told(often(launch)))
    }

    fn spawned(
        management: &Management,
        group: Option<&str>,
        program: PathBuf,
        told: impl FnOnce(Launch) -> Launch,
    ) -> Self {
        let files = Scratch::new("manager");
        let kubeconfig = management
            .control_plane()
            .client_cert_kubeconfig(USER, group);
        let launch = Launch::new("manager", program)
            .arg("run")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--insecure-allow-loopback", "--log-format", "json", "-v"])
            .args(["--missing-machine-timeout=0s"]);
        Self {
            process: told(launch).spawn(&files.join("manager.log")),
            has_own_access: false,
            _files: files,
        }
    }

    /// Stops the manager as Kubernetes does, so that the manager releases its Lease.
    #[track_caller]
    pub fn stop(mut self) {
        self.process.signal(Signal::TERM);
        self.process.wait(DEADLINE);
    }
}

/// Authorizes attestors for a Cluster; `spec` is merged into the other settings.
pub fn authorize(
    management: &Management,
    cluster: &WorkloadCluster,
    attestors: &[&str],
    spec: Value,
) -> Authentication {
    let mut settings = json!({"autoApproveBindings": "Report"});
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        settings[key] = value;
    }
    authorize_with_defaults(management, cluster, attestors, settings)
}

/// Like [`authorize`], but each setting that is missing in `spec` has its default value.
#[track_caller]
pub fn authorize_with_defaults(
    management: &Management,
    cluster: &WorkloadCluster,
    attestors: &[&str],
    spec: Value,
) -> Authentication {
    let mut object = json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthentication",
        "metadata": {"name": cluster.name(), "namespace": cluster.namespace()},
        "spec": {"clusterName": cluster.name(), "authorizedAttestors": attestors},
    });
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        object["spec"][key] = value;
    }
    let authentication = Authentication {
        namespace: cluster.namespace().to_owned(),
        name: cluster.name().to_owned(),
    };
    management.kubectl().apply_object(&object);
    authentication
}

/// The KubeletAuthentication of a cluster.
#[derive(Debug, Clone)]
pub struct Authentication {
    /// The namespace of the object and of its Cluster.
    pub namespace: String,
    /// The name of the object and of its Cluster.
    pub name: String,
}

impl Authentication {
    /// Waits until the condition has this status and reason. Returns the object.
    #[track_caller]
    pub fn wait_for(
        &self,
        kubectl: &Kubectl,
        condition: &str,
        status: &str,
        reason: &str,
    ) -> Value {
        let selector = format!("metadata.name={}", self.name);
        let resource = [
            "kubeletauthentications",
            "--namespace",
            &self.namespace,
            "--field-selector",
            &selector,
        ];
        let what = format!("{condition}={status} {reason}");
        kubectl.wait_for(&resource, &what, DEADLINE, |object| {
            let found = condition_of(object, condition);
            found["status"] == status && found["reason"] == reason
        })
    }

    /// Changes a setting that does not affect nodes, waits until this condition describes the changed object, and
    /// returns the object. At that time, the controller has completed all writes about earlier events. Tests that
    /// assert an absence use this condition as the later event.
    #[track_caller]
    pub fn touch(&self, kubectl: &Kubectl, condition: &str) -> Value {
        let Self { namespace, name } = self;
        let target = ["kubeletauthentications", name, "--namespace", namespace];
        let get = || kubectl.json(["get"].into_iter().chain(target));
        let generation = get()["metadata"]["generation"].as_i64().unwrap();
        let seconds = 86_400 + generation;
        let spec = json!({"spec": {"certificate": {"expirationSeconds": seconds}}});
        kubectl.patch(&target, &spec);
        let seen = poll(DEADLINE, || {
            let object = get();
            let observed = condition_of(&object, condition)["observedGeneration"].as_i64();
            (observed > Some(generation)).then_some(object)
        });
        seen.unwrap_or_else(|| panic!("the controller has not observed the change: {:#}", get()))
    }

    /// Waits until the cluster is Ready. Returns the KubeletAuthentication.
    #[track_caller]
    pub fn wait_until_ready(&self, kubectl: &Kubectl) -> Value {
        self.wait_for(kubectl, "Ready", "True", "Ready")
    }
}

/// The condition of this type.
pub fn condition_of(object: &Value, condition: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|one| one["type"] == condition);
    found.cloned().unwrap_or_default()
}

/// Creates a kubelet that runs this plugin for this machine, and has never joined.
pub fn kubelet(cluster: &WorkloadCluster, machine: &Machine, plugin: &str) -> KubeletBuilder {
    let exec = exec(machine, plugin).setting("providerID", machine.provider_id());
    kubelet_with(cluster, machine, exec)
}

/// Creates a kubelet that uses this bootstrap token for this instance, and has never joined.
pub fn kubelet_of_instance(
    plane: &ControlPlane,
    token: &str,
    cloud: &Cloud,
    instance: &Instance,
) -> KubeletBuilder {
    let bootstrap = plane.kubeconfig(User::Token(token.to_owned()));
    let exec = first_exec(&bootstrap, "kubelet-authenticator-aws");
    let settings = instance.plugin_settings(cloud).into_iter();
    let exec = settings.fold(exec, |exec, (key, value)| exec.setting(key, value));
    let kubeconfig = plane.kubeconfig(User::Exec(exec));
    plane.kubelet(instance.node_name()).kubeconfig(kubeconfig)
}

/// Creates a kubelet for this machine that has never joined. libtss2 reaches its TPM at this address.
pub fn kubelet_of_tpm(cluster: &WorkloadCluster, machine: &Machine, tcti: &str) -> KubeletBuilder {
    let exec = exec(machine, "kubelet-authenticator-tpm");
    kubelet_with(cluster, machine, exec.setting("tpm.tcti", tcti))
}

/// The plugin of a machine that has never joined.
pub fn exec(machine: &Machine, plugin: &str) -> Exec {
    first_exec(&machine.bootstrap_kubeconfig(), plugin)
}

/// The plugin as an exec credential plugin with this bootstrap kubeconfig, for a machine that has never joined.
pub fn first_exec(bootstrap: &Path, plugin: &str) -> Exec {
    let bootstrap = bootstrap.display().to_string();
    Exec::new(program(plugin))
        .provide_cluster_info()
        .setting("bootstrapKubeconfig", bootstrap)
}

/// Makes a machine join with the kubelet's TLS bootstrapping, as in a kubeadm cluster. The node then uses the
/// returned kubeconfig: kubeadm's `kubelet.conf`, which refers to the file that the kubelet rotates.
#[track_caller]
pub fn join_stock(cluster: &WorkloadCluster, machine: &Machine) -> (Kubelet, PathBuf) {
    let plane = cluster.control_plane();
    plane.install_bindings(&KubeadmBinding::ALL);
    let kubelet = plane
        .kubelet(machine.node_name())
        .bootstrap_kubeconfig(machine.bootstrap_kubeconfig())
        .start();
    kubelet.wait_until_ready();
    // The target of the link is a path in the kubelet's mount namespace, so only its file name is used.
    let pki = kubelet.var_lib().join("kubelet/pki");
    let current = std::fs::read_link(pki.join("kubelet-client-current.pem")).unwrap();
    let pem = std::fs::read_to_string(pki.join(current.file_name().unwrap())).unwrap();
    let (certificate, key) = pem.split_at(pem.rfind("-----BEGIN").unwrap());
    let pair = KeyAndCertificate {
        certificate_pem: certificate.to_owned(),
        key_pem: key.to_owned(),
    };
    (
        kubelet,
        plane.kubeconfig_with_files(User::Certificate(pair)),
    )
}

/// Creates a kubelet for this machine that runs this plugin.
pub fn kubelet_with(cluster: &WorkloadCluster, machine: &Machine, exec: Exec) -> KubeletBuilder {
    let plane = cluster.control_plane();
    let kubeconfig = plane.kubeconfig(User::Exec(exec));
    plane.kubelet(machine.node_name()).kubeconfig(kubeconfig)
}

impl Drop for Manager {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.process.log());
        }
    }
}
