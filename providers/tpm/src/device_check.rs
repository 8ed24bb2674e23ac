//! Checks the TPM's device file before the TPM is used.
//!
//! libtss2 reports the same error for all problems that this module distinguishes.

use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use kubelet_authenticator::failure::{Code, Failure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The sysfs directory for TPMs.
const FACTS: &str = "/sys/class/tpm";

/// Checks the device file of this TPM, without a TPM command.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    check_with(path, Path::new(FACTS))
}

fn check_with(path: &Path, facts: &Path) -> Result<(), Failure> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = opened.map_err(|error| unusable(path, facts, error))?;
    let kind = fs::File::from(file).metadata();
    let kind = kind.map(|metadata| metadata.file_type());
    if kind.as_ref().is_ok_and(FileType::is_char_device) {
        return Ok(());
    }
    Err(Failure::new(
        Code::DeviceUnavailable,
        format!("{} is not a TPM", path.display()),
        "correct tpm.device in the settings",
    ))
}

/// The device of the same TPM without the resource manager: `tpm0` for `tpmrm0`.
fn unmanaged(path: &Path) -> Option<PathBuf> {
    let number = path.file_name()?.to_str()?.strip_prefix("tpmrm")?;
    let unmanaged = path.with_file_name(format!("tpm{number}"));
    unmanaged.exists().then_some(unmanaged)
}

/// The error for a TPM without a resource manager.
fn without_manager(place: &str, unmanaged: &Path, facts: &Path) -> (String, &'static str) {
    let facts = facts.join(unmanaged.file_name().unwrap_or_default());
    let version = fs::read_to_string(facts.join("tpm_version_major"));
    let (why, remedy) = match version.as_deref().map(str::trim) {
        Ok("1") => ("this is a TPM 1.2", "use a machine with a TPM 2.0"),
        Ok("2") => (
            "this kernel has no resource manager for TPMs",
            "use Linux 4.12 or later; if the kernel is 4.12 or later, check its messages about the TPM (dmesg | grep \
             -i tpm)",
        ),
        // For a TPM in field upgrade mode, the kernel creates neither of the two files.
        _ => (
            "the TPM is in the middle of a firmware update (field upgrade mode), is a TPM 1.2, or the \
             kernel is older than 4.12",
            "check the kernel's messages about the TPM (dmesg | grep -i tpm); finish the firmware update with the TPM \
             vendor's tool, and switch the machine off and on again",
        ),
    };
    let unmanaged = unmanaged.display();
    (
        format!("{place} does not exist, although {unmanaged} exists: {why}"),
        remedy,
    )
}

fn unusable(path: &Path, facts: &Path, error: Errno) -> Failure {
    let place = path.display();
    let unmanaged = unmanaged(path).filter(|_| error == Errno::NOENT);
    if let Some(unmanaged) = unmanaged {
        let (what, remedy) = without_manager(&place.to_string(), &unmanaged, facts);
        return Failure::new(Code::DeviceUnavailable, what, remedy)
            .because(&io::Error::from(error));
    }
    let (what, remedy) = match error {
        Errno::NOENT => (
            format!("Linux found no TPM in this machine: {place} does not exist"),
            "enable the TPM 2.0 in the firmware (fTPM, PTT), add a TPM 2.0 to the virtual machine (on EC2, use an \
             image with --tpm-support v2.0 and UEFI boot), or load the TPM driver (tpm_crb, tpm_tis); if the \
             TPM is enabled, it failed to start: check the kernel's messages (dmesg | grep -i tpm)",
        ),
        Errno::ACCESS | Errno::PERM => (
            format!("no permission to open {place}"),
            "run the plugin as root, like the kubelet, or as a member of the file's group; check that no sandbox \
             (DeviceAllow=, a container) blocks devices",
        ),
        Errno::BUSY => (
            format!("{place} is in use by another program"),
            "use /dev/tpmrm0 (tpm.device), which several programs can use at the same time",
        ),
        _ => (
            format!("cannot open {place}"),
            "check the kernel's messages about the TPM (dmesg | grep -i tpm)",
        ),
    };
    Failure::new(Code::DeviceUnavailable, what, remedy).because(&io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tpm_is_a_character_device_that_can_be_opened() {
        check(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn an_unusable_device_error_has_the_reason_and_a_remedy() {
        let permitted = "run the plugin as root, like the kubelet, or as a member of the file's group; check that no \
            sandbox (DeviceAllow=, a container) blocks devices";
        for (errno, what, remedy) in [
            (
                Errno::ACCESS,
                "no permission to open /dev/tpmrm0",
                permitted,
            ),
            (Errno::PERM, "no permission to open /dev/tpmrm0", permitted),
            (
                Errno::BUSY,
                "/dev/tpmrm0 is in use by another program",
                "use /dev/tpmrm0 (tpm.device), which several programs can use at the same time",
            ),
            (
                Errno::NXIO,
                "cannot open /dev/tpmrm0",
                "check the kernel's messages about the TPM (dmesg | grep -i tpm)",
            ),
        ] {
            let error = unusable(Path::new("/dev/tpmrm0"), Path::new(FACTS), errno);

            assert_eq!(error.what(), format!("{what}: {}", io::Error::from(errno)));
            assert_eq!(error.remedy(), remedy);
            assert_eq!(error.code(), Code::DeviceUnavailable);
        }
    }

    #[test]
    fn a_path_that_is_not_a_tpm_fails_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, words) in [
            (folder.path().join("none"), "Linux found no TPM"),
            (file.join("below"), "cannot open "),
            (folder.path().to_owned(), "cannot open "),
            (file, "is not a TPM"),
        ] {
            let error = check(&path).unwrap_err();

            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.code(), Code::DeviceUnavailable);
            assert!(!error.remedy().is_empty());
        }
    }

    #[test]
    fn a_tpm_without_a_resource_manager_is_explained_by_its_version() {
        let devices = tempfile::tempdir().unwrap();
        let facts = tempfile::tempdir().unwrap();
        let version = facts.path().join("tpm1/tpm_version_major");
        fs::create_dir(version.parent().unwrap()).unwrap();
        // A device file that belongs to a different TPM does not change the result.
        fs::write(devices.path().join("tpm0"), "").unwrap();
        let of = |name: &str| check_with(&devices.path().join(name), facts.path()).unwrap_err();
        let none = of("tpmrm1");
        assert!(
            none.what()
                .starts_with("Linux found no TPM in this machine"),
            "{none}"
        );
        assert!(none.remedy().contains("dmesg | grep -i tpm"), "{none}");
        fs::write(devices.path().join("tpm1"), "").unwrap();

        for (content, words, cure) in [
            (
                Some("1\n"),
                ": this is a TPM 1.2: No such file",
                "use a machine with a TPM 2.0",
            ),
            (
                Some("2\n"),
                ": this kernel has no resource manager",
                "Linux 4.12",
            ),
            (
                None,
                ": the TPM is in the middle of a firmware update",
                "dmesg | grep -i tpm",
            ),
        ] {
            fs::remove_file(&version).ok();
            if let Some(content) = content {
                fs::write(&version, content).unwrap();
            }
            let error = of("tpmrm1");

            assert!(error.what().contains(words), "{error}");
            let both = "/tpmrm1 does not exist, although ";
            assert!(error.what().contains(both), "{error}");
            assert!(error.remedy().contains(cure), "{error}");
            assert_eq!(error.code(), Code::DeviceUnavailable);
        }
    }
}
