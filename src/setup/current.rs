//! The source of a kubelet's credential, from its kubeconfig.

use std::path::Path;

use super::Setup;
use crate::kube::kubeconfig::{Kubeconfig, KubeconfigError, read_text};

/// The prefix of this project's program names.
pub(crate) const PROGRAMS: &str = "kubelet-authenticator-";

/// The source of a kubelet's credential.
pub(super) enum Current {
    /// The kubeconfig does not exist.
    Missing,
    /// The kubeconfig has no content, which can happen after a crash.
    Empty,
    /// The kubeconfig cannot be read.
    Unreadable(KubeconfigError),
    /// The kubeconfig is not valid.
    Invalid(KubeconfigError),
    /// The kubeconfig runs this plugin.
    Ours(String),
    /// The kubeconfig runs the plugin of a different provider.
    OfAnotherProvider(String),
    /// The kubeconfig runs another credential plugin.
    Plugin(String),
    /// The kubeconfig itself contains the credential, usually a certificate.
    Own,
}

impl Setup {
    pub(super) fn current(&self) -> Current {
        let path = &self.kubelet_kubeconfig;
        let error = match Kubeconfig::read_exec_command(path) {
            Ok(Some(command)) => return self.run_by(command),
            Ok(None) => return Current::Own,
            Err(error) => error,
        };
        match error {
            error if error.is_absence_of(path) => Current::Missing,
            KubeconfigError::Unreadable { .. } => Current::Unreadable(error),
            KubeconfigError::Invalid(_) if is_empty(path) => Current::Empty,
            KubeconfigError::Invalid(_) => Current::Invalid(error),
        }
    }

    fn run_by(&self, command: String) -> Current {
        let path = Path::new(&command);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let own = format!("{PROGRAMS}{}", self.provider);
        // Also accepts an administrator's script with the name of the program and a suffix.
        let is_own = name == own || name.starts_with(&format!("{own}."));
        if path == self.program || is_own {
            Current::Ours(command)
        } else if name.starts_with(PROGRAMS) {
            Current::OfAnotherProvider(command)
        } else {
            Current::Plugin(command)
        }
    }
}

fn is_empty(path: &Path) -> bool {
    read_text(path).is_ok_and(|text| {
        // After a crash, a file system can restore the length of a file without its content.
        let mut letters = text.chars();
        letters.all(|letter| letter == '\0' || letter.is_whitespace())
    })
}
