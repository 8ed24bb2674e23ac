//! PCR values that have a special meaning.

use std::ops::RangeInclusive;

use aws_lc_rs::digest::{Context, SHA256, SHA384, digest};
use kubelet_attestation::evidence::tpm::Registers;

/// The registers that the firmware extends ("PC Client Platform Firmware Profile", 3.3.4). Before it starts a boot
/// loader, the firmware extends each of them with at least a separator.
const OF_FIRMWARE: RangeInclusive<u8> = 0..=7;

/// The registers that systemd 261 and later extend with a separator when systemd first accesses the TPM
/// (`systemd-pcrosseparator.service`).
const SEPARATED: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14];

/// The text that systemd measures.
const SEPARATOR: &[u8] = b"os-separator";

/// The possible values of the last byte of register 0 before any measurement. This byte contains the locality of
/// `TPM2_Startup`. "PC Client Platform TPM Profile" defines 3 for a startup from locality 3, and 4 for a core root of
/// trust for measurement.
const STARTED: [u8; 3] = [0, 3, 4];

/// Returns the value of a register after systemd has extended it with its separator. `None` if systemd does not extend
/// the register. The length of the value identifies its bank.
pub(crate) fn separated(register: u8, value: &[u8]) -> Option<Vec<u8>> {
    let algorithm = [&SHA256, &SHA384]
        .into_iter()
        .find(|algorithm| algorithm.output_len() == value.len())?;
    if !SEPARATED.contains(&register) {
        return None;
    }
    let mut extended = Context::new(algorithm);
    extended.update(value);
    extended.update(digest(algorithm, SEPARATOR).as_ref());
    Some(extended.finish().as_ref().to_vec())
}

/// Whether the register still has its initial value, although the firmware must extend it. Some firmware provides a
/// SHA-256 bank, but measures only into the SHA-1 bank, so any operating system can extend the registers to any value
/// that software can produce. A register that contains only systemd's separator also counts as not extended by the
/// firmware.
pub(crate) fn is_unmeasured(register: u8, value: &[u8]) -> bool {
    if !OF_FIRMWARE.contains(&register) {
        return false;
    }
    let mut initial = STARTED.iter().filter(|last| register == 0 || **last == 0);
    initial.any(|last| {
        let mut initial = vec![0; value.len()];
        if let Some(byte) = initial.last_mut() {
            *byte = *last;
        }
        value == initial
            || separated(register, &initial).is_some_and(|separated| value == separated)
    })
}

/// Returns the quoted registers that the firmware must extend but did not.
pub(crate) fn unmeasured(registers: &Registers) -> impl Iterator<Item = u8> {
    let registers = registers.iter();
    registers.filter_map(|(register, value)| {
        is_unmeasured(register, AsRef::<[u8]>::as_ref(value)).then_some(register)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use data_encoding::HEXLOWER;

    use super::*;

    fn value(digits: &str) -> [u8; 32] {
        let value = HEXLOWER.decode(digits.as_bytes()).unwrap();
        value.try_into().unwrap()
    }

    /// The values are from a machine with systemd 261.3 whose firmware extended only its own separator.
    #[test]
    fn the_systemd_261_separator_gives_the_value_of_a_real_machine() {
        let firmware = value("3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969");

        let with = separated(2, &firmware).unwrap();

        assert_eq!(
            with,
            value("8d22c738fcd1730fb0789cb09c0f72a0012baa3ea867723b26772c9ca0ae6571")
        );
    }

    #[test]
    fn systemd_extends_its_separator_into_the_known_registers() {
        let separated: Vec<_> = (0..=23)
            .filter(|one| separated(*one, &[1; 32]).is_some())
            .collect();

        assert_eq!(separated, [0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14]);
    }

    #[test]
    fn registers_without_a_measurement_of_the_firmware_are_recognized() {
        let zero = [0; 32];
        let ended = |last| {
            let mut value = zero;
            value[31] = last;
            value
        };
        for register in 0..=7 {
            assert!(is_unmeasured(register, &zero), "{register}");
            let with_separator = separated(register, &zero).unwrap();
            assert!(is_unmeasured(register, &with_separator), "{register}");
            assert!(!is_unmeasured(register, &[1; 32]), "{register}");
            assert!(!is_unmeasured(register, &ended(1)), "{register}");
            assert_eq!(is_unmeasured(register, &ended(3)), register == 0);
            assert_eq!(is_unmeasured(register, &ended(4)), register == 0);
        }
        assert!(is_unmeasured(7, &[0; 48]), "in the bank SHA-384");
        assert!(
            is_unmeasured(7, &separated(7, &[0; 48]).unwrap()),
            "in the bank SHA-384"
        );
        // The other registers are zero until they are used.
        for register in 8..=23 {
            assert!(!is_unmeasured(register, &zero), "{register}");
        }
    }

    #[test]
    fn the_unmeasured_registers_of_a_quote_are_listed() {
        let quoted = [(0, [1; 32]), (4, [0; 32]), (7, [0; 32]), (12, [0; 32])];
        let quoted = Registers::new(BTreeMap::from(quoted)).unwrap();

        assert_eq!(unmeasured(&quoted).collect::<Vec<_>>(), [4, 7]);
    }
}
