//! The errors and remedies of a TPM without an answer.

use kubelet_authenticator::attester::AttesterError;
use kubelet_authenticator::failure::Code;

use crate::program::ProgramError;
use crate::protocol::Trouble;

/// The packages of libtss2. On Debian 13 and Ubuntu 24.04 their names end in `t64`.
const PACKAGES: &str = "install tpm2-tss: on Debian and Ubuntu libtss2-esys-3.0.2-0, \
                        libtss2-tctildr0 and libtss2-tcti-device0 (or the same with t64 at the \
                        end), elsewhere tpm2-tss";

/// The error of the program.
pub(crate) fn of_program(error: ProgramError) -> AttesterError {
    let remedy = match &error {
        ProgramError::Absent { .. } => {
            "install the whole package kubelet-authenticator-tpm, or set tpm.deviceProgram"
        }
        ProgramError::NoLoader { .. } => {
            "use a system with glibc; musl's (Alpine) cannot load libtss2 for it"
        }
        ProgramError::NotStarted { .. } => {
            "see that the program may be executed and is for this processor"
        }
        ProgramError::Library { .. } | ProgramError::OtherLibrary { .. } => PACKAGES,
        ProgramError::Slow { .. } => {
            "nothing, if it passes: the next run asks again; a slow TPM needs an endorsement key \
             that is stored in it, or one on a curve (tpm.endorsementKey); one that never answers \
             needs a reboot"
        }
        ProgramError::NoThread { .. } => {
            "let the plugin have more processes: its cgroup (pids.max) or its user has no room"
        }
        ProgramError::Ended { .. } => "see the system's log for why it ended",
        ProgramError::OtherRelease { .. } => {
            "install plugin and program from one package, and see what tpm.deviceProgram names"
        }
    };
    let what = "the TPM cannot be asked";
    AttesterError::new(Code::TpmUnavailable, what, remedy).because(error)
}

/// The error of the TPM with the name `tpm`.
pub(crate) fn of_tpm(tpm: &str, trouble: &Trouble) -> AttesterError {
    let (code, what, remedy) = match trouble {
        Trouble::Code { step, code } => {
            let (what, remedy) = explain(*code);
            let what = format!("the TPM ({tpm}) {what} ({step}: {code:#x})");
            return AttesterError::new(Code::TpmUnavailable, what, remedy);
        }
        Trouble::Bindings { step, words } => {
            let what = format!("the TPM ({tpm}) answers what libtss2 does not take");
            let what = format!("{what} ({step}: {words})");
            return AttesterError::new(Code::TpmUnavailable, what, UNKNOWN);
        }
        Trouble::FailureMode => (
            Code::TpmUnavailable,
            "is in failure mode and does nothing",
            REBOOT,
        ),
        Trouble::OtherChallenge => (
            Code::EvidenceInvalid,
            "cannot open the challenge: it was made for another TPM",
            "compare this machine's endorsement key with the one that the controller trusts for its \
             provider ID: a replaced mainboard has another TPM",
        ),
        Trouble::OtherKey => (
            Code::EvidenceInvalid,
            "does not have the endorsement key that was challenged any more",
            "nothing: the next run asks with the key that it has",
        ),
        Trouble::InvalidKey => (
            Code::TpmUnavailable,
            "has an endorsement key that does not match its template",
            "select another key with tpm.endorsementKey",
        ),
        Trouble::NoBank => (
            Code::TpmUnavailable,
            "has not all of the registers that are to be quoted in a bank of SHA-256",
            "allocate the bank in the firmware's settings or by `tpm2_pcrallocate sha256:all` and a \
             reboot; see tpm.pcrs",
        ),
        Trouble::Unsettled => (
            Code::TpmUnavailable,
            "changes its registers while they are quoted",
            "nothing: the next run asks again; leave registers that are in use out of tpm.pcrs",
        ),
        Trouble::Question => (
            Code::TpmUnavailable,
            "was asked what makes no sense",
            "report this as a bug",
        ),
    };
    AttesterError::new(code, format!("the TPM ({tpm}) {what}"), remedy)
}

const REBOOT: &str =
    "switch the machine off and on again; if that does not help, the TPM is broken";

const UNKNOWN: &str =
    "look the code up with `tpm2_rc_decode`; see the kernel's messages about the TPM";

const BUSY: (&str, &str) = ("is busy", "nothing: the next run asks again");

/// Bits 16 to 23: the layer that returns the code (TSS 2.0 Overview, "Response codes").
const LAYER: u32 = 0x00ff_0000;
const OF_TPM: u32 = 0;
const OF_TCTI: u32 = 0x000a_0000;
const OF_RESOURCE_MANAGERS: [u32; 2] = [0x000b_0000, 0x000c_0000];

/// The code without its layer.
const CODE: u32 = 0xffff;

/// Part 2, `TPM_RC`: bit 7 is set in codes that name a handle or parameter.
const FORMAT_ONE: u32 = 0x80;
const FORMAT_ONE_ERROR: u32 = 0xbf;

