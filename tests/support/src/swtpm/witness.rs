//! The state of a TPM, as reported by tpm2-tools.

use super::Swtpm;

/// The counters of a TPM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// The number of milliseconds for which the TPM has been powered on.
    pub clock: u64,
    /// The number of resets.
    pub reset_count: u32,
    /// The number of suspensions since the last reset.
    pub restart_count: u32,
    /// Whether `clock` has never had a higher value.
    pub safe: bool,
}

impl Swtpm {
    /// Whether the TPM refuses passwords.
    #[track_caller]
    pub fn is_locked_out(&self) -> bool {
        let properties = self.tools.once(&["tpm2_getcap", "properties-variable"]);
        let mut lines = properties.lines().map(str::trim);
        let line = lines.find_map(|line| line.strip_prefix("inLockout:"));
        line.expect("it is a property").trim() == "1"
    }

    /// The number of wrong passwords that count toward the lockout.
    #[track_caller]
    pub fn wrong_passwords(&self) -> u32 {
        let properties = self.tools.once(&["tpm2_getcap", "properties-variable"]);
        let mut lines = properties.lines().map(str::trim);
        let line = lines.find_map(|line| line.strip_prefix("TPM2_PT_LOCKOUT_COUNTER: 0x"));
        u32::from_str_radix(line.expect("it is a property"), 16).expect("a count")
    }

    /// The handles of the transient objects in the TPM's memory.
    #[track_caller]
    pub fn transient_handles(&self) -> Vec<u32> {
        self.handles("handles-transient")
    }

    /// The handles of the sessions in the TPM's memory.
    #[track_caller]
    pub fn loaded_sessions(&self) -> Vec<u32> {
        self.handles("handles-loaded-session")
    }

    /// The handles of the TPM's persistent keys.
    #[track_caller]
    pub fn persistent_handles(&self) -> Vec<u32> {
        self.handles("handles-persistent")
    }

    /// The counters of the TPM.
    #[track_caller]
    pub fn clock(&self) -> Clock {
        let read = self.tools.once(&["tpm2_readclock"]);
        let field = |name: &str| {
            let value = read.lines().find_map(|line| {
                let (found, value) = line.trim().split_once(": ")?;
                (found == name).then_some(value)
            });
            value.unwrap_or_else(|| panic!("no {name} in {read}"))
        };
        Clock {
            clock: field("clock").parse().expect("milliseconds"),
            reset_count: field("reset_count").parse().expect("a count"),
            restart_count: field("restart_count").parse().expect("a count"),
            safe: field("safe") == "yes",
        }
    }

    /// The value of a PCR in the SHA-256 bank. Empty if the TPM does not have this bank.
    #[track_caller]
    pub fn pcr(&self, pcr: u8) -> Vec<u8> {
        let sequence = self.tools.sequence();
        sequence.must(&["tpm2_pcrread", &format!("sha256:{pcr}"), "-o", "value"]);
        sequence.read("value")
    }

    /// The contents of a certificate index, if it exists.
    #[track_caller]
    pub fn read_certificate(&self, index: u32) -> Option<Vec<u8>> {
        let sequence = self.tools.sequence();
        let indices = sequence.must(&["tpm2_getcap", "handles-nv-index"]);
        let index = format!("{index:#X}").replacen("0X", "0x", 1);
        let mut lines = std::str::from_utf8(&indices).expect("a list").lines();
        if !lines.any(|line| line.trim_start_matches("- ") == index) {
            return None;
        }
        Some(sequence.must(&["tpm2_nvread", "-C", "o", &index]))
    }

    #[track_caller]
    fn handles(&self, kind: &str) -> Vec<u32> {
        let listed = self.tools.once(&["tpm2_getcap", kind]);
        let handles = listed.lines().filter_map(|line| line.strip_prefix("- 0x"));
        handles
            .map(|handle| u32::from_str_radix(handle.trim(), 16).expect("a handle"))
            .collect()
    }
}
