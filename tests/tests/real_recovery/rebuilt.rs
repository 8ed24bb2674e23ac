//! Tests of a workload cluster that is rebuilt with the same CA.

use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, DEADLINE, KubeadmBinding, User,
};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::workload_kubeconfig;
use serde_json::json;

use crate::bed::{Manager, authorize, first_exec, kubelet, management};
use crate::witness::{as_node, label, workload};

#[test]
fn a_cluster_rebuilt_with_the_same_ca_refuses_previous_certificates() {
    const FLOOR: &str = "attestation.cluster.x-k8s.io/lowest-valid-generation";
    let management = management();
    let kubectl = management.kubectl();
    let builder = management.cluster("prod-1").workload(workload().into());
    let cluster = builder.create();
    let previous = cluster.control_plane().clone();
    let machine = cluster.machine("m1").create();
    let _manager = Manager::null(&management, &[]);
    let authentication = authorize(&management, &cluster, &["aws"], json!({}));
    authentication.wait_until_ready(kubectl);
    let mut kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    kubelet.kill();
    assert!(
        label(&as_node(&previous, &kubelet), "m1", 0)
            .status
            .success()
    );

    let rebuilt = ControlPlane::builder()
        .controllers(Controllers::Default)
        .ca_of(&previous)
        .start();
    rebuilt.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    rebuilt.kubectl().apply_object(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "m1"},
    }));
    let node = as_node(&rebuilt, &kubelet);
    // The CA is the same, so the certificate is valid in the new cluster until the controller serves it.
    assert!(label(&node, "m1", 1).status.success());
    cluster.write_kubeconfig(&workload_kubeconfig("prod-1", &rebuilt));

    let mut value = 1;
    let refused = poll(DEADLINE, || {
        value += 1;
        let tried = label(&node, "m1", value);
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        (!tried.status.success()).then_some(said)
    });
    let refused = refused.expect("the previous certificate still writes");
    assert!(refused.contains("is revoked"), "{refused}");
    let object = kubectl.json(["get", "kubeletauthentication", "prod-1"]);
    assert!(
        object["metadata"]["annotations"][FLOOR].is_string(),
        "{object:#}"
    );

    // A machine that joins the new cluster gets a generation that is higher than the floor, and can write.
    let machine = cluster.machine("m2").create();
    let bearer = machine.token().bearer();
    let (id, secret) = bearer.split_once('.').unwrap();
    rebuilt.add_bootstrap_token(id, secret);
    let bootstrap = rebuilt.kubeconfig(User::Token(bearer.clone()));
    let exec = first_exec(&bootstrap, "kubelet-authenticator-null");
    let exec = exec.setting("providerID", machine.provider_id());
    let kubeconfig = rebuilt.kubeconfig(User::Exec(exec));
    let joined = rebuilt.kubelet("m2").kubeconfig(kubeconfig).start();
    joined.wait_until_ready();
}
