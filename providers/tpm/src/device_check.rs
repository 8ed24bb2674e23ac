//! Checks the TPM's device file before the TPM is used.
//!
//! libtss2 has one error for all of these cases.

use std::fs::FileType;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use kubelet_authenticator::failure::{Code, Failure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Checks that this TPM can be used, as far as that is visible without a command to it.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = opened.map_err(|error| unusable(path, error))?;
    let kind = std::fs::File::from(file).metadata();
    let kind = kind.map(|metadata| metadata.file_type());
    if kind.as_ref().is_ok_and(FileType::is_char_device) {
        return Ok(());
    }
    Err(Failure::new(
        Code::DeviceUnavailable,
        format!("{} is no TPM", path.display()),
        "correct tpm.device in the settings",
    ))
}

fn unusable(path: &Path, error: Errno) -> Failure {
    let place = path.display();
    let unmanaged = path.with_file_name("tpm0");
    let (what, remedy) = match error {
        Errno::NOENT if unmanaged.exists() => (
            format!(
                "{place} is not there, though {} is: this is a TPM 1.2, or a kernel without a \
                 resource manager for TPMs",
                unmanaged.display()
            ),
            "a TPM 2.0 and Linux 4.12 or newer are needed",
        ),
        Errno::NOENT => (
            format!("this machine has no TPM that Linux knows: {place} is not there"),
            "switch the TPM 2.0 on in the firmware (fTPM, PTT), give the virtual machine one (on EC2 an \
             image with --tpm-support v2.0 and UEFI boot), or load its driver (tpm_crb, tpm_tis)",
        ),
        Errno::ACCESS | Errno::PERM => (
            format!("{place} may not be opened"),
            "run the plugin as root, as the kubelet does, or in the group of the file; see that no \
             sandbox (DeviceAllow=, a container) keeps devices from it",
        ),
        Errno::BUSY => (
            format!("{place} is in use by another program"),
            "use /dev/tpmrm0 (tpm.device), which several programs can use at once",
        ),
        _ => (
            format!("{place} cannot be opened"),
            "see the kernel's messages about the TPM (dmesg | grep -i tpm)",
        ),
    };
    Failure::new(Code::DeviceUnavailable, what, remedy).because(&io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_tpm_is_a_character_device_that_can_be_opened() {
        check(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn what_cannot_be_opened_says_why_and_what_to_do() {
        let permitted = "run the plugin as root, as the kubelet does, or in the group of the file; \
                         see that no sandbox (DeviceAllow=, a container) keeps devices from it";
        for (errno, what, remedy) in [
            (Errno::ACCESS, "/dev/tpmrm0 may not be opened", permitted),
            (Errno::PERM, "/dev/tpmrm0 may not be opened", permitted),
            (
                Errno::BUSY,
                "/dev/tpmrm0 is in use by another program",
                "use /dev/tpmrm0 (tpm.device), which several programs can use at once",
            ),
            (
                Errno::NXIO,
                "/dev/tpmrm0 cannot be opened",
                "see the kernel's messages about the TPM (dmesg | grep -i tpm)",
            ),
        ] {
            let error = unusable(Path::new("/dev/tpmrm0"), errno);

            assert_eq!(error.what(), format!("{what}: {}", io::Error::from(errno)));
            assert_eq!(error.remedy(), remedy);
            assert_eq!(error.code(), Code::DeviceUnavailable);
        }
    }

    #[test]
    fn what_is_no_tpm_says_what_it_is_instead() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let old = tempfile::tempdir().unwrap();
        fs::write(old.path().join("tpm0"), "").unwrap();
        for (path, words) in [
            (folder.path().join("none"), "no TPM that Linux knows"),
            (old.path().join("tpmrm0"), "this is a TPM 1.2"),
            (file.join("below"), "cannot be opened"),
            (folder.path().to_owned(), "cannot be opened"),
            (file, "is no TPM"),
        ] {
            let error = check(&path).unwrap_err();

            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.code(), Code::DeviceUnavailable);
            assert!(!error.remedy().is_empty());
        }
    }
}
