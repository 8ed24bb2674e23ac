//! The management cluster of the suites, by itself: its objects are as Cluster API's.

use std::fs;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::control_plane::{CaKey, ControlPlane, Controllers};
use kubelet_authenticator_tests::management::{Contract, InfraCluster, Management};
use serde_json::{Value, json};

/// Both contracts: what is asked for is the same, where it is said is not.
const BOTH: [Contract; 2] = [Contract::V1Beta1, Contract::V1Beta2];

/// For tests that keep to a namespace of their own.
static SHARED: LazyLock<Management> = LazyLock::new(Management::start);

fn secret(management: &Management, namespace: &str, name: &str) -> Value {
    let words = ["get", "secret", name, "-n", namespace];
    management.kubectl().json(words)
}

fn decoded(secret: &Value, key: &str) -> String {
    let value = secret["data"][key].as_str().unwrap();
    String::from_utf8(BASE64_STANDARD.decode(value).unwrap()).unwrap()
}

#[test]
fn a_cluster_is_reached_and_signed_for_by_its_secrets() {
    let rsa = ControlPlane::builder().ca_key(CaKey::Rsa).start();
    let cluster = SHARED
        .cluster("prod-1")
        .namespace("tenant-a")
        .workload(Arc::new(rsa))
        .create();

    let kubeconfig = secret(&SHARED, "tenant-a", "prod-1-kubeconfig");
    assert_eq!(kubeconfig["type"], "cluster.x-k8s.io/secret");
    assert_eq!(
        kubeconfig["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"],
        "prod-1"
    );
    let file = cluster
        .control_plane()
        .directory("stored")
        .join("kubeconfig");
    fs::write(&file, decoded(&kubeconfig, "value")).unwrap();
    let who = cluster
        .control_plane()
        .kubectl_with(file)
        .json(["auth", "whoami"]);
    let groups = &who["status"]["userInfo"]["groups"];
    assert_eq!(groups[0], "system:masters", "{who}");

    let ca = secret(&SHARED, "tenant-a", "prod-1-ca");
    let certificate = cluster.control_plane().ca().certificate_pem();
    assert_eq!(decoded(&ca, "tls.crt"), certificate);
    assert!(decoded(&ca, "tls.key").starts_with("-----BEGIN RSA PRIVATE KEY-----"));

    let ecdsa = ControlPlane::start();
    let pair = ecdsa.ca().pair();
    cluster.write_ca(&pair.certificate_pem, None);
    let ca = secret(&SHARED, "tenant-a", "prod-1-ca");
    assert_eq!(ca["data"]["tls.key"], Value::Null);
}

#[test]
fn each_contract_has_its_versions_and_its_fields() {
    for contract in BOTH {
        let management = Management::start_with(contract);
        let cluster = management.cluster("prod-1").self_hosted().create();
        let machine = cluster
            .machine("m1")
            .node_name("node-1")
            .address("InternalIP", "192.0.2.7")
            .create();

        let versions = management.kubectl().ok(["api-versions"]);
        let served = versions
            .lines()
            .any(|line| line == "cluster.x-k8s.io/v1beta2");
        assert_eq!(served, contract == Contract::V1Beta2, "{versions}");
        assert!(
            versions
                .lines()
                .any(|line| line == "cluster.x-k8s.io/v1beta1")
        );

        let object = machine.get();
        assert_eq!(
            object["apiVersion"],
            format!("cluster.x-k8s.io/{}", contract.version())
        );
        let infra_ref = &object["spec"]["infrastructureRef"];
        let status = &object["status"];
        let (by_version, by_group, ready) = match contract {
            Contract::V1Beta1 => (
                json!("infrastructure.cluster.x-k8s.io/v1beta1"),
                Value::Null,
                &status["infrastructureReady"],
            ),
            Contract::V1Beta2 => (
                Value::Null,
                json!("infrastructure.cluster.x-k8s.io"),
                &status["initialization"]["infrastructureProvisioned"],
            ),
        };
        assert_eq!(infra_ref["apiVersion"], by_version);
        assert_eq!(infra_ref["apiGroup"], by_group);
        assert_eq!(*ready, true);
        assert_eq!(
            machine.infra_machine()["spec"]["providerID"],
            machine.provider_id()
        );
        assert_eq!(status["addresses"][0]["address"], "192.0.2.7");
        let config = management.kubectl().json(["get", "kubeadmconfigs", "m1"]);
        let join = &config["spec"]["joinConfiguration"];
        assert_eq!(join["nodeRegistration"]["name"], "node-1");
        assert_eq!(
            join["discovery"]["bootstrapToken"]["token"],
            machine.token().bearer()
        );
        assert_eq!(config["metadata"]["ownerReferences"][0]["kind"], "Machine");
    }
}

