//! The systemd drop-in of the kubelet, and the file with its arguments.

use std::path::Path;

use super::ENVIRONMENT_FILE;

/// Whether systemd takes the path literally. It splits lines at spaces, and some characters have a
/// special meaning (systemd.syntax(7), systemd.unit(5), "Specifiers").
pub(crate) fn is_plain(path: &Path) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !br#""'\%$;#"#.contains(byte);
    path.is_absolute() && path.as_os_str().as_encoded_bytes().iter().all(is_plain)
}

/// The path of the drop-in of the kubelet's unit on a node.
pub(crate) const DROP_IN: &str =
    "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

/// The drop-in that runs `program`, the absolute path of the plugin. The kubelet starts whatever
/// the result of `setup`.
pub(crate) fn drop_in(program: &Path) -> String {
    let program = program.display();
    format!("[Service]\nExecStartPre=-{program} setup\nEnvironmentFile=-{ENVIRONMENT_FILE}\n")
}

/// The kubelet's arguments in the format of systemd.exec(5), in the variable of kubeadm's unit.
///
/// kubeadm's configuration file has `rotateCertificates: true`, which would make the kubelet bypass
/// the plugin. The flag overrides it.
pub(super) fn environment(kubeconfig: &Path) -> String {
    format!(
        "# Written by `setup`; removed by `setup --undo`.\n\
         KUBELET_KUBECONFIG_ARGS=\"--kubeconfig={} --rotate-certificates=false\"\n",
        kubeconfig.display()
    )
}
