//! Faults of TPMs.

use super::{DEADLINE, Swtpm};
use crate::process::poll;

/// The password of a key. Tests use it only to provoke a failed attempt.
const PASSWORD: &str = "secret";

/// The recovery time in seconds, which is longer than a test.
const PATIENCE: u32 = 1000;

impl Swtpm {
    /// Makes the TPM reject passwords, as after too many wrong guesses.
    #[track_caller]
    pub fn lock_out(&self) {
        let sequence = self.tools.sequence();
        sequence.must(&[
            "tpm2_dictionarylockout",
            "--setup-parameters",
            "--max-tries=1",
            &format!("--recovery-time={PATIENCE}"),
            &format!("--lockout-recovery-time={PATIENCE}"),
        ]);
        let attributes = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|sign";
        sequence.must(&[
            "tpm2_createprimary",
            "-C",
            "o",
            "-G",
            "ecc",
            "-p",
            PASSWORD,
            "-a",
            attributes,
            "-c",
            "key",
        ]);
        sequence.flush();
        sequence.write("message", "message");
        let guess = ["tpm2_sign", "-c", "key", "-p", "wrong", "-o", "signature"];
        let guessed = sequence.run(&[&guess[..], &["message"]].concat());
        assert!(guessed.is_err(), "the password was not wrong");
        drop(sequence);
        assert!(self.is_locked_out());
    }

    /// Removes the state of the TPM, and switches the TPM on again. After that, the TPM answers every command with
    /// 0x101 (failure mode).
    #[track_caller]
    pub fn break_down(&self) {
        let sequence = self.tools.sequence();
        // The TPM might still be storing the changes of the last command. In this case, a file appears during the
        // removal.
        let removed = poll(DEADLINE, || std::fs::remove_dir_all(&self.state).ok());
        assert!(removed.is_some(), "its state cannot be removed");
        let switched_on = sequence.run(&["swtpm_ioctl", "--tcp", &self.control(), "-i"]);
        assert!(switched_on.is_err(), "it does without its state");
    }
}