#[test]
fn an_infra_cluster_without_the_fields_prunes_the_signers() {
    let patch = json!({ "status": { "kubeletClientCertificateSigner": "example.com/signer" } });

    for (infrastructure, resource, kept) in [
        (InfraCluster::WithSigners, "genericclusters", true),
        (InfraCluster::WithoutSigners, "plainclusters", false),
    ] {
        let builder = SHARED
            .cluster(resource)
            .namespace("signers")
            .infrastructure(infrastructure);
        let cluster = builder.self_hosted().create();
        let target = [resource, resource, "-n", "signers", "--subresource=status"];
        SHARED.kubectl().patch(&target, &patch);

        let status = cluster.infra_cluster()["status"].take();
        let signer = &status["kubeletClientCertificateSigner"];
        assert_eq!(signer.is_string(), kept, "{resource}: {status}");
    }
}

#[test]
fn a_machine_is_made_in_steps_and_ends_in_steps() {
    let cluster = SHARED
        .cluster("prod-1")
        .namespace("steps")
        .self_hosted()
        .create();
    let mut machine = cluster
        .machine("m1")
        .without_provider_id()
        .without_bootstrap_data()
        .token_ttl(Duration::ZERO)
        .create();
    let early = machine.get();
    assert_eq!(early["spec"]["providerID"], Value::Null);
    let done = &early["status"]["initialization"];
    assert_eq!(done["bootstrapDataSecretCreated"], false);
    assert_eq!(done["infrastructureProvisioned"], false);
    let whoami = cluster
        .control_plane()
        .kubectl_with(machine.bootstrap_kubeconfig());
    assert!(!whoami.run(["auth", "whoami"]).status.success());

    machine.create_bootstrap_data();
    machine.provision("generic:///late");
    machine.set_addresses(&[("InternalDNS", "m1.internal")]);
    machine.set_paused(true);
    let late = machine.get();
    assert_eq!(late["spec"]["providerID"], "generic:///late");
    assert_eq!(late["spec"]["bootstrap"]["dataSecretName"], "m1");
    assert_eq!(
        late["status"]["initialization"]["infrastructureProvisioned"],
        true
    );
    assert_eq!(late["status"]["addresses"][0]["address"], "m1.internal");
    assert_eq!(
        late["metadata"]["annotations"]["cluster.x-k8s.io/paused"],
        "true"
    );

    machine.delete();
    assert!(machine.get()["metadata"]["deletionTimestamp"].is_string());
    machine.remove();
    let left = SHARED.kubectl().ok([
        "get",
        "machines,genericmachines,kubeadmconfigs",
        "-n",
        "steps",
    ]);
    assert_eq!(left, "");
}

