//! The machine image with systemd, cloud-init, kubeadm and the plugin, and its settings in Cluster API objects.

mod secrets;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::imds;
use kubelet_authenticator_test_support::machine::{
    IGNORED_PREFLIGHT_ERRORS, Machine, MachineBuilder,
};
use kubelet_authenticator_test_support::moto::NitroTpm;
use kubelet_authenticator_test_support::settings::{self, DROP_INS};
use kubelet_authenticator_test_support::swtpm::{Reset, Swtpm};
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use serde_json::{Map, Value, json};

use crate::cloud::{Cloud, Instance};
use crate::management::{Boot, WorkloadCluster};
use crate::program;
use crate::tpm::endorsement_key;

/// The directory of the plugins in the image.
const PROGRAMS: &str = "/usr/bin";

/// The name of the ConfigMap with the hosts' endorsement keys.
pub const HOSTS: &str = "hosts";

/// Hosts with TPMs, keyed by provider ID, with the digests of their endorsement keys.
pub type Hosts = BTreeMap<String, (String, Arc<Swtpm>)>;

/// Creates hosts with these provider IDs, or with these prefixes of provider IDs. No other test can use the same
/// values.
///
/// Each cluster needs different hosts and host names, because Cluster API searches for the Machine of a Node in all
/// clusters, by provider ID and by name.
pub fn hosts_with_tpms(provider_ids: impl IntoIterator<Item = String>) -> Hosts {
    let hosts = provider_ids.into_iter().map(|provider_id| {
        let tpm = Arc::new(Swtpm::start());
        let keys = TpmMachine::new(tpm.clone(), EndorsementKey::P384);
        let digest = endorsement_key(&keys);
        (provider_id, (digest, tpm))
    });
    hosts.collect()
}

/// Lists the hosts' endorsement keys in the ConfigMap [`HOSTS`] in the Cluster's namespace.
pub fn list(kubectl: &Kubectl, namespace: &str, hosts: &Hosts) {
    let listed: Map<_, _> = hosts
        .iter()
        .map(|(id, (digest, _))| (digest.clone(), json!(id)))
        .collect();
    kubectl.create_object(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": HOSTS, "namespace": namespace,
            // Without this label, `clusterctl move` would not move the ConfigMap, because no object of the Cluster owns
            // it.
            "labels": { "clusterctl.cluster.x-k8s.io/move": "" },
        },
        "data": listed,
    }));
}

fn name_of_plugin(attestor: &Attestor) -> String {
    format!("kubelet-authenticator-{attestor}")
}

/// The plugin's path in the image.
pub fn plugin(attestor: &Attestor) -> String {
    format!("{PROGRAMS}/{}", name_of_plugin(attestor))
}

/// Creates a machine whose image contains the plugin, and in which cloud-init runs the bootstrap data. If `tpms` is not
/// empty, the machine has the TPM for its provider ID.
pub fn machine(
    cluster: &WorkloadCluster,
    attestor: Attestor,
    tpms: BTreeMap<String, Arc<Swtpm>>,
) -> impl Fn(&Boot) -> Machine + Send + 'static {
    let plane = cluster.control_plane().clone();
    let tpms = Mutex::new(tpms);
    move |boot| {
        let mut builder = Machine::builder(&plane, &boot.name)
            .program(&plugin(&attestor), &program(&name_of_plugin(&attestor)));
        let tpms = tpms.lock().unwrap();
        let mut hosts = tpms.iter();
        if let Some((_, tpm)) = hosts.find(|(host, _)| is_of(&boot.provider_id, host)) {
            // The host is switched on, which resets its TPM. A different machine might have used the host before.
            tpm.reset(Reset::Orderly);
            builder = on_host(builder, tpm);
        }
        let metadata = [("provider_id", &*boot.provider_id)];
        builder.cloud_init(&boot.data, &metadata).boot()
    }
}

/// Creates an instance whose image contains the plugin. cloud-init runs its user data. The instance has a NitroTPM if
/// the plugin's evidence requires it.
pub fn instance(
    cluster: &WorkloadCluster,
    attestor: Attestor,
    cloud: &Arc<Cloud>,
) -> impl Fn(&Instance, &str) -> Machine + Send + 'static {
    instance_of(cluster, attestor, cloud, None)
}

/// Like [`instance`], but with an image that consists of these layers, and that was created outside the tests.
pub fn instance_of(
    cluster: &WorkloadCluster,
    attestor: Attestor,
    cloud: &Arc<Cloud>,
    layers: Option<String>,
) -> impl Fn(&Instance, &str) -> Machine + Send + 'static {
    let plugin_of = attestor.clone();
    prepared_instance(cluster, attestor, cloud, move |builder| match &layers {
        Some(layers) => builder.image(layers),
        None => with_plugin(builder, &plugin_of),
    })
}

/// Like [`instance`], but the image also contains the programs with which Cluster API Provider AWS reads the bootstrap
/// data from Secrets Manager.
pub fn instance_with_secrets(
    cluster: &WorkloadCluster,
    attestor: Attestor,
    cloud: &Arc<Cloud>,
) -> impl Fn(&Instance, &str) -> Machine + Send + 'static {
    let plugin_of = attestor.clone();
    let account = cloud.clone();
    prepared_instance(cluster, attestor, cloud, move |builder| {
        secrets::with_reader(with_plugin(builder, &plugin_of), &account)
    })
}

