//! Tests with the registers of the boots that `tests/boots/recorded` contains.

use std::fs;
use std::path::Path;

use super::*;

/// The registers for a unified kernel image in docs/tpm.md.
const OF_UNIFIED: [u8; 5] = [4, 7, 11, 12, 13];

/// The registers for shim and GRUB in docs/tpm.md.
const OF_GRUB: [u8; 5] = [4, 7, 8, 9, 14];

/// All registers of the static root of trust, except the register that the kernel extends with the files that it
/// measures (10).
const ALL: [u8; 15] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15];

/// The registers after this boot, in hexadecimal digits.
fn recorded(boot: &str) -> BTreeMap<u8, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/boots/recorded");
    let text = fs::read_to_string(folder.join(boot).join("registers")).unwrap();
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    let registers: BTreeMap<u8, String> = lines
        .map(|(register, value)| (register.parse().unwrap(), value.to_owned()))
        .collect();
    assert_eq!(registers.len(), 24, "{boot}");
    registers
}

/// A policy that allows only the values that these registers have after this boot.
fn allowing(boot: &str, registers: &[u8]) -> PcrPolicy {
    let values = recorded(boot);
    let state = registers
        .iter()
        .map(|register| (register.to_string(), values[register].clone()));
    PcrPolicy::new(&settings(vec![state.collect()])).unwrap()
}

/// A quote of all registers after this boot.
fn quoted(boot: &str) -> Registers {
    let registers = recorded(boot).into_iter().map(|(register, value)| {
        let value = HEXLOWER.decode(value.as_bytes()).unwrap();
        (register, <[u8; 32]>::try_from(value).unwrap())
    });
    Registers::new(registers.collect()).unwrap()
}

/// Asserts that a policy for these registers of the first boot accepts the first boot, and denies the second boot
/// because of the registers in `differing`.
#[track_caller]
fn is_denied_for(boots: [&str; 2], registers: &[u8], differing: &[u8]) {
    let [allowed, changed] = boots;
    let policy = allowing(allowed, registers);
    assert_eq!(policy.allows(&quoted(allowed)), Ok(()), "{allowed}");
    let denial = TpmDenial::RegisterNotAllowed {
        register: differing[0],
        value: recorded(changed)[&differing[0]].clone(),
        others: differing.to_vec(),
    };
    assert_eq!(policy.allows(&quoted(changed)), Err(denial), "{boots:?}");
}

#[test]
fn a_recorded_boot_without_secure_boot_is_denied_for_4_and_7() {
    is_denied_for(["uki-secure-boot", "uki"], &OF_UNIFIED, &[4, 7]);
    is_denied_for(["uki-secure-boot", "uki"], &ALL, &[4, 7]);
    is_denied_for(["grub-secure-boot", "grub"], &OF_GRUB, &[4, 7]);
    is_denied_for(["grub-secure-boot", "grub"], &ALL, &[4, 7]);
}

#[test]
fn a_recorded_boot_with_another_unified_image_is_denied_for_4_and_11() {
    let boots = ["uki-secure-boot", "uki-other-kernel"];
    is_denied_for(boots, &OF_UNIFIED, &[4, 11]);
    is_denied_for(boots, &ALL, &[4, 9, 11]);
}

#[test]
fn a_recorded_grub_boot_with_other_arguments_is_denied_for_8_and_9() {
    let boots = ["grub-secure-boot", "grub-other-arguments"];
    is_denied_for(boots, &OF_GRUB, &[8, 9]);
    is_denied_for(boots, &ALL, &[8, 9]);
    // A policy for only the firmware's registers accepts the other arguments.
    let policy = allowing(boots[0], &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(policy.allows(&quoted(boots[1])), Ok(()));
}
