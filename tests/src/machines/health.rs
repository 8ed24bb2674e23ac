//! MachineHealthChecks that replace Machines after a denial, as in docs/conditions.md.

use kubelet_authenticator_test_support::process::poll;
use serde_json::{Value, json};

use crate::docs::page;
use crate::management::MachineDeployment;

use super::objects::names;
use super::{PATIENCE, SITE, Scene};

/// Creates the MachineHealthCheck from docs/conditions.md for this pool. The MachineHealthCheck replaces a Machine if
/// the condition has had this status for one second.
pub fn check_attestation(scene: &Scene, pool: &str, status: &str) {
    let page = page("conditions.md");
    let (_, section) = page
        .split_once("### Replace Machines after a denial")
        .unwrap();
    let block = section.split("```").nth(1).unwrap();
    let mut check: Value = serde_saphyr::from_str(block.strip_prefix("yaml\n").unwrap()).unwrap();
    check["metadata"] = json!({ "name": pool, "namespace": scene.cluster.namespace() });
    let spec = check["spec"].as_object_mut().unwrap();
    spec["clusterName"] = json!(scene.cluster.name());
    spec["selector"]["matchLabels"]["cluster.x-k8s.io/deployment-name"] = json!(pool);
    let condition = &mut spec["checks"]["unhealthyMachineConditions"][0];
    condition["status"] = json!(status);
    condition["timeoutSeconds"] = json!(1);
    // The pool contains only one Machine, so a limit on remediation must not apply.
    spec.remove("remediation").unwrap();
    SITE.management.kubectl().create_object(&check);
}

/// Waits until the deployment has a Machine. Returns its Machines.
#[track_caller]
pub fn wait_for_machine(deployment: &MachineDeployment) -> Vec<Value> {
    let found = poll(PATIENCE, || {
        Some(deployment.machines()).filter(|machines| !machines.is_empty())
    });
    found.expect("the deployment has a Machine")
}

/// Waits until the deployment has a Machine, and none of the previous Machines exists.
#[track_caller]
pub fn wait_for_others(deployment: &MachineDeployment, former: &[Value]) {
    let gone = poll(PATIENCE, || {
        let machines = deployment.machines();
        let now = names(&machines);
        let all_new = names(former).iter().all(|name| !now.contains(name));
        (all_new && !now.is_empty()).then_some(())
    });
    assert!(
        gone.is_some(),
        "not replaced: {:#}",
        json!(deployment.machines())
    );
}
