//! The systemd drop-in of the kubelet, and the file with its arguments.

use std::path::Path;

use super::ENVIRONMENT_FILE;

/// Whether systemd interprets the path literally. systemd splits lines at spaces, and some characters have a special
/// meaning (systemd.syntax(7), systemd.unit(5), "Specifiers").
pub(crate) fn is_plain(path: &Path) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !br#""'\%$;#"#.contains(byte);
    path.is_absolute() && path.as_os_str().as_encoded_bytes().iter().all(is_plain)
}

/// The path on a node of the drop-in for the kubelet's unit.
pub(crate) const DROP_IN: &str =
    "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

/// The systemd units that extend PCRs of the TPM while the machine starts. The last unit extends a PCR with "ready". A
/// unit that a machine does not have counts as started (systemd-pcrphase.service(8)).
pub(crate) const PHASES: [&str; 4] = [
    "systemd-pcrosseparator.service",
    "systemd-pcrnvdone.service",
    "systemd-pcrphase-sysinit.service",
    "systemd-pcrphase.service",
];

/// The directories of the files that both `setup` and the kubelet use.
const FOLDERS: [&str; 2] = ["/etc/kubernetes", "/var/lib/kubelet"];

/// The time limit of `setup`, in seconds. It is longer than the limits in `setup`, and equals the default of systemd,
/// because some systems have a lower default. If systemd kills `setup`, the start of the kubelet fails, although
/// systemd ignores all other failures of `setup`.
const START_SECONDS: u32 = 90;

/// The drop-in that runs `program`, the absolute path of the plugin. The kubelet starts even if `setup` fails.
///
/// `setup` makes the TPM quote its PCRs. The kubelet starts after the units for the boot phases, and stops before these
/// units, so that two boots of the same image have the same PCRs. `setup` also reads and writes the store, so the
/// kubelet starts after the file systems of these files are mounted.
pub(crate) fn drop_in(program: &Path, state_directory: &Path) -> String {
    let (program, phases) = (program.display(), PHASES.join(" "));
    let (folders, state) = (FOLDERS.join(" "), state_directory.display());
    format!(
        "[Unit]\nAfter={phases}\nRequiresMountsFor={folders} {state}\n\n\
         [Service]\nTimeoutStartSec={START_SECONDS}\nExecStartPre=-{program} setup\n\
         EnvironmentFile=-{ENVIRONMENT_FILE}\n"
    )
}

/// The kubelet's arguments in the format of systemd.exec(5), in the variable of kubeadm's unit.
///
/// kubeadm's configuration file sets `rotateCertificates: true`, which would make the kubelet bypass the plugin. The
/// flag `--rotate-certificates=false` overrides this setting.
pub(super) fn environment(kubeconfig: &Path) -> String {
    format!(
        "# Written by `setup`; removed by `setup --undo`.\n\
         KUBELET_KUBECONFIG_ARGS=\"--kubeconfig={} --rotate-certificates=false\"\n",
        kubeconfig.display()
    )
}
