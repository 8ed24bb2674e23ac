//! Tests of attackers who have full write access to one tenant's namespace.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kubelet_authenticator_test_support::control_plane::Exec;
use kubelet_authenticator_tests::fleet::{authorize, condition_of};
use kubelet_authenticator_tests::management::workload_kubeconfig;
use serde_json::json;

use crate::SCENE;

#[test]
fn a_tenant_kubeconfig_that_names_a_program_is_refused() {
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
fn a_tenant_kubeconfig_that_names_files_is_refused() {
    let tenant = SCENE
        .site
        .management
        .cluster("tenant-files")
        .namespace("tenant-files")
        .create();
    let plane = tenant.control_plane();
    let good = workload_kubeconfig("tenant-files", plane);
    let [certificate, key] = ["client-certificate-data", "client-key-data"].map(|field| {
        let value = good.split(&format!("{field}: ")).nth(1).unwrap();
        value.lines().next().unwrap().to_owned()
    });
    // These are files that the controller can read. If a controller opens them, its kubeconfig works.
    let files = [("client-certificate", &certificate), ("client-key", &key)];
    let text = files
        .into_iter()
        .fold(good.clone(), |text, (field, value)| {
            let file = plane.directory("tenant").join(field);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, BASE64.decode(value).unwrap()).unwrap();
            let data = format!("{field}-data: {value}");
            assert!(text.contains(&data), "{text}");
            text.replace(&data, &format!("{field}: {}", file.display()))
        });
    let authentication = authorize(&SCENE.site.management, &tenant, &["aws"], json!({}));
    let kubectl = SCENE.management();
    authentication.wait_until_ready(kubectl);

    tenant.write_kubeconfig(&text);

    let refused = authentication.wait_for(kubectl, "Ready", "False", "KubeconfigRefused");
    let message = condition_of(&refused, "Ready")["message"].to_string();
    assert!(message.contains("client-certificate"), "{message}");
}