#[test]
fn a_pool_has_one_token_and_a_list_or_machines() {
    let cluster = SHARED
        .cluster("prod-1")
        .namespace("pools")
        .self_hosted()
        .create();
    let pool = cluster
        .pool("workers")
        .provider_ids(&["generic:///w-0"])
        .with_machines()
        .create();
    let machine = pool.machine("w-0").provider_id("generic:///w-0").create();

    assert_eq!(machine.token(), pool.token());
    let object = machine.get();
    assert_eq!(
        object["metadata"]["labels"]["cluster.x-k8s.io/pool-name"],
        "workers"
    );
    assert_eq!(
        object["metadata"]["ownerReferences"][0]["kind"],
        "MachinePool"
    );
    assert_eq!(object["spec"]["bootstrap"]["configRef"], Value::Null);
    pool.set_provider_ids(&["generic:///w-0", "generic:///w-1"]);
    assert_eq!(pool.get()["spec"]["providerIDList"][1], "generic:///w-1");
}

/// The UID of a record of ours.
const RECORD: &str = "0123456789abcdef0123456789abcdef";

/// What we keep of a Cluster, with a status.
fn put_records(management: &Management, cluster: &str) {
    let digest = "0".repeat(64);
    let record = json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
        "metadata": {"name": format!("{cluster}.m1"), "namespace": "default"},
        "spec": {
            "clusterName": cluster, "nodeName": "m1", "uid": RECORD, "generation": 1,
            "attestor": "insecure", "providerID": "generic:///m1",
            "notAfter": "2026-01-02T00:00:00Z",
            "opened": {
                "keySHA256": digest, "requestName": "csr-1", "requestUID": "1",
                "time": "2026-01-01T00:00:00Z",
            },
        },
    });
    management.kubectl().create_object(&record);
    let name = format!("{cluster}.m1");
    let target = ["nodeidentities", &name, "--subresource=status"];
    let status = json!({"status": {"notAfter": "2026-01-02T00:00:00Z"}});
    management.kubectl().patch(&target, &status);
}

#[test]
fn a_move_takes_what_the_cluster_owns_and_no_status() {
    let (here, there) = (Management::start(), Management::start());
    let workload = Arc::new(ControlPlane::start());
    let cluster = here.cluster("prod-1").workload(workload.clone()).create();
    let machine = cluster.machine("m1").create();
    let other = here.cluster("other").workload(workload).create();
    let before = machine.get();
    put_records(&here, "prod-1");
    put_records(&here, "other");

    let cluster = cluster.move_to(&there);
    let machine = machine.moved_with(&cluster);

    let after = machine.get();
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["status"], Value::Null);
    assert_eq!(
        after["metadata"]["ownerReferences"][0]["uid"],
        cluster.get()["metadata"]["uid"]
    );
    assert_eq!(cluster.get()["spec"]["paused"], false);
    secret(&there, "default", "prod-1-kubeconfig");
    let record = there.kubectl().json(["get", "nodeidentities", "prod-1.m1"]);
    assert_eq!(record["spec"]["uid"], RECORD);
    assert_eq!(record["status"], Value::Null);
    cluster.restore_statuses();
    assert_eq!(machine.get()["status"], before["status"]);
    let record = there.kubectl().json(["get", "nodeidentities", "prod-1.m1"]);
    assert_eq!(record["status"], Value::Null);
    let kinds = "clusters,machines,genericmachines,nodeidentities";
    let left = here.kubectl().ok(["get", kinds, "-o", "name"]);
    let record = "nodeidentity.attestation.cluster.x-k8s.io/other.m1";
    assert_eq!(left, format!("cluster.cluster.x-k8s.io/other\n{record}\n"));
    other.get();
}

#[test]
fn a_kubelet_joins_the_workload_cluster_with_its_machines_token() {
    let cluster = SHARED
        .cluster("prod-1")
        .namespace("joins")
        .controllers(Controllers::Certificates)
        .create();
    cluster.control_plane().install_kubeadm_bindings();
    let machine = cluster.machine("m1").create();
    let kubelet = cluster
        .control_plane()
        .kubelet(machine.node_name())
        .bootstrap_kubeconfig(machine.bootstrap_kubeconfig())
        .start();

    kubelet.wait_until_registered();
    machine.set_node_ref();

    assert_eq!(machine.get()["status"]["nodeRef"]["name"], "m1");
}
