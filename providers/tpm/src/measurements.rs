//! The measurements of the firmware, for `doctor`.

use kubelet_attestation::evidence::tpm::{Bank, Registers};
use sha2::{Digest, Sha256, Sha384};

/// The PCRs that firmware extends with more events than a separator ("PC Client Platform Firmware Profile", 3.3.4).
/// They contain the firmware's code, the program that it starts, and the state of Secure Boot.
const MORE_THAN_SEPARATED: [u8; 3] = [0, 4, 7];

/// The separator events of firmware: two for the normal end of the firmware phase, and one for an error.
const SEPARATORS: [[u8; 4]; 3] = [[0; 4], [0xff; 4], [1, 0, 0, 0]];

/// The event of systemd's separator (`systemd-pcrosseparator.service`).
const OS_SEPARATOR: &[u8] = b"os-separator";

/// The localities from which a TPM can be started. The last byte of the initial value of PCR 0 is the locality.
const LOCALITIES: [u8; 3] = [0, 3, 4];

/// The PCRs from 0 to 7 whose values do not show that firmware measured the boot into this bank. An operating system
/// can extend such PCRs to arbitrary values.
pub(crate) fn unmeasured(registers: &Registers) -> Vec<u8> {
    let bank = registers.bank();
    let is_unmeasured = |number: u8, digest: &[u8]| {
        let initial = LOCALITIES.map(|locality| {
            let mut initial = vec![0; bank.digest_len()];
            if let Some(last) = initial.last_mut().filter(|_| number == 0) {
                *last = locality;
            }
            initial
        });
        initial.iter().any(|initial| {
            let separators = SEPARATORS.iter();
            let separated = separators
                .filter(|_| MORE_THAN_SEPARATED.contains(&number))
                .map(|event| extended(bank, initial, event));
            let mut values: Vec<_> = separated.collect();
            values.push(initial.clone());
            let mut values = values.into_iter();
            values.any(|value| value == digest || extended(bank, &value, OS_SEPARATOR) == digest)
        })
    };
    let numbers = registers.iter();
    numbers
        .filter_map(|(number, digest)| {
            (number <= 7 && is_unmeasured(number, digest)).then_some(number)
        })
        .collect()
}

/// Returns the value of a PCR after it is extended with an event.
fn extended(bank: Bank, value: &[u8], event: &[u8]) -> Vec<u8> {
    fn by<D: Digest>(value: &[u8], event: &[u8]) -> Vec<u8> {
        let extended = D::new().chain_update(value);
        extended.chain_update(D::digest(event)).finalize().to_vec()
    }
    match bank {
        Bank::Sha256 => by::<Sha256>(value, event),
        Bank::Sha384 => by::<Sha384>(value, event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of registers 0 to 8 after these events, computed with the bank's hash algorithm.
    fn after(bank: Bank, events: impl Fn(u8) -> Vec<&'static [u8]>) -> Registers {
        let digests = (0..=8).map(|number| {
            let zero = vec![0; bank.digest_len()];
            let events = events(number).into_iter();
            let digest = events.fold(zero, |value, event| extended(bank, &value, event));
            (number, digest)
        });
        Registers::of_bank(bank, digests.collect()).unwrap()
    }

    #[test]
    fn a_register_with_only_a_separator_has_the_known_firmware_value() {
        let registers = after(Bank::Sha256, |_| vec![&[0; 4]]);

        // The value of registers 2, 3 and 6 on every machine that does not have option ROMs.
        let known = "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969";
        let digest = data_encoding::HEXLOWER.encode(registers.get(2).unwrap());
        assert_eq!(digest, known);
    }

    #[test]
    fn registers_without_a_measurement_of_the_firmware_are_named() {
        for bank in Bank::ALL {
            let named =
                |events: &dyn Fn(u8) -> Vec<&'static [u8]>| unmeasured(&after(bank, events));
            let measured = |number| -> Vec<&'static [u8]> {
                match number {
                    0 | 4 | 7 => vec![b"something", &[0; 4]],
                    _ => vec![&[0; 4]],
                }
            };
            let all: Vec<u8> = (0..=7).collect();

            assert_eq!(named(&measured), [0; 0]);
            assert_eq!(named(&|_| vec![]), all);
            assert_eq!(named(&|_| vec![OS_SEPARATOR]), all);
            assert_eq!(named(&|_| vec![&[0; 4]]), [0, 4, 7]);
            assert_eq!(named(&|_| vec![&[0xff; 4]]), [0, 4, 7]);
            assert_eq!(named(&|_| vec![&[0; 4], OS_SEPARATOR]), [0, 4, 7]);
            let without_4 = |number| match number {
                4 => vec![],
                _ => measured(number),
            };
            assert_eq!(named(&without_4), [4]);
            let with_os = |number| [measured(number), vec![OS_SEPARATOR]].concat();
            assert_eq!(named(&with_os), [0; 0]);
        }
    }

    #[test]
    fn a_startup_locality_is_not_a_measurement() {
        for locality in [3, 4] {
            let mut digest = vec![0; 32];
            digest[31] = locality;
            let of = |number| Registers::of_bank(Bank::Sha256, [(number, digest.clone())].into());

            assert_eq!(unmeasured(&of(0).unwrap()), [0]);
            assert_eq!(unmeasured(&of(4).unwrap()), [0; 0]);
        }
    }
}
