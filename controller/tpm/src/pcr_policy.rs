//! The allowed boot states of machines, as PCR values.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use kubelet_attestation::ensure;
use kubelet_attestation::evidence::tpm::{MAX_REGISTER, Registers};
use node_attestation_core::crd::{self, OsSeparator};

use crate::denial::TpmDenial;
use crate::invalid_settings::InvalidTpmSettings;
use crate::registers::{is_unmeasured, separated, unmeasured};

/// The registers that any program on the machine can reset to zero and then extend (`TPM2_PCR_Reset` from locality 0:
/// "PC Client Platform TPM Profile", PCR attributes). The other registers from 17 to 22 can be reset only by a measured
/// launch.
const OF_SOFTWARE: [u8; 2] = [16, 23];

/// The length of a SHA-384 digest, in hexadecimal digits. The length of a digest identifies its bank.
const SHA384_DIGITS: usize = 96;

const OF_ANOTHER_BANK: &str =
    "has a digest of 96 digits (SHA-384): only SHA-256 is supported, with 64 digits";
const NOT_REGISTERS: &str = "must be registers from 0 to 23 with their digests";
const ONLY_OF_SOFTWARE: &str = "names only registers that software can reset (16 and 23)";

/// The digest in a register.
type Value = [u8; 32];

/// The allowed boot states of machines. If the list is empty, every state is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PcrPolicy {
    states: Vec<State>,
    separator: OsSeparator,
}

/// Registers with their allowed values.
type State = BTreeMap<u8, Vec<Value>>;

/// The result of comparing a register with the allowed values. A better result is smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Allowed,
    /// The register has an allowed value, except that the operating system's separator is missing or not allowed.
    ButForTheSeparator,
    Differs,
}

/// The registers that differ from a state, each with the result of its comparison.
type Differences = BTreeMap<u8, Fit>;

impl PcrPolicy {
    /// Creates the policy from these settings.
    ///
    /// # Errors
    ///
    /// Returns an error if a state has no registers, has an invalid register or digest, or has only registers that
    /// software can reset, because any program can produce that state. Also returns an error for a value that a
    /// register has only if the firmware does not extend it.
    pub(crate) fn new(settings: &crd::PcrPolicy) -> Result<Self, InvalidTpmSettings> {
        let allowed = settings.allowed.iter().enumerate();
        let states: Result<_, _> = allowed
            .map(|(index, state)| {
                read(state).map_err(|rule| {
                    InvalidTpmSettings::new(format!("pcrPolicy.allowed[{index}] {rule}"))
                })
            })
            .collect();
        Ok(Self {
            states: states?,
            separator: settings.os_separator,
        })
    }

    /// Whether every state is allowed.
    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Checks the registers of a quote. A quote can cover more registers than the policy.
    ///
    /// # Errors
    ///
    /// Returns the denials that begin with `Register` or `OsSeparator`. These denials describe the allowed state that
    /// differs from the quote in the fewest registers.
    pub(crate) fn allows(&self, quoted: &Registers) -> Result<(), TpmDenial> {
        let states = self
            .states
            .iter()
            .map(|state| self.differences(state, quoted));
        let nearest = states.min_by_key(|differences| {
            let differ = differences.values().filter(|fits| **fits == Fit::Differs);
            (differ.count(), differences.len())
        });
        let Some(differences) = nearest else {
            return Ok(());
        };
        // If the firmware does not measure into this bank, the operating system could have extended all registers to
        // the allowed values.
        if let Some(register) = unmeasured(quoted).next() {
            return Err(TpmDenial::RegisterNotMeasured(register));
        }
        let others: Vec<u8> = differences.keys().copied().collect();
        let mut missing = others
            .iter()
            .filter(|register| quoted.get(**register).is_none());
        if let Some(register) = missing.next() {
            return Err(TpmDenial::RegisterNotQuoted(*register));
        }
        let mut differing = differences
            .iter()
            .filter(|(_, fits)| **fits == Fit::Differs);
        let differing =
            differing.find_map(|(register, _)| Some((*register, quoted.get(*register)?)));
        if let Some((register, value)) = differing {
            return Err(TpmDenial::RegisterNotAllowed {
                register,
                value: HEXLOWER.encode(value),
                others,
            });
        }
        match self.separator {
            _ if others.is_empty() => Ok(()),
            OsSeparator::Required => Err(TpmDenial::OsSeparatorMissing { registers: others }),
            OsSeparator::Permitted | OsSeparator::Refused => {
                Err(TpmDenial::OsSeparatorRefused { registers: others })
            }
        }
    }

    fn differences(&self, state: &State, quoted: &Registers) -> Differences {
        let fits = state.iter().map(|(register, alternatives)| {
            let fits = quoted.get(*register).and_then(|value| {
                let fits = alternatives.iter();
                fits.map(|allowed| self.fit(*register, allowed, value))
                    .min()
            });
            (*register, fits.unwrap_or(Fit::Differs))
        });
        fits.filter(|(_, fits)| *fits != Fit::Allowed).collect()
    }

    /// Compares a register with one allowed value.
    fn fit(&self, register: u8, allowed: &Value, quoted: &Value) -> Fit {
        let is_plain = quoted == allowed;
        let separated = separated(register, allowed);
        let has_none = separated.is_none();
        let is_separated = separated.is_some_and(|separated| separated == quoted);
        match self.separator {
            _ if !is_plain && !is_separated => Fit::Differs,
            OsSeparator::Permitted => Fit::Allowed,
            OsSeparator::Required if is_separated || has_none => Fit::Allowed,
            OsSeparator::Refused if is_plain => Fit::Allowed,
            OsSeparator::Required | OsSeparator::Refused => Fit::ButForTheSeparator,
        }
    }
}

fn read(state: &crd::PcrSet) -> Result<State, String> {
    let mut registers = State::new();
    for (number, alternatives) in state {
        let register = number.parse().ok().filter(|one| *one <= MAX_REGISTER);
        let register = register.ok_or(NOT_REGISTERS)?;
        let alternatives = alternatives
            .split(',')
            .map(|digits| read_value(register, digits.strip_prefix(' ').unwrap_or(digits)));
        registers.insert(register, alternatives.collect::<Result<_, _>>()?);
    }
    // A state without registers is invalid, because it would allow every machine.
    let is_one = !registers.is_empty() && registers.len() == state.len();
    ensure!(is_one, NOT_REGISTERS.to_owned());
    let only_of_software = registers
        .keys()
        .all(|register| OF_SOFTWARE.contains(register));
    ensure!(!only_of_software, ONLY_OF_SOFTWARE.to_owned());
    Ok(registers)
}

fn read_value(register: u8, digits: &str) -> Result<Value, String> {
    ensure!(digits.len() != SHA384_DIGITS, OF_ANOTHER_BANK.to_owned());
    let value = HEXLOWER.decode(digits.as_bytes()).ok();
    let value = value.and_then(|value| value.try_into().ok());
    let value: Value = value.ok_or(NOT_REGISTERS)?;
    if is_unmeasured(register, &value) {
        return Err(format!(
            "contains the value that register {register} has before the firmware measures anything: any operating \
             system can extend a register with this value"
        ));
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
