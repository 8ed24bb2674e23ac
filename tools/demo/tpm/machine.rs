//! A machine with a TPM.

use std::sync::Arc;
use std::thread;

use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::tpm;
use node_attestation_core::crd::PcrSet;
use sha2::{Digest as _, Sha256};

/// The measurements at the boot of a machine in the demo, each with its register and its component.
pub const BOOT: [(u8, &str); 3] = [(0, "firmware"), (4, "boot loader"), (7, "Secure Boot")];

/// A machine that has booted.
pub struct Machine {
    /// The machine's name.
    pub name: &'static str,
    /// The operations that the machine performs with its TPM.
    pub host: TpmMachine,
    /// The provider ID, which is derived from the endorsement key.
    pub provider_id: String,
}

impl Machine {
    /// Boots machines with these names. All of them boot in the same way.
    pub fn boot_all(names: &[&'static str]) -> Vec<Self> {
        thread::scope(|scope| {
            let booting: Vec<_> = names
                .iter()
                .map(|name| scope.spawn(|| Self::boot(name)))
                .collect();
            let booted = booting.into_iter().map(|machine| machine.join().unwrap());
            booted.collect()
        })
    }

    fn boot(name: &'static str) -> Self {
        let tpm = Arc::new(Swtpm::start());
        for (register, what) in BOOT {
            tpm.extend(register, &Sha256::digest(what).into());
        }
        let host = TpmMachine::new(tpm, EndorsementKey::P384);
        Self {
            name,
            provider_id: tpm::provider_id(&host),
            host,
        }
    }

    /// The machine's TPM.
    pub fn tpm(&self) -> &Swtpm {
        self.host.tpm()
    }

    /// The settings for the machine's plugin, with the TPM at this address.
    pub fn plugin_settings(&self, tcti: String) -> [(&'static str, String); 3] {
        [
            ("nodeName", self.name.to_owned()),
            ("providerID", self.provider_id.clone()),
            ("tpm.tcti", tcti),
        ]
    }

    /// The values of the registers in [`BOOT`].
    pub fn boot_state(&self) -> PcrSet {
        let registers = BOOT.map(|(register, _)| (register, self.tpm().pcr(register)));
        let digits = |(register, value): (u8, Vec<u8>)| (register.to_string(), hex(&value));
        registers.into_iter().map(digits).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
