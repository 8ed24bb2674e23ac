//! Tests of machines that boot with firmware, Secure Boot and a TPM that the kernel drives. The machines join with the
//! plugin, the real controller, and a real API server on the host.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::event_log::replay;
use kubelet_authenticator_test_support::virtual_machine::{Boot, Image, SecureBoot};
use kubelet_authenticator_tests::boots::{Host, OF_GRUB, OF_UNIFIED, allow_only, cluster};
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::scene::Scene;

/// The register that the kernel extends with the files that it measures (IMA). No policy uses this register.
const OF_THE_KERNEL: u8 = 10;

/// A Cluster whose policy allows only the unified kernel image with Secure Boot.
static UNIFIED: LazyLock<Scene> = LazyLock::new(|| cluster("unified"));

/// The first node of the Cluster, and the boot with which it joined before the policy existed.
static FIRST: LazyLock<(Host<'static>, Boot)> = LazyLock::new(|| {
    let host = Host::new(&UNIFIED, "first");
    let joined = host.join(Image::Unified, SecureBoot::On);
    allow_only(&UNIFIED, &joined, &OF_UNIFIED);
    (host, joined)
});

/// Asserts that the event log of the firmware and the kernel explains the values of the registers.
#[track_caller]
fn is_explained_by_its_log(boot: &Boot) {
    let replayed = replay(&boot.event_log().unwrap());
    for (register, value) in boot.registers() {
        if register == OF_THE_KERNEL || register > 15 {
            continue;
        }
        let explained = replayed.get(&register).copied().unwrap_or_default();
        assert_eq!(explained, value, "register {register}");
    }
}

#[test]
fn a_signed_unified_image_joins_and_renews_after_a_reboot() {
    let (host, joined) = &*FIRST;
    host.is_joined_by(joined);
    is_explained_by_its_log(joined);
    let record = UNIFIED.record("first");
    assert_eq!(record["spec"]["attestor"], "tpm", "{record:#}");
    let resets = record["spec"]["tpmBoot"]["resetCount"].as_u64().unwrap();

    let again = host.renew(Image::Unified, SecureBoot::On);

    assert_eq!(again.status(), 0, "{}", again.errors());
    assert_eq!(again.registers(), joined.registers());
    assert_eq!(again.event_log(), joined.event_log());
    let [challenge, renewal] = host.renewals().try_into().unwrap();
    assert_eq!(reason_of(&challenge, "Failed"), Some("ChallengeIssued"));
    assert!(is_issued(&renewal), "{renewal:#}");
    let record =
        UNIFIED.wait_for_record("first", |record| record["spec"]["lastTpmBoot"].is_object());
    let last = &record["spec"]["lastTpmBoot"]["boot"]["resetCount"];
    assert!(last.as_u64() > Some(resets), "{record:#}");
}

#[test]
fn the_same_image_without_secure_boot_is_denied_for_registers_4_and_7() {
    let (_, allowed) = &*FIRST;
    let host = Host::new(&UNIFIED, "unsigned");

    let denied = host.join(Image::Unified, SecureBoot::Off);

    host.is_denied_for(&denied, &[4, 7]);
    assert_eq!(denied.output(), "");
    is_explained_by_its_log(&denied);
    let (was, is) = (allowed.registers(), denied.registers());
    assert_eq!(was[&11], is[&11], "the image is the same");
}

#[test]
fn other_arguments_behind_grub_are_denied_for_registers_8_and_9() {
    let scene = cluster("grub");
    let host = Host::new(&scene, "grub");
    let joined = host.join(Image::Grub, SecureBoot::On);
    host.is_joined_by(&joined);
    is_explained_by_its_log(&joined);
    allow_only(&scene, &joined, &OF_GRUB);

    let changed = host.renew(Image::GrubOtherArguments, SecureBoot::On);

    assert!(changed.arguments().contains("init=/bin/sh"));
    host.is_denied_for(&changed, &[8, 9]);
    is_explained_by_its_log(&changed);
    // A policy for only the firmware's registers would have admitted the boot.
    let (was, is) = (joined.registers(), changed.registers());
    for register in 0..=7 {
        assert_eq!(was[&register], is[&register], "register {register}");
    }
}
