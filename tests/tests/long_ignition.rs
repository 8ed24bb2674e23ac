//! Tests of machines whose bootstrap data is an Ignition configuration. Cluster API's bootstrap provider renders the
//! configuration, and Ignition applies the configuration before systemd starts. The tests use the Ignition version
//! whose formats the bootstrap provider uses. The build of Ignition takes a minute, so this test runs only in `make
//! test-long`.

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::settings;
use kubelet_authenticator_test_support::swtpm::Reset;
use kubelet_authenticator_tests::fleet::authorize;
use kubelet_authenticator_tests::image;
use kubelet_authenticator_tests::machines::objects::{reads_well, record};
use kubelet_authenticator_tests::machines::{PATIENCE, SITE, joinable};
use kubelet_authenticator_tests::management::{Boot, Order, Provider};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

const NAMESPACE: &str = "ignition";
const SETTINGS: &str = "/etc/kubernetes/kubelet-authenticator/config.yaml";
const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

/// The configuration with which users of Flatcar start kubeadm after the container runtime. Cluster API merges it with
/// the files of the template.
const AFTER_RUNTIME: &str = "\
systemd:
  units:
    - name: kubeadm.service
      enabled: true
      dropins:
        - name: 10-runtime.conf
          contents: |
            [Unit]
            Requires=fakecri.service
            After=fakecri.service
";

/// The KubeadmConfigSpec that `render` prints for Ignition. The machines read their provider IDs from the settings in
/// their images, because Ignition does not evaluate templates.
fn config() -> Value {
    let mut config = image::rendered(&Attestor::TPM, &["--format", "ignition"]);
    assert_eq!(config["format"], "ignition");
    config["ignition"] = json!({
        "containerLinuxConfig": { "additionalConfig": AFTER_RUNTIME, "strict": true },
    });
    config
}

#[test]
fn machines_with_an_ignition_configuration_join_with_their_tpms() {
    let cluster = joinable(NAMESPACE).create();
    cluster.control_plane().prepare_for_joins();
    let hosts = (0..2).map(|n| format!("metal:///rack-1/{NAMESPACE}-{n}"));
    let hosts = image::hosts_with_tpms(hosts);
    let kubectl = SITE.management.kubectl();
    image::list(kubectl, NAMESPACE, &hosts);
    let settings = json!({
        "autoApproveBindings": "Remove",
        "tpm": { "endorsementKeys": { "configMaps": [image::HOSTS] } },
    });
    let authentication = authorize(&SITE.management, &cluster, &["tpm"], settings);
    authentication.wait_until_ready(kubectl);
    let order = Order::Hosts(hosts.keys().cloned().collect());
    let plane = cluster.control_plane().clone();
    let boot = move |boot: &Boot| {
        let (_, tpm) = &hosts[&boot.provider_id];
        tpm.reset(Reset::Orderly);
        let plugin = program("kubelet-authenticator-tpm");
        let settings = settings::file([("providerID", boot.provider_id.clone())]);
        let builder = Machine::builder(&plane, &boot.name)
            .program(&image::plugin(&Attestor::TPM), &plugin)
            .file(SETTINGS, 0o644, settings)
            .kubelet_arg(format!("--provider-id={}", boot.provider_id));
        image::on_host(builder, tpm).ignition(&boot.data).boot()
    };
    let provider = Provider::start(&cluster, order, boot);

    let deployment = cluster.machine_deployment_of("pool-a", 2, config());

    let machines = deployment.wait_until_running(2);
    let nodes: Vec<String> = machines
        .iter()
        .map(|machine| machine["status"]["nodeRef"]["name"].as_str().unwrap())
        .map(ToOwned::to_owned)
        .collect();
    for (node, machine) in nodes.iter().zip(&machines) {
        cluster.control_plane().wait_for_node_ready(node);
        let record = record(&SITE, &cluster, node);
        assert_eq!(record["spec"]["attestor"], "tpm", "{record:#}");
        let claimed = &machine["spec"]["providerID"];
        assert_eq!(record["spec"]["providerID"], *claimed, "{record:#}");
        provider.on(node, is_from_ignition);
    }
    reads_well(&SITE, &cluster, &nodes);
}

/// Asserts that Ignition wrote the drop-in and kubeadm's unit, and that kubeadm has run once.
#[track_caller]
fn is_from_ignition(machine: &Machine) {
    let journal = machine.journal();
    assert!(journal.contains("Ignition v0."), "{journal}");
    assert!(journal.contains("files passed"), "{journal}");
    let drop_in = image::render(&Attestor::TPM, &["kubelet-drop-in"]);
    assert_eq!(machine.read(DROP_IN), Some(drop_in.into_bytes()));
    let enabled = machine.ok(&["systemctl", "is-enabled", "kubeadm.service"]);
    assert_eq!(enabled.trim(), "enabled");
    let complete = "/run/cluster-api/bootstrap-success.complete";
    // kubeadm's script ends after the kubelet has started.
    let ended = poll(PATIENCE, || machine.read(complete));
    assert_eq!(ended.as_deref(), Some(&b"success\n"[..]), "{journal}");
}
