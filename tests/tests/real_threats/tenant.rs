//! Attackers with all write access to one tenant's namespace.

use kubelet_authenticator_test_support::control_plane::Exec;
use kubelet_authenticator_tests::management::workload_kubeconfig;
use serde_json::json;

use crate::SCENE;
use kubelet_authenticator_tests::fleet::authorize;

#[test]
fn a_tenants_kubeconfig_names_a_program_for_the_controller_to_run() {
    let tenant = SCENE
        .site
        .management
        .cluster("tenant-exec")
        .namespace("tenant-exec")
        .create();
    let ran = SCENE
        .cluster
        .control_plane()
        .directory("tenant")
        .join("ran");
    let plane = SCENE.cluster.control_plane();
    let exec = Exec::new("/usr/bin/touch").arg(ran.display().to_string());
    let kubeconfig = plane.exec_kubeconfig(exec);
    tenant.write_kubeconfig(&std::fs::read_to_string(kubeconfig).unwrap());

    let authentication = authorize(&SCENE.site.management, &tenant, &["aws"], json!({}));

    let kubectl = SCENE.management();
    let refused = authentication.wait_for(kubectl, "Ready", "False", "KubeconfigRefused");
    assert!(refused.to_string().contains("exec"), "{refused:#}");
    assert!(!ran.exists());
}

#[test]
fn a_tenants_kubeconfig_names_files_of_the_controller() {
    let tenant = SCENE
        .site
        .management
        .cluster("tenant-files")
        .namespace("tenant-files")
        .create();
    let plane = tenant.control_plane();
    let text = workload_kubeconfig("tenant-files", plane)
        .replace("client-certificate-data:", "client-certificate:");
    tenant.write_kubeconfig(&text);

    let authentication = authorize(&SCENE.site.management, &tenant, &["aws"], json!({}));

    let kubectl = SCENE.management();
    authentication.wait_for(kubectl, "Ready", "False", "KubeconfigRefused");
}
