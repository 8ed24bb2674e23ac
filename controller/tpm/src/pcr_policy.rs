//! The allowed boot states of machines, by PCRs.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use kubelet_attestation::evidence::tpm::{MAX_REGISTER, Registers};
use node_attestation_core::crd;

use crate::denial::TpmDenial;
use crate::invalid_settings::InvalidTpmSettings;

/// Registers that any program on the machine sets back to zero and extends as it likes (`TPM2_PCR_Reset`
/// from locality 0: "PC Client Platform TPM Profile", PCR attributes). The others from 17 on take a
/// measured launch.
const OF_SOFTWARE: [u8; 2] = [16, 23];

/// The length of a digest names its bank. This is the length for the bank SHA-384.
const SHA384_DIGITS: usize = 96;

const OF_ANOTHER_BANK: &str =
    "has a digest of 96 digits (SHA-384): only SHA-256 is supported, with 64 digits";
const NOT_REGISTERS: &str = "is not registers from 0 to 23 with their digests";
const ONLY_OF_SOFTWARE: &str = "names no register that software cannot reset (all but 16 and 23)";

/// The allowed boot states of machines: registers with their values. Without any, every state is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PcrPolicy(Vec<BTreeMap<u8, [u8; 32]>>);

impl PcrPolicy {
    /// The policy of these settings.
    ///
    /// # Errors
    ///
    /// A state names no register, one that no PC has, no digest, or only registers that software resets:
    /// any program could bring it about.
    pub(crate) fn new(settings: &crd::PcrPolicy) -> Result<Self, InvalidTpmSettings> {
        let allowed = settings.allowed.iter().enumerate();
        let allowed: Result<_, _> = allowed
            .map(|(index, state)| {
                let invalid =
                    |rule| InvalidTpmSettings::new(format!("pcrPolicy.allowed[{index}] {rule}"));
                if state.values().any(|value| value.len() == SHA384_DIGITS) {
                    return Err(invalid(OF_ANOTHER_BANK));
                }
                let state = read(state).ok_or_else(|| invalid(NOT_REGISTERS))?;
                if state.keys().all(|register| OF_SOFTWARE.contains(register)) {
                    return Err(invalid(ONLY_OF_SOFTWARE));
                }
                Ok(state)
            })
            .collect();
        allowed.map(Self)
    }

    /// Checks the registers of a quote. More may be quoted than the policy names.
    ///
    /// # Errors
    ///
    /// [`TpmDenial::RegisterNotQuoted`], [`TpmDenial::RegisterNotAllowed`], both of the state that
    /// differs in the fewest registers.
    pub(crate) fn allows(&self, registers: &Registers) -> Result<(), TpmDenial> {
        let differing = self.0.iter().map(|state| {
            let differing = state
                .iter()
                .filter(|(number, value)| registers.get(**number) != Some(*value));
            differing.map(|(number, _)| *number).collect::<Vec<_>>()
        });
        // Without an allowed state, nothing differs.
        let nearest = differing.min_by_key(Vec::len).unwrap_or_default();
        let Some(&register) = nearest.first() else {
            return Ok(());
        };
        let Some(value) = registers.get(register) else {
            return Err(TpmDenial::RegisterNotQuoted(register));
        };
        Err(TpmDenial::RegisterNotAllowed {
            register,
            value: HEXLOWER.encode(value),
            others: nearest,
        })
    }
}

fn read(state: &crd::PcrSet) -> Option<BTreeMap<u8, [u8; 32]>> {
    let registers: Option<BTreeMap<_, _>> = state
        .iter()
        .map(|(number, value)| {
            let number = number.parse().ok().filter(|one| *one <= MAX_REGISTER)?;
            let value = HEXLOWER.decode(value.as_bytes()).ok()?;
            Some((number, value.try_into().ok()?))
        })
        .collect();
    // A state that names no register would allow every machine.
    registers.filter(|registers| !registers.is_empty() && registers.len() == state.len())
}

#[cfg(test)]
mod tests;
