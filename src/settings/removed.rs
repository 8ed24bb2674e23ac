//! The settings of earlier versions.

use super::ProviderSchema;

/// A setting of an earlier version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The key of the setting in a file, with its section.
    pub(crate) key: &'static str,
    /// The option of the setting, without the dashes.
    pub(crate) flag: &'static str,
    /// The replacement, as a sentence.
    replacement: &'static str,
}

/// All removed settings. If a file, a drop-in or an option contains a removed setting, the error contains its
/// replacement.
const TABLE: [Removed; 4] = [
    Removed {
        key: "kubeconfig",
        flag: "kubeconfig",
        replacement: "the plugin uses the cluster in the kubelet's kubeconfig \
                      (provideClusterInfo: true), in the state directory, or in \
                      bootstrapKubeconfig",
    },
    Removed {
        key: "signerName",
        flag: "signer-name",
        replacement: "the signer is cluster.x-k8s.io/kube-apiserver-client-kubelet-<provider>",
    },
    Removed {
        key: "timeoutSeconds",
        flag: "timeout-seconds",
        replacement: "a run without a valid credential has a limit of 25 seconds",
    },
    Removed {
        key: "tpm.deviceProgram",
        flag: "tpm-device-program",
        replacement: "kubelet-authenticator-tpm-device must be next to the plugin, or in \
                      /usr/lib/kubelet-authenticator",
    },
];

impl Removed {
    /// Returns the text of the error, with the replacement.
    pub(crate) fn why(self) -> String {
        format!("the setting was removed: {}", self.replacement)
    }
}

impl ProviderSchema {
    /// The removed settings of this plugin: the common settings, and the settings of the provider.
    pub(crate) fn removed(&self) -> impl Iterator<Item = Removed> {
        let own = self.provider.as_str();
        TABLE.into_iter().filter(move |removed| {
            let section = removed.key.split_once('.').map(|(section, _)| section);
            section.is_none_or(|section| section == own)
        })
    }
}
