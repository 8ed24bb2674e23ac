//! TPMs that do not do what they should.

use super::{DEADLINE, Swtpm};
use crate::process::poll;

/// A password that nobody uses but to be wrong about it.
const PASSWORD: &str = "secret";

/// How many objects there is room for.
const OBJECTS: usize = 3;

/// In how many seconds it would trust again: longer than a test.
const PATIENCE: u32 = 1000;

impl Swtpm {
    /// Has it refuse passwords, somebody having guessed too often.
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

    /// Takes its state away and switches it on again: every command is answered 0x101, failure
    /// mode, from now on.
    #[track_caller]
    pub fn break_down(&self) {
        let sequence = self.tools.sequence();
        // It may be storing what the last command changed, and a file appears while others are removed.
        let removed = poll(DEADLINE, || std::fs::remove_dir_all(&self.state).ok());
        assert!(removed.is_some(), "its state cannot be removed");
        let switched_on = sequence.run(&["swtpm_ioctl", "--tcp", &self.control(), "-i"]);
        assert!(switched_on.is_err(), "it does without its state");
    }

    /// Takes all room for objects in its memory, until [`Swtpm::flush`] or a reset: 0x902.
    #[track_caller]
    pub fn fill_memory(&self) {
        for _ in 0..OBJECTS {
            self.tools
                .once(&["tpm2_createprimary", "-C", "n", "-G", "ecc"]);
        }
    }

    /// Sets a password of the endorsement hierarchy, as owners may: 0x9a2 to those without.
    #[track_caller]
    pub fn set_endorsement_password(&self) {
        self.tools.once(&["tpm2_changeauth", "-c", "e", PASSWORD]);
    }

    /// Turns the endorsement hierarchy off, until a reset: 0x185 to those who ask for its keys.
    #[track_caller]
    pub fn disable_endorsement(&self) {
        let words = ["tpm2_hierarchycontrol", "-C", "p", "ehEnable", "clear"];
        self.tools.once(&words);
    }
}
