//! The errors and hints for a TPM that does not respond.

use kubelet_authenticator::failure::{Code, Failure};

use crate::protocol::{DeviceError, FORMAT_ONE, FORMAT_ONE_ERROR, LAYER};

/// The packages of libtss2. On Debian 13 and Ubuntu 24.04, the names of the packages end with `t64`.
pub(crate) const PACKAGES: &str = "install tpm2-tss: on Debian and Ubuntu libtss2-esys-3.0.2-0, libtss2-tctildr0 and \
    libtss2-tcti-device0 (or the same names with the suffix t64), elsewhere tpm2-tss";

/// The hint if the plugin and the TPM helper have incompatible versions.
pub(crate) const SAME_VERSION: &str = concat!(
    "update the package kubelet-authenticator-tpm-device to the version of this plugin, ",
    env!("CARGO_PKG_VERSION"),
    " (`apt-mark showhold` lists packages that apt keeps back); a helper in the plugin's directory takes precedence over \
     /usr/lib/kubelet-authenticator"
);

/// The failure of a run if the TPM with the name `tpm` returned `error`.
pub(crate) fn failure(tpm: &str, error: &DeviceError) -> Failure {
    let is_of_evidence = matches!(error, DeviceError::OtherChallenge | DeviceError::OtherKey);
    let code = if is_of_evidence {
        Code::EvidenceInvalid
    } else {
        Code::DeviceUnavailable
    };
    let (what, remedy) = match error {
        DeviceError::Code { step, code } => {
            let (what, remedy) = explain(*code);
            let what = format!("the TPM ({tpm}) {what} ({step}: {code:#x})");
            return Failure::new(Code::DeviceUnavailable, what, remedy);
        }
        DeviceError::Bindings { step, words } => {
            let what = "returned an answer that libtss2 rejects";
            let what = format!("the TPM ({tpm}) {what} ({step}: {words})");
            return Failure::new(Code::DeviceUnavailable, what, UNKNOWN);
        }
        DeviceError::FailureMode => ("is in failure mode and rejects every command", REBOOT),
        DeviceError::OtherChallenge => (
            "cannot open the challenge: it was made for another TPM",
            "compare the endorsement key of this machine with the key that the controller trusts for this machine's \
             provider ID: a replaced mainboard has a different TPM",
        ),
        DeviceError::OtherKey => (
            "no longer has the endorsement key of the challenge",
            "no action is needed: the next run uses the current key",
        ),
        DeviceError::InvalidKey => (
            "has an endorsement key that does not match its template",
            "select another key with tpm.endorsementKey",
        ),
        DeviceError::NoBank => (
            "does not have a SHA-256 or SHA-384 bank with all PCRs in tpm.pcrs",
            "enable the SHA-256 PCR bank in the firmware setup, or request this bank and reboot: `echo 23 2 > \
             /sys/class/tpm/tpm0/ppi/request` (if ppi/version is 1.3; the firmware can require a confirmation at \
             the console); a TPM with only SHA-1 cannot attest",
        ),
        DeviceError::Unsettled => (
            "changed its PCRs during the quote",
            "no action is needed: the next run retries; if the error repeats, remove PCRs that change at runtime from \
             tpm.pcrs",
        ),
        DeviceError::Question => (
            "cannot be used, because the TPM helper does not support the request",
            SAME_VERSION,
        ),
    };
    Failure::new(code, format!("the TPM ({tpm}) {what}"), remedy)
}

const REBOOT: &str =
    "switch the machine off and on again; if that does not help, the TPM is broken";

const UNKNOWN: &str = "decode the code with `tpm2_rc_decode`, and check the kernel's messages about \
                       the TPM (dmesg | grep -i tpm)";

const BUSY: (&str, &str) = ("is busy", "no action is needed: the next run retries");

/// The layer numbers in a response code.
const OF_TPM: u32 = 0;
const OF_TCTI: u32 = 0x000a_0000;
const OF_RESOURCE_MANAGERS: [u32; 2] = [0x000b_0000, 0x000c_0000];

/// The code without its layer.
const CODE: u32 = 0xffff;

/// Returns the meaning of a code, and the remedy.
fn explain(code: u32) -> (&'static str, &'static str) {
    match code & LAYER {
        OF_TPM => explain_tpm(code & CODE),
        layer if OF_RESOURCE_MANAGERS.contains(&layer) => explain_tpm(code & CODE),
        OF_TCTI if code & CODE == 0x15 => ("cannot be reached by this libtss2", PACKAGES),
        OF_TCTI => (
            "cannot be reached",
            "check that the TPM exists, that no other program uses it, and that \
             libtss2-tcti-device0 is installed; for swtpm, check that swtpm listens at tpm.tcti, and that \
             libtss2-tcti-swtpm0 is installed",
        ),
        _ => ("failed in libtss2", UNKNOWN),
    }
}

/// TPM 2.0 Library Specification, Part 2, `TPM_RC`.
fn explain_tpm(code: u32) -> (&'static str, &'static str) {
    match code {
        0x100 => (
            "was not started by the firmware",
            "switch the machine off and on again; for swtpm use --flags startup-clear",
        ),
        0x101 => ("fails", REBOOT),
        // TPM_RC_UPGRADE
        0x12d => (
            "is in the middle of a firmware update (field upgrade mode)",
            "finish the firmware update with the TPM vendor's tool, and switch the machine off and on again",
        ),
        // TPM_RC_REBOOT
        0x130 => ("requires a restart", REBOOT),
        // TPM_RC_CONTEXT_GAP, _OBJECT_MEMORY, _SESSION_MEMORY, _MEMORY, _SESSION_HANDLES,
        // _OBJECT_HANDLES
        0x901..=0x906 => (
            "has no free memory: other programs left objects or sessions in it",
            "use /dev/tpmrm0 (tpm.device), which removes these objects and sessions; otherwise run `tpm2_flushcontext \
             -t`, `tpm2_flushcontext -l` and `tpm2_flushcontext -s`, or reboot",
        ),
        0x921 => (
            "is locked out after too many wrong passwords",
            "wait for the TPM's recovery time, or run `tpm2_dictionarylockout --clear-lockout`",
        ),
        0x908 | 0x90a | 0x920 | 0x922 => BUSY,
        code if code & FORMAT_ONE != 0 => explain_format_one(code & FORMAT_ONE_ERROR),
        _ => ("refuses", UNKNOWN),
    }
}

