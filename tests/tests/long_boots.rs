//! Tests of machines that boot with firmware, Secure Boot and a TPM that the kernel drives, after a change of the
//! software, the disk or the TPM.

use kubelet_authenticator_test_support::virtual_machine::{Image, SecureBoot, VirtualMachine};
use kubelet_authenticator_tests::boots::{
    Host, OF_UNIFIED, Progress, allow, allow_only, cluster, credential, new_tpm, state,
};
use serde_json::json;

#[test]
fn another_kernel_is_denied_until_the_policy_lists_its_registers() {
    let scene = cluster("kernel");
    let host = Host::new(&scene, "kernel");
    let joined = host.join(Image::Unified, SecureBoot::On);
    host.is_joined_by(&joined);
    allow_only(&scene, &joined, &OF_UNIFIED);

    let denied = host.renew(Image::UnifiedOtherKernel, SecureBoot::On);

    host.is_denied_for(&denied, &[4, 11]);
    let states = [&joined, &denied].map(|boot| state(boot, &OF_UNIFIED));
    allow(&scene, &json!(states));
    let renewed = host.renew(Image::UnifiedOtherKernel, SecureBoot::On);
    assert_eq!(renewed.status(), 0, "{}", renewed.errors());
    assert_eq!(renewed.registers(), denied.registers());
}

#[test]
fn a_cloned_disk_with_another_tpm_gets_no_credential() {
    let scene = cluster("clone");
    let host = Host::new(&scene, "original");
    let joined = host.join(Image::Unified, SecureBoot::On);
    host.is_joined_by(&joined);
    let (tpm, _) = new_tpm();
    let clone = VirtualMachine::with_disk_of(&host.hardware, &tpm);

    let denied = credential(&clone, Image::Unified, SecureBoot::On);

    let errors = denied.errors();
    assert_eq!(denied.status(), 12, "{errors}");
    assert_eq!(denied.output(), "");
    let aside = "set kubelet-client.pem aside";
    assert!(errors.contains(aside), "{errors}");
    assert!(errors.contains("ProviderIdOfAnotherMachine"), "{errors}");
    let renewed = host.renew(Image::Unified, SecureBoot::On);
    assert_eq!(renewed.status(), 0, "{}", renewed.errors());
}

#[test]
fn a_cleared_tpm_is_denied_because_its_counters_ran_backwards() {
    let scene = cluster("cleared");
    let host = Host::new(&scene, "cleared");
    let joined = host.join(Image::Unified, SecureBoot::On);
    host.is_joined_by(&joined);
    host.hardware.clear_tpm();

    let denied = host.renew(Image::Unified, SecureBoot::On);

    let errors = denied.errors();
    assert_eq!(denied.status(), 12, "{errors}");
    assert!(errors.contains("TpmRanBackwards"), "{errors}");
    assert_eq!(denied.registers(), joined.registers());
}

#[test]
fn a_kubelet_with_the_plugin_is_ready_and_registers_after_a_reboot() {
    let scene = cluster("kubelet");
    let host = Host::new(&scene, "kubelet");
    host.add_kubelet();

    let first = host.run_kubelet(Image::Unified, SecureBoot::On);
    let second = host.run_kubelet(Image::Unified, SecureBoot::On);

    assert_eq!(first.output(), "just became ready\n", "{}", first.errors());
    let again = "previously registered\n";
    assert_eq!(second.output(), again, "{}", second.errors());
    let node = scene.cluster.control_plane().wait_for_node("kubelet");
    let kernel = &node["status"]["nodeInfo"]["kernelVersion"];
    assert!(
        kernel.as_str().unwrap().ends_with("-cloud-amd64"),
        "{kernel}"
    );
    assert_eq!(scene.record("kubelet")["spec"]["attestor"], "tpm");
    // The kubelet of the second boot uses the certificate on the disk.
    assert_eq!(host.renewals().len(), 0);
}

#[test]
fn grub_without_secure_boot_gives_the_kernel_no_event_log() {
    let scene = cluster("grub");
    let host = Host::new(&scene, "grub");

    let joined = host.join(Image::Grub, SecureBoot::Off);

    host.is_joined_by(&joined);
    assert_eq!(joined.event_log(), None);
    // With Secure Boot, the same image passes the log.
    let again = host.renew(Image::Grub, SecureBoot::On);
    assert_eq!(again.status(), 0, "{}", again.errors());
    assert!(again.event_log().is_some());
}

#[test]
fn a_join_that_loses_power_at_ten_points_is_completed() {
    let scene = cluster("power");
    let timed = Host::new(&scene, "timed");
    let took = timed.join_time(Image::Unified, SecureBoot::On);
    let host = Host::new(&scene, "dark");

    let mut progress = Vec::new();
    for point in 1..=10 {
        host.lose_power(Image::Unified, SecureBoot::On, took * point / 11);
        progress.push(host.progress());
    }

    // Otherwise, no failure occurred between the creation of a request and the storage of its certificate.
    assert!(progress.contains(&Progress::Requested), "{progress:?}");
    let mut since = progress.iter().skip_while(|one| **one != Progress::Joined);
    assert!(since.all(|one| *one == Progress::Joined), "{progress:?}");
    let joined = host.join(Image::Unified, SecureBoot::On);
    host.is_joined_by(&joined);
    let record = scene.record("dark");
    assert!(record["spec"]["tombstone"].is_null(), "{record:#}");
    let renewed = host.renew(Image::Unified, SecureBoot::On);
    assert_eq!(renewed.status(), 0, "{}", renewed.errors());
}
