//! The systemd drop-in of the kubelet, and the file with its arguments.

use std::fmt;
use std::path::Path;

/// Whether systemd takes the path literally. It splits lines at spaces, and some characters have a
/// special meaning (systemd.syntax(7), systemd.unit(5), "Specifiers").
pub(crate) fn is_plain(path: &Path) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !br#""'\%$;#"#.contains(byte);
    path.is_absolute() && path.as_os_str().as_encoded_bytes().iter().all(is_plain)
}

/// A drop-in of the kubelet's unit. The kubelet starts whatever the result of `setup`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DropIn<'a> {
    /// The absolute path of the plugin.
    pub(crate) program: &'a Path,
    /// The file with the kubelet's arguments.
    pub(crate) environment_file: &'a Path,
}

impl DropIn<'_> {
    /// Its path on a node.
    pub(crate) const PATH: &'static str =
        "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";
}

impl fmt::Display for DropIn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[Service]")?;
        writeln!(f, "ExecStartPre=-{} setup", self.program.display())?;
        writeln!(f, "EnvironmentFile=-{}", self.environment_file.display())
    }
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