fn with_plugin(builder: MachineBuilder, attestor: &Attestor) -> MachineBuilder {
    builder.program(&plugin(attestor), &program(&name_of_plugin(attestor)))
}

/// An instance whose image contains the files that `prepare` adds.
fn prepared_instance(
    cluster: &WorkloadCluster,
    attestor: Attestor,
    cloud: &Arc<Cloud>,
    prepare: impl Fn(MachineBuilder) -> MachineBuilder + Send + 'static,
) -> impl Fn(&Instance, &str) -> Machine + Send + 'static {
    let plane = cluster.control_plane().clone();
    let cloud = cloud.clone();
    let tpms = Mutex::new(Vec::new());
    move |instance, data| {
        let ec2 = &instance.ec2;
        let mut builder = prepare(Machine::builder(&plane, instance.node_name()))
            .at(ec2.private_ip.parse().unwrap())
            .reaches(instance.imds.address());
        let mut settings = instance.services(&cloud).to_vec();
        if attestor == Attestor::TPM {
            let tpm = Arc::new(Swtpm::start());
            cloud.moto().give_tpm(&ec2.id, NitroTpm::of(&tpm));
            tpm.reset(Reset::Orderly);
            builder = with_tpm(builder, &tpm);
            settings.push(tpm_setting(&tpm));
            tpms.lock().unwrap().push(tpm);
        }
        let mut local_hostname = String::new();
        let read = |metadata: &mut imds::Instance| {
            local_hostname.clone_from(&metadata.local_hostname);
        };
        instance.imds.update(read);
        let metadata = [
            ("local-hostname", &*local_hostname),
            ("instance-id", &*ec2.id),
            ("availability-zone", &*ec2.zone),
            ("region", &*ec2.region),
            ("local-ipv4", &*ec2.private_ip),
        ];
        with_settings(builder, settings)
            .cloud_init(data, &metadata)
            .boot()
    }
}

/// Adds this TPM to a machine whose image contains the plugin.
pub fn on_host(builder: MachineBuilder, tpm: &Swtpm) -> MachineBuilder {
    with_settings(with_tpm(builder, tpm), [tpm_setting(tpm)])
}

/// Adds the program and the sockets through which the plugin reaches this TPM.
fn with_tpm(builder: MachineBuilder, tpm: &Swtpm) -> MachineBuilder {
    let device = "kubelet-authenticator-tpm-device";
    let (address, mut beside) = (tpm.address(), tpm.address());
    beside.set_port(address.port() + 1);
    builder
        .program(&format!("{PROGRAMS}/{device}"), &program(device))
        .reaches(address)
        .reaches(beside)
}

fn tpm_setting(tpm: &Swtpm) -> (&'static str, String) {
    ("tpm.tcti", tpm.tcti())
}

/// Writes the drop-in for a plugin if the machine has no TPM device, or if its metadata service has a different
/// address.
fn with_settings(
    builder: MachineBuilder,
    settings: impl IntoIterator<Item = (&'static str, String)>,
) -> MachineBuilder {
    let path = format!("{DROP_INS}/30-tests.yaml");
    builder.file(&path, 0o644, settings::file(settings))
}

/// Whether the provider ID belongs to the host, or to a machine on the host.
fn is_of(provider_id: &str, host: &str) -> bool {
    provider_id == host || host.ends_with('/') && provider_id.starts_with(host)
}

/// The output of the plugin's `render`, for its path in the image.
#[track_caller]
pub fn render(attestor: &Attestor, words: &[&str]) -> String {
    let output = Command::new(program(&name_of_plugin(attestor)))
        .args(["render", "--command", &plugin(attestor)])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The KubeadmConfigSpec that the plugin renders with these options, with the fields that all test machines need.
pub fn rendered(attestor: &Attestor, options: &[&str]) -> Value {
    let rendered = render(attestor, &[&["kubeadm-config"], options].concat());
    let template: Value = serde_saphyr::from_str(&rendered).unwrap();
    let mut config = template["spec"]["template"]["spec"].clone();
    for (field, value) in needed() {
        config["joinConfiguration"]["nodeRegistration"][field] = value;
    }
    config
}

/// The settings that kubeadm needs on the test machines.
pub fn needed() -> [(&'static str, Value); 2] {
    [
        ("criSocket", json!("unix:///run/cri.sock")),
        ("ignorePreflightErrors", json!(IGNORED_PREFLIGHT_ERRORS)),
    ]
}

/// The options for machines that read their names and their provider IDs from the instance metadata.
pub const TOLD_BY_METADATA: [&str; 4] = [
    "--provider-id-template",
    "{{ ds.meta_data.provider_id }}",
    "--node-name-template",
    "{{ ds.meta_data.local_hostname }}",
];

/// The options for EC2 instances. The node names are the private DNS names in EC2, regardless of the domain in the
/// DHCP options of the VPC.
pub const TOLD_BY_EC2: [&str; 4] = [
    "--provider-id-template",
    "aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}",
    "--node-name-template",
    r#"{{ ds.meta_data.local_hostname.split(".")[0] }}.{{ "ec2" if v1.region == "us-east-1" else v1.region ~ ".compute" }}.internal"#,
];