/// The format-one errors, without the number of the handle or parameter.
fn explain_format_one(error: u32) -> (&'static str, &'static str) {
    match error {
        // TPM_RC_AUTH_FAIL, TPM_RC_BAD_AUTH
        0x8e | 0xa2 => (
            "requires a password for its endorsement hierarchy, which the plugin does not have",
            "remove the password: `tpm2_changeauth -c endorsement -p <password>`",
        ),
        // TPM_RC_HIERARCHY, TPM_RC_HANDLE
        0x85 | 0x8b => (
            "has a disabled endorsement hierarchy",
            "enable the endorsement hierarchy in the firmware's settings",
        ),
        // TPM_RC_ASYMMETRIC, TPM_RC_VALUE, TPM_RC_KEY_SIZE, TPM_RC_SCHEME, TPM_RC_CURVE,
        // TPM_RC_SYMMETRIC
        0x81 | 0x84 | 0x87 | 0x92 | 0xa6 | 0x96 => (
            "does not support this key type",
            "select a different endorsement key with tpm.endorsementKey; the TPM must also support NIST P-256 for the \
             attestation key",
        ),
        _ => ("refuses", UNKNOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: u32) -> String {
        let error = DeviceError::Code {
            step: "TPM2_CreatePrimary".to_owned(),
            code,
        };
        let error = failure("/dev/tpmrm0", &error);
        assert_eq!(error.code(), Code::DeviceUnavailable);
        assert!(!error.remedy().is_empty());
        error.to_string()
    }

    #[test]
    fn a_tpm_error_code_is_explained_by_its_layer() {
        for (code, words) in [
            (0x100, "was not started"),
            (0x101, "fails"),
            (0x12d, "is in the middle of a firmware update"),
            (0x000b_012d, "is in the middle of a firmware update"),
            (0x130, "requires a restart"),
            (0x901, "no free memory"),
            (0x902, "no free memory"),
            (0x000b_0902, "no free memory"),
            (0x903, "no free memory"),
            (0x904, "no free memory"),
            (0x905, "no free memory"),
            (0x906, "no free memory"),
            (0x907, "refuses"),
            (0x921, "locked out"),
            (0x922, "is busy"),
            (0x9a2, "requires a password"),
            (0x185, "disabled endorsement hierarchy"),
            (0x18b, "disabled endorsement hierarchy"),
            (0x2e6, "does not support this key type"),
            (0x000a_000a, "cannot be reached ("),
            (0x000a_0015, "by this libtss2"),
            // This code means a general failure of the transport, and not failure mode.
            (0x000a_0001, "cannot be reached ("),
            (0x0007_0001, "failed in libtss2"),
            (0x1ff, "refuses"),
        ] {
            let said = said(code);
            assert!(said.contains(words), "{code:#x}: {said}");
            assert!(said.ends_with(&format!("(TPM2_CreatePrimary: {code:#x})")));
        }
    }

    #[test]
    fn the_remedy_for_a_full_tpm_flushes_objects_and_all_sessions() {
        for code in 0x901..=0x906 {
            let step = "TPM2_StartAuthSession".to_owned();
            let failure = failure("/dev/tpm0", &DeviceError::Code { step, code });

            // -t: transient objects; -l: loaded sessions; -s: sessions whose contexts other programs saved and left.
            for option in ["-t", "-l", "-s"] {
                let command = format!("`tpm2_flushcontext {option}`");
                let cure = failure.remedy();
                assert!(cure.contains(&command), "{code:#x}: {cure}");
            }
        }
    }

    #[test]
    fn a_challenge_for_another_tpm_is_invalid_evidence_not_a_device_error() {
        for error in [DeviceError::OtherChallenge, DeviceError::OtherKey] {
            assert_eq!(failure("x", &error).code(), Code::EvidenceInvalid);
        }
        for error in [
            DeviceError::FailureMode,
            DeviceError::InvalidKey,
            DeviceError::NoBank,
            DeviceError::Unsettled,
            DeviceError::Question,
        ] {
            let failure = failure("x", &error);
            assert_eq!(failure.code(), Code::DeviceUnavailable);
            assert!(!failure.what().contains("challenge"), "{failure}");
        }
    }

    #[test]
    fn the_remedy_for_a_missing_bank_is_a_request_to_the_firmware() {
        let failure = failure("/dev/tpmrm0", &DeviceError::NoBank);

        let what = "the TPM (/dev/tpmrm0) does not have a SHA-256 or SHA-384 bank with all PCRs in tpm.pcrs";
        assert_eq!(failure.what(), what);
        let cure = failure.remedy();
        assert!(
            cure.contains("`echo 23 2 > /sys/class/tpm/tpm0/ppi/request`"),
            "{cure}"
        );
        // tpm2_pcrallocate needs platform authorization, which only the firmware has.
        assert!(!cure.contains("tpm2_pcrallocate"), "{cure}");
    }
}
