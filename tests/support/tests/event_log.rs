//! Tests of the event logs that `tests/boots/recorded` contains, with the registers of the same boots.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kubelet_authenticator_test_support::event_log::{events, replay};

/// The kernel extends this register with the files that it measures (IMA). The log does not contain these measurements.
const OF_THE_KERNEL: u8 = 10;

/// The registers that only a measured launch extends. Until then, all of their bits are set.
const OF_A_LAUNCH: std::ops::RangeInclusive<u8> = 17..=22;

fn recorded(boot: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../boots/recorded");
    folder.join(boot)
}

/// The registers after this boot, in hexadecimal digits.
fn registers(boot: &str) -> BTreeMap<u8, String> {
    let text = fs::read_to_string(recorded(boot).join("registers")).unwrap();
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    lines
        .map(|(register, value)| (register.parse().unwrap(), value.to_owned()))
        .collect()
}

fn log(boot: &str) -> Vec<u8> {
    fs::read(recorded(boot).join("event-log")).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_recorded_log_explains_the_registers_of_its_boot() {
    let boots = [
        "uki",
        "uki-secure-boot",
        "uki-other-kernel",
        "grub-secure-boot",
        "grub-other-arguments",
    ];
    for boot in boots {
        let replayed = replay(&log(boot));

        for (register, value) in registers(boot) {
            if register == OF_THE_KERNEL || OF_A_LAUNCH.contains(&register) {
                continue;
            }
            let explained = replayed.get(&register).copied().unwrap_or_default();
            assert_eq!(hex(&explained), value, "register {register} of {boot}");
        }
    }
}

#[test]
fn a_recorded_log_with_one_changed_digest_explains_other_registers() {
    let log = log("uki");
    let digest = events(&log)[0].sha256;
    let at = log.windows(32).position(|bytes| bytes == digest).unwrap();
    let mut changed = log.clone();
    changed[at] ^= 1;

    let (before, after) = (replay(&log), replay(&changed));

    let differing = before
        .iter()
        .filter(|(register, value)| after[*register] != **value);
    let differing: BTreeSet<_> = differing.map(|(register, _)| *register).collect();
    assert_eq!(differing, BTreeSet::from([0]));
}