/// The meaning of a code, and the remedy.
fn explain(code: u32) -> (&'static str, &'static str) {
    match code & LAYER {
        OF_TPM => explain_tpm(code & CODE),
        layer if OF_RESOURCE_MANAGERS.contains(&layer) => explain_tpm(code & CODE),
        OF_TCTI if code & CODE == 0x15 => ("cannot be reached by this libtss2", PACKAGES),
        OF_TCTI => (
            "cannot be reached",
            "see that it is there and that nobody else holds it; for swtpm, that it listens at \
             tpm.tcti and libtss2-tcti-swtpm0 is installed, otherwise libtss2-tcti-device0",
        ),
        _ => ("fails by way of libtss2", UNKNOWN),
    }
}

/// Part 2, `TPM_RC`.
fn explain_tpm(code: u32) -> (&'static str, &'static str) {
    match code {
        0x100 => (
            "was not started by the firmware",
            "switch the machine off and on again; for swtpm use --flags startup-clear",
        ),
        0x101 => ("fails", REBOOT),
        // TPM_RC_CONTEXT_GAP, _OBJECT_MEMORY, _SESSION_MEMORY, _MEMORY, _SESSION_HANDLES,
        // _OBJECT_HANDLES
        0x901..=0x906 => (
            "has no memory left: other programs have left objects or sessions in it",
            "use /dev/tpmrm0 (tpm.device), which removes them; otherwise `tpm2_flushcontext -t`, \
             `-l` and `-s`, or a reboot",
        ),
        0x921 => (
            "is locked out after too many wrong passwords",
            "wait for its recovery time, or `tpm2_dictionarylockout --clear-lockout`",
        ),
        0x908 | 0x90a | 0x920 | 0x922 => BUSY,
        code if code & FORMAT_ONE != 0 => explain_format_one(code & FORMAT_ONE_ERROR),
        _ => ("refuses", UNKNOWN),
    }
}

/// The errors of format one, without the number of the handle or parameter.
fn explain_format_one(error: u32) -> (&'static str, &'static str) {
    match error {
        // TPM_RC_AUTH_FAIL, TPM_RC_BAD_AUTH
        0x8e | 0xa2 => (
            "wants a password for its endorsement hierarchy, and the plugin knows none",
            "take the password away: `tpm2_changeauth -c endorsement -p <password>`",
        ),
        // TPM_RC_HIERARCHY, TPM_RC_HANDLE
        0x85 | 0x8b => (
            "has its endorsement hierarchy switched off",
            "switch the endorsement hierarchy on in the firmware's settings",
        ),
        // TPM_RC_ASYMMETRIC, TPM_RC_VALUE, TPM_RC_KEY_SIZE, TPM_RC_SCHEME, TPM_RC_CURVE,
        // TPM_RC_SYMMETRIC
        0x81 | 0x84 | 0x87 | 0x92 | 0xa6 | 0x96 => (
            "does not have that kind of key",
            "choose another endorsement key (tpm.endorsementKey); attestation keys need NIST P-256",
        ),
        _ => ("refuses", UNKNOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: u32) -> String {
        let trouble = Trouble::Code {
            step: "TPM2_CreatePrimary".to_owned(),
            code,
        };
        let error = of_tpm("/dev/tpmrm0", &trouble);
        assert_eq!(error.code(), Code::TpmUnavailable);
        assert!(!error.remedy().is_empty());
        error.to_string()
    }

    #[test]
    fn a_code_is_explained_by_who_speaks() {
        for (code, words) in [
            (0x100, "was not started"),
            (0x101, "fails"),
            (0x901, "no memory left"),
            (0x902, "no memory left"),
            (0x000b_0902, "no memory left"),
            (0x903, "no memory left"),
            (0x904, "no memory left"),
            (0x905, "no memory left"),
            (0x906, "no memory left"),
            (0x907, "refuses"),
            (0x921, "locked out"),
            (0x922, "is busy"),
            (0x9a2, "wants a password"),
            (0x185, "switched off"),
            (0x18b, "switched off"),
            (0x2e6, "does not have that kind of key"),
            (0x000a_000a, "cannot be reached ("),
            (0x000a_0015, "by this libtss2"),
            // Not failure mode: the transport's own general failure.
            (0x000a_0001, "cannot be reached ("),
            (0x0007_0001, "by way of libtss2"),
            (0x1ff, "refuses"),
        ] {
            let said = said(code);
            assert!(said.contains(words), "{code:#x}: {said}");
            assert!(said.ends_with(&format!("(TPM2_CreatePrimary: {code:#x})")));
        }
    }

    #[test]
    fn a_challenge_for_another_tpm_is_no_trouble_of_this_one() {
        for trouble in [Trouble::OtherChallenge, Trouble::OtherKey] {
            assert_eq!(of_tpm("x", &trouble).code(), Code::EvidenceInvalid);
        }
        for trouble in [
            Trouble::FailureMode,
            Trouble::InvalidKey,
            Trouble::NoBank,
            Trouble::Unsettled,
            Trouble::Question,
        ] {
            let error = of_tpm("x", &trouble);
            assert_eq!(error.code(), Code::TpmUnavailable);
            assert!(!error.to_string().contains("challenge"), "{error}");
        }
    }
}
